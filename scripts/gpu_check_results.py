#!/usr/bin/env python3
"""results.json of scripts/gpu_check.sh: gpu_check_results.py FOLDER PART:LIMIT...

FOLDER has `ended`, a line "PART STATUS SECONDS" for each part that ran, and the parts' logs. Of each part the result has how
it ended, the JSON lines of its log (benchmarks, PyTorch), ctest's counts, the sanitizer's verdicts and the log's last lines.
Whatever stands in a log, the result is strict JSON. The exit status is 0 if some part passed and none failed."""
import datetime
import json
import math
import os
import re
import subprocess
import sys

SKIPPED, TIMED_OUT, KILLED = 77, 124, 137  # timeout(1) ends with the latter two
LAST_LINES, LINE_LENGTH = 20, 400
DEEPEST = 20  # nesting of a benchmark's line: readers of JSON have limits, this one too
# "  3/374 Test   #3: Suite.Name/0  # GetParam() = 1 ....***Failed    0.01 sec"
CTEST_LINE = re.compile(r"^ *\d+/\d+ Test +#\d+: (.*?) \.{3,}(?:\*\*\*| *)(.*?) +\d+\.\d+ sec")
VERDICT = re.compile(r"^((?:mem|race|init)check \S+): (nothing found|FAILED)$")


def lines_of(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().split("\n")
    except FileNotFoundError:
        return []


def finite(text):
    number = float(text)
    return number if math.isfinite(number) else None


def nesting(value):
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(nesting, inner), default=0)


def json_lines(lines):
    """The objects among the lines. JSON has no NaN and no infinity: they become null."""
    objects = []
    for line in lines:
        if line.startswith("{"):
            try:
                value = json.loads(line, parse_float=finite, parse_constant=lambda _: None)
                if nesting(value) <= DEEPEST:
                    objects.append(value)
            except (ValueError, RecursionError):  # of a program that was stopped, or of no benchmark
                pass
    return objects


def ctest_counts(lines):
    """By the tests' own lines, which are there when ctest was stopped, too."""
    counts = {"passed": 0, "failed": 0, "skipped": 0, "failed_tests": []}
    for name, end in (match.groups() for match in map(CTEST_LINE.match, lines) if match):
        kind = "passed" if end == "Passed" else "skipped" if end.startswith(("Skipped", "Not Run (Disabled)")) else "failed"
        counts[kind] += 1
        if kind == "failed":
            counts["failed_tests"].append(name.strip())
    return counts


def verdicts(lines):
    found = [match.groups() for match in map(VERDICT.match, lines) if match]
    return {"clean": sum(end != "FAILED" for _, end in found), "failed": [name for name, end in found if end == "FAILED"]}


def state(status, seconds, limit):
    if status == TIMED_OUT or (status == KILLED and seconds >= limit):
        return "timed out"
    return {0: "passed", SKIPPED: "skipped"}.get(status, "failed")


def part(folder, name, limit, ended):
    result = {"part": name, "status": "not run", "limit_s": limit}
    if name not in ended:
        return result
    status, seconds = ended[name]
    lines = lines_of(os.path.join(folder, name + ".log"))
    text = [line.rstrip()[:LINE_LENGTH] for line in lines if line.strip() and not line.startswith("{")]
    result.update(status=state(status, seconds, limit), exit_status=status, seconds=seconds)
    if objects := json_lines(lines):
        result["results"] = objects
    if name == "tests":
        result["tests"] = ctest_counts(lines)
    if name == "sanitizer":
        result["verdicts"] = verdicts(lines)
    result["last_lines"] = text[-LAST_LINES:]
    return result


def revision():
    try:
        return subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main(folder, *limits):
    ended = {}
    for line in lines_of(os.path.join(folder, "ended")):
        if line:
            name, status, seconds = line.split()
            ended[name] = int(status), int(seconds)
    parts = [part(folder, name, int(limit), ended) for name, limit in (each.split(":") for each in limits)]
    result = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "revision": revision(),
        "gpu": next(iter(lines_of(os.path.join(folder, "gpu.log"))), "") or "unknown",
        "parts": parts,
    }
    path = os.path.join(folder, "results.json")
    with open(path + ".new", "w", encoding="ascii") as file:
        json.dump(result, file, indent=1, allow_nan=False)
        file.write("\n")
    os.replace(path + ".new", path)
    for each in parts:
        why = f" ({each['last_lines'][-1]})" if each["status"] == "skipped" and each["last_lines"] else ""
        print(f"{each['part']}: {each['status']}{why}")
    print(f"results in {path}")
    states = [each["status"] for each in parts]
    return 0 if "passed" in states and not {"failed", "timed out", "not run"} & set(states) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
