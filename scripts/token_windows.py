"""Token files of ./prepare as windows of text, in the order in which ./train reads them with data.documents=join."""
import glob

import numpy
import torch

from rng import draw, stream_key

HEADER_BYTES = 1024
DTYPES = {20240520: numpy.uint16, 20240801: numpy.uint32}


def open_tokens(path):
    """The tokens of a file, mapped: [count] (data/README.md has the format)."""
    header = numpy.fromfile(path, dtype="<i4", count=256)
    if len(header) < 256 or int(header[0]) not in DTYPES:
        raise ValueError(f"{path} is no token file; ./prepare makes them")
    dtype = numpy.dtype(DTYPES[int(header[0])]).newbyteorder("<")
    return numpy.memmap(path, dtype=dtype, mode="r", offset=HEADER_BYTES, shape=(int(header[2]),))


# ---- Order: data/source.c

def permute(i, n, key):
    half = 1
    while (n - 1) >> (2 * half):
        half += 1
    mask = (1 << half) - 1
    while True:
        left, right = i >> half, i & mask
        for number in range(8):
            left, right = right, left ^ draw(key + number, right) & mask
        i = left << half | right
        if i < n:
            return i


class Windows:
    """Windows of length + 1 tokens; the next begins at the last token of this one. With a seed they are shuffled.
    Raises ValueError where the pattern, a glob, has none."""

    def __init__(self, pattern, length, seed=None):
        paths = sorted(glob.glob(pattern))
        if not paths:
            raise ValueError(f"no file matches '{pattern}'")
        self.files = [open_tokens(path) for path in paths]
        self.length, self.seed = length, seed
        self.fit = [max(0, len(file) - 1) // length for file in self.files]
        if seed is not None:  # one fewer leaves room for the offset
            self.fit = [fit - 1 if fit >= 2 else fit for fit in self.fit]
        self.places = [(f, window) for f, fit in enumerate(self.fit) for window in range(fit)]
        if not self.places:
            raise ValueError(f"'{pattern}' has fewer than {length + 1} tokens")

    def place(self, number):
        """File and first token of a window, counted from the start of the run."""
        epoch, number = divmod(number, len(self.places))
        if self.seed is not None:
            number = permute(number, len(self.places), draw(stream_key(self.seed, "data.order"), epoch))
        f, window = self.places[number]
        offset = 0
        if self.seed is not None:
            most = min(len(self.files[f]) - 1 - self.fit[f] * self.length, self.length - 1)
            offset = draw(draw(stream_key(self.seed, "data.offset"), epoch), f) % (most + 1)
        return self.files[f], offset + window * self.length

    def rows(self, first, count):
        """Windows first to first + count - 1, in a new order after the last."""
        return self.of(range(first, first + count))

    def pieces(self, first, count, length, block):
        """As many tokens as `rows`, in pieces of other windows: data/loader.c, take_piece."""
        if length == self.length:
            return self.rows(first, count)
        each, starts = self.length // length, []
        for number in range(first * each, (first + count) * each):
            group, within = divmod(number, block * each)
            file, at = self.place(group * block + within % block)
            starts.append((file, at + within // block * length))
        return self.read(starts, length)

    def of(self, numbers):
        """Inputs and targets, int64 [count, length] each."""
        return self.read(map(self.place, numbers), self.length)

    @staticmethod
    def read(starts, length):
        rows = [numpy.asarray(file[at:at + length + 1], dtype=numpy.int64) for file, at in starts]
        rows = torch.from_numpy(numpy.stack(rows))
        return rows[:, :-1], rows[:, 1:]
