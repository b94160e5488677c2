#!/usr/bin/env python3
"""Which places scripts/kernel_mutants.py breaks, and which it leaves out since nothing would come of it."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"))
from kernel_mutants import mutants_of  # noqa: E402


def mutants(statement):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "kernel.cuh"
        path.write_text("QUIRE_DEVICE int f(int row, int n) { " + statement + " }\n")
        return [mutant.what for mutant in mutants_of(path, pathlib.Path(folder))]


class KernelMutants(unittest.TestCase):
    def test_breaks_quotients(self):
        self.assertEqual(mutants("return row / n;"), ["/ to %"])
        self.assertEqual(mutants("return row / n / kRows;"), ["/ to %", "/ to % (2)"])
        self.assertEqual(mutants("return row / (kRows / kParts + n);"), ["/ to %", "/ to % (2)", "+ to -"])
        self.assertEqual(mutants("return n * (kRows / kParts);"), ["* to a row further", "/ to %"])

    def test_divides_by_no_remainder_of_constants(self):
        self.assertEqual(mutants("return row / (kRows / kParts) % n;"), ["/ to %", "% to /"])
        self.assertEqual(mutants("return row % (8 / kParts);"), ["% to /", "8 plus 1"])


if __name__ == "__main__":
    unittest.main()
