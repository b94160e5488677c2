#!/usr/bin/env python3
"""tidy_database.py BUILD OUT: a compile_commands.json for clang-tidy, which would check a source once for each of its commands.

Of the sources that are compiled several times, kernels for one instruction set each and tests' copies of them, the last command of
the library is kept (that of the widest instruction set); all of the library's for sources that name an instruction set in an #if.
With them each header is seen in each of its forms.
"""
import json
import re
import sys
from pathlib import Path


def is_of_library(command):
    return not re.search(r" -o tests/", command["command"])


def wanted(commands):
    of_library = [c for c in commands if is_of_library(c)]
    if not of_library:
        return commands[:1]
    source = Path(commands[0]["directory"], commands[0]["file"])
    names_a_set = re.search(r"^#\s*(if|elif|ifdef).*QUIRE_ISA", source.read_text(encoding="utf-8"), re.MULTILINE)
    return of_library if names_a_set else of_library[-1:]


def main():
    build, out = Path(sys.argv[1]), Path(sys.argv[2])
    by_file = {}
    for command in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        by_file.setdefault(command["file"], []).append(command)
    out.mkdir(parents=True, exist_ok=True)
    kept = [command for commands in by_file.values() for command in wanted(commands)]
    (out / "compile_commands.json").write_text(json.dumps(kept, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
