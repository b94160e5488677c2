"""Reads the symbols of objects compiled for one instruction set and fails on any that another object could be given instead.

The linker keeps one copy of an inline function that several objects define. If the copy of an AVX2 object were kept for portable
code, that code would crash on a machine without AVX2. So such objects define functions only in their own namespace.
usage: isa_symbols_test.py NM ISA OBJECT...
"""
import subprocess
import sys

# Kinds of nm: weak and unique symbols can be merged, global functions and data could clash.
DEFINED = set("TtWwVvuDdBbRrGgSsi")
LOCAL = set("tdbrgs")
# References to the exception handler and marks of the sanitizers are data, the same for every instruction set.
HARMLESS = ("DW.ref.", "__odr_asan", "__asan_", "__ubsan", "__tsan")


def foreign_symbols(nm, isa, path):
    lines = subprocess.run([nm, path], capture_output=True, text=True, check=True).stdout.splitlines()
    namespace = f"3cpu{len(isa)}{isa}"  # as mangled
    found = []
    for line in lines:
        kind, name = line[17:].split(" ", 1)
        if kind in DEFINED and kind not in LOCAL and namespace not in name and not name.startswith(HARMLESS):
            found.append(f"{path}: {kind} {name}")
    return found, len(lines)


def main():
    nm, isa, *objects = sys.argv[1:]
    if not objects:
        sys.exit("no objects given")
    found, total = [], 0
    for path in objects:
        more, count = foreign_symbols(nm, isa, path)
        found += more
        total += count
    print(f"{total} symbols in {len(objects)} objects, {len(found)} outside quire::cpu::{isa}")
    for line in found:
        print(line)
    sys.exit(1 if found or total == 0 else 0)


if __name__ == "__main__":
    main()
