"""check_logprobs.py must refuse what is over a limit, and anything that is no result."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "check_logprobs.py")
GOOD = {
    "mean_abs_dlogprob_greedy": 0.02,
    "mean_abs_dlogprob_prompt": 0.01,
    "greedy_mismatches": 0,
    "tokenizer_mismatches": 0,
    "tokens": 100,
}


class CheckLogprobs(unittest.TestCase):
    def status(self, output, bench_status=0, model=__file__):
        """Exit status of the check over a stand-in bench that prints `output`."""
        with tempfile.TemporaryDirectory() as folder:
            bench = os.path.join(folder, "bench")
            with open(bench, "w", encoding="utf-8") as file:
                file.write(f"#!{sys.executable}\nimport sys\nprint({output!r})\nsys.exit({bench_status})\n")
            os.chmod(bench, 0o755)
            command = [sys.executable, SCRIPT, "--bench", bench, "--model", model, "--golden", "g"]
            command += ["--max-greedy", "0.03", "--max-prompt", "0.01"]
            return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode

    def changed(self, **fields):
        return "a table\n" + json.dumps({**GOOD, **fields})

    def test_within_the_limits(self):
        self.assertEqual(self.status(self.changed()), 0)

    def test_each_limit(self):
        self.assertEqual(self.status(self.changed(mean_abs_dlogprob_greedy=0.0301)), 1)
        self.assertEqual(self.status(self.changed(mean_abs_dlogprob_prompt=0.0101)), 1)
        self.assertEqual(self.status(self.changed(mean_abs_dlogprob_prompt=float("nan"))), 1)
        self.assertEqual(self.status(self.changed(greedy_mismatches=1)), 1)
        self.assertEqual(self.status(self.changed(tokenizer_mismatches=1)), 1)
        self.assertEqual(self.status(self.changed(tokens=0)), 1)

    def test_no_result(self):
        self.assertEqual(self.status(""), 1)
        self.assertEqual(self.status("a table and no result"), 1)
        self.assertEqual(self.status("[1]"), 1)
        self.assertEqual(self.status('{"tokens": 5}'), 1)
        self.assertEqual(self.status(self.changed(), bench_status=1), 1)

    def test_absent_model_is_a_skip(self):
        self.assertEqual(self.status(self.changed(), model="/nonexistent"), 77)


if __name__ == "__main__":
    unittest.main()
