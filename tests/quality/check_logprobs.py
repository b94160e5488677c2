"""Runs logprob_bench and holds its last line against limits.

Exit status 0: within the limits. 1: over a limit, or the bench failed. 77: the model file is not there.
"""

import argparse
import json
import math
import os
import subprocess
import sys


def violations(result, max_greedy, max_prompt):
    """The limits that `result` breaks, as sentences. Raises KeyError, TypeError or ValueError for a result of another form."""
    found = []
    for field, limit in (
        ("mean_abs_dlogprob_greedy", max_greedy),
        ("mean_abs_dlogprob_prompt", max_prompt),
        ("greedy_mismatches", 0),
        ("tokenizer_mismatches", 0),
    ):
        value = float(result[field])
        if not math.isfinite(value) or value > limit:
            found.append(f"{field} is {value}, over {limit}")
    if int(result["tokens"]) < 1:
        found.append("no token was compared")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", required=True, help="the logprob_bench program")
    parser.add_argument("--model", required=True)
    parser.add_argument("--golden", required=True)
    parser.add_argument("--max-greedy", type=float, required=True, help="limit of mean_abs_dlogprob_greedy")
    parser.add_argument("--max-prompt", type=float, required=True, help="limit of mean_abs_dlogprob_prompt")
    arguments = parser.parse_args()

    if not os.path.exists(arguments.model):
        print(f"no {arguments.model}: scripts/fetch_model.sh brings it")
        return 77
    bench = subprocess.run(
        [arguments.bench, "--model", arguments.model, "--golden", arguments.golden], stdout=subprocess.PIPE, text=True, check=False
    )
    print(bench.stdout, end="")
    if bench.returncode != 0:
        print(f"logprob_bench failed with status {bench.returncode}")
        return 1
    try:
        found = violations(json.loads(bench.stdout.splitlines()[-1]), arguments.max_greedy, arguments.max_prompt)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        print(f"the last line of logprob_bench is not its JSON result: {error!r}")
        return 1
    for violation in found:
        print(f"FAILED: {violation}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
