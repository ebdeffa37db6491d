#!/usr/bin/env python3
"""Edits a checkpoint: one layer's gate and up weights times FACTOR, its down weights over FACTOR^2,
so that the SwiGLU's output y grows by about FACTOR^2 and the layer's stays of its size. The down
weights' exp_avg_sq becomes so large that AdamW leaves them. checksums.json goes, with which the
files no longer agree.
usage: grow_outliers.py CHECKPOINT LAYER FACTOR
       grow_outliers.py --largest-y CHECKPOINT LAYERS   of each layer, as its FP8 scalings know it"""
import array
import json
import os
import struct
import sys

HISTORY_AT, FLOATS = 1, 17  # a scaling in a checkpoint: scale, then the history (kernels/ops.h)


def header(file):
    (size,) = struct.unpack("<Q", file.read(8))
    return json.loads(file.read(size)), 8 + size


def read(file, start, entry):
    begin, end = entry["data_offsets"]
    file.seek(start + begin)
    values = array.array("f")
    values.frombytes(file.read(end - begin))
    return values


def change(path, changes):
    """changes: the tensor's name -> a function of each value."""
    with open(path, "r+b") as file:
        entries, start = header(file)
        for name, function in changes.items():
            values = array.array("f", map(function, read(file, start, entries[name])))
            file.seek(start + entries[name]["data_offsets"][0])
            file.write(values.tobytes())


def grow(folder, layer, factor):
    mlp = f"model.layers.{layer}.mlp"
    change(f"{folder}/model.safetensors", {
        f"{mlp}.gate_proj.weight": lambda w: w * factor,
        f"{mlp}.up_proj.weight": lambda w: w * factor,
        f"{mlp}.down_proj.weight": lambda w: w / factor**2,
    })
    change(f"{folder}/optimizer.safetensors", {
        f"exp_avg.{mlp}.down_proj.weight": lambda m: 0,
        f"exp_avg_sq.{mlp}.down_proj.weight": lambda v: 1e12,
    })
    os.remove(f"{folder}/checksums.json")


def largest_y(folder, layers):
    kinds, y = 8, 4  # SCALING_KINDS, SCALING_Y of model/scalings.h; the last layer has three
    with open(f"{folder}/optimizer.safetensors", "rb") as file:
        entries, start = header(file)
        name = next(n for n in entries if n.endswith(".scalings"))
        count, floats = entries[name]["shape"]
        assert floats == FLOATS, f"a scaling has {floats} floats, not {FLOATS}"
        values = read(file, start, entries[name])
    first = count - layers * kinds - 3
    for layer in range(layers):
        at = (first + layer * kinds + y) * FLOATS
        print(f"{max(values[at + HISTORY_AT:at + FLOATS]):g}", end=" ")
    print()


if sys.argv[1] == "--largest-y":
    largest_y(sys.argv[2], int(sys.argv[3]))
else:
    grow(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
