#!/usr/bin/env python3
"""Which places scripts/kernel_mutants.py breaks, and which it leaves out since nothing would come of it; and that the table of
docs/kernels.md explains as many mutants of a file as tests/kernels/cuda/mutants_allowed.txt does."""

import collections
import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
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

    def test_leaves_out_what_orders_and_what_masks(self):
        self.assertEqual(mutants("cp_async_wait<kN>();"), ["without cp_async_wait", "waits for a group fewer"])
        self.assertEqual(mutants("__syncwarp(); mask(scores, row, positions, n);"), ["without __syncwarp", "without mask"])


class Table(unittest.TestCase):
    """`file` [*] | tests | mutants | noticed | explained"""

    def setUp(self):
        row = re.compile(r"^\| `([\w.]+)`(?: \*)? \| [^|]* \| (\d+) \| (\d+) \| (\d+) \|$", re.M)
        self.rows = {row[0]: tuple(map(int, row[1:])) for row in row.findall((ROOT / "docs/kernels.md").read_text())}

    def test_explains_what_the_list_explains(self):
        lines = (ROOT / "tests/kernels/cuda/mutants_allowed.txt").read_text().splitlines()
        files = [pathlib.PurePath(line.split(" :: ")[0]) for line in lines if line.strip() and not line.startswith("#")]
        listed = collections.Counter(file.name for file in files if file.parent.name == "cuda" and file.parts[0] == "kernels")
        self.assertEqual({file: explained for file, (_, _, explained) in self.rows.items() if explained}, dict(listed))

    def test_adds_up(self):
        for file, (number, noticed, explained) in self.rows.items():
            with self.subTest(file):
                self.assertEqual(number, noticed + explained)
                self.assertLessEqual(number, len(mutants_of(ROOT / "kernels/cuda" / file, ROOT)))


if __name__ == "__main__":
    unittest.main()
