"""Token files of ./prepare as windows of text, in file order: what ./train reads with data.shuffle=false and
data.documents=join."""
import glob

import numpy
import torch

HEADER_BYTES = 1024
DTYPES = {20240520: numpy.uint16, 20240801: numpy.uint32}


def open_tokens(path):
    """The tokens of a file, mapped: [count] (data/README.md has the format)."""
    header = numpy.fromfile(path, dtype="<i4", count=256)
    if len(header) < 256 or int(header[0]) not in DTYPES:
        raise ValueError(f"{path} is no token file; ./prepare makes them")
    dtype = numpy.dtype(DTYPES[int(header[0])]).newbyteorder("<")
    return numpy.memmap(path, dtype=dtype, mode="r", offset=HEADER_BYTES, shape=(int(header[2]),))


class Windows:
    """Windows of length + 1 tokens; the next begins at the last token of this one.
    Raises ValueError where the pattern, a glob, has none."""

    def __init__(self, pattern, length):
        paths = sorted(glob.glob(pattern))
        if not paths:
            raise ValueError(f"no file matches '{pattern}'")
        files = [open_tokens(path) for path in paths]
        self.length = length
        self.places = [(file, window * length) for file in files
                       for window in range(max(0, len(file) - 1) // length)]
        if not self.places:
            raise ValueError(f"'{pattern}' has fewer than {length + 1} tokens")

    def rows(self, first, count):
        """Windows first to first + count - 1, from the start again after the last:
        inputs and targets, int64 [count, length] each."""
        rows = []
        for number in range(first, first + count):
            file, at = self.places[number % len(self.places)]
            rows.append(numpy.asarray(file[at:at + self.length + 1], dtype=numpy.int64))
        rows = torch.from_numpy(numpy.stack(rows))
        return rows[:, :-1], rows[:, 1:]
