"""base/rng.h in Python: the same draws, which need no state."""

WORD = (1 << 64) - 1


def mix(x):
    x = (x + 0x9e3779b97f4a7c15) & WORD
    x = ((x ^ x >> 30) * 0xbf58476d1ce4e5b9) & WORD
    x = ((x ^ x >> 27) * 0x94d049bb133111eb) & WORD
    return x ^ x >> 31


def draw(key, index):
    return mix(mix(key & WORD) ^ index)


def stream_key(seed, name):
    key = 0xcbf29ce484222325
    for byte in name.encode():
        key = ((key ^ byte) * 0x100000001b3) & WORD
    return mix(seed) ^ key
