"""Test programs leave nothing in the folder for temporary files, though processes that they start die in the middle of a test
(tests/support/main.cc). Arguments: PROGRAM FILTER, tests that die in a process of their own, which runs the program anew."""

import os
import subprocess
import sys
import tempfile


def main():
    program, tests = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, TEST_TMPDIR=folder, TMPDIR=folder)
        ended = subprocess.run([program, f"--gtest_filter={tests}"], env=environment, capture_output=True, text=True, check=False)
        left = os.listdir(folder)
    print(ended.stdout)
    if ended.returncode != 0 or "[  PASSED  ] 0 tests" in ended.stdout:
        sys.exit(f"{tests} of {program} do not pass")
    if left:
        sys.exit(f"{program} leaves {left}")


if __name__ == "__main__":
    main()
