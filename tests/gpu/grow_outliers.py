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
    with open(f"{folder}/optimizer.safetensors", "rb") as file:
        entries, start = header(file)
        for layer in range(layers):
            values = read(file, start, entries[f"fp8.scalings.y of layer {layer}"])
            print(f"{max(values[1:]):g}", end=" ")  # the scale, then the history (kernels/ops.h)
    print()


if sys.argv[1] == "--largest-y":
    largest_y(sys.argv[2], int(sys.argv[3]))
else:
    grow(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
