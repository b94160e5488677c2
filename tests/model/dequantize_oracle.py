#!/usr/bin/env python3
"""Compares quire's dequantiser with the one of the PyPI package gguf, bit for bit.

usage: dequantize_oracle.py path/to/dequantize_dump
Exit status: 0 equal, 1 different, 77 the packages are not there (ctest: skipped).
"""

import subprocess
import sys

try:
    import numpy as np
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

TYPES = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
# Where the halves of a block lie: scale, and minimum.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}


def special_halves():
    """Zero, its negative, subnormals, the least normal, the largest, infinity and NaN."""
    return [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0200, 0x0400, 0x7BFF, 0x7C00, 0x7E00]


def blocks_of(name, random):
    size = GGML_QUANT_SIZES[GGMLQuantizationType[name]][1]
    blocks = [random.integers(0, 256, (512, size), dtype=np.uint8)]
    blocks.append(np.full((1, size), 0xFF, dtype=np.uint8))
    blocks.append(np.zeros((1, size), dtype=np.uint8))
    for half in special_halves():
        some = random.integers(0, 256, (8, size), dtype=np.uint8)
        for at in HALVES.get(name, [0]):
            some[:, at : at + 2] = np.array([half], dtype="<u2").view(np.uint8)
        blocks.append(some)
    if name in ("F16", "BF16"):  # every value there is
        blocks.append(np.arange(65536, dtype="<u2").view(np.uint8).reshape(-1, 2))
    return np.concatenate(blocks)


def main():
    random = np.random.default_rng(5)
    failed = False
    for name in TYPES:
        blocks = blocks_of(name, random)
        with np.errstate(all="ignore"):
            expected = dequantize(blocks, GGMLQuantizationType[name]).astype(np.float32).ravel()
        done = subprocess.run([sys.argv[1], name], input=blocks.tobytes(), capture_output=True, check=True)
        actual = np.frombuffer(done.stdout, dtype=np.float32)
        # A NaN is a NaN, whatever its payload; everything else is equal in every bit.
        same = (actual.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(actual) & np.isnan(expected))
        ok = actual.size == expected.size and bool(same.all())
        print(f"{name}: {len(blocks)} blocks, {'equal' if ok else 'DIFFERENT'}")
        failed |= not ok
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
