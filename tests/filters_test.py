"""Every part of the filters of ASAN, TSAN and FAR (cmake/QuireTargets.cmake) names tests that exist: a renamed test would leave a
sanitizer's suite, or those that a GPU runs one at a time, without a word. Arguments: PROGRAM=FILTER."""

import subprocess
import sys


def names_a_test(program, pattern):
    command = [program, "--gtest_list_tests", f"--gtest_filter={pattern}"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return any(line.startswith("  ") for line in listed.splitlines())


def main():
    wrong = 0
    for argument in sys.argv[1:]:
        program, _, filters = argument.partition("=")
        for pattern in filters.replace("-", ":", 1).split(":"):
            if pattern not in ("", "*") and not names_a_test(program, pattern):
                print(f"{program}: no test is named {pattern}")
                wrong += 1
    print(f"{len(sys.argv) - 1} filters, {wrong} parts without a test")
    return 1 if wrong or len(sys.argv) < 2 else 0


if __name__ == "__main__":
    sys.exit(main())
