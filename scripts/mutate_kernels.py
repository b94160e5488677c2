#!/usr/bin/env python3
"""Breaks CUDA kernels on purpose, one place at a time, and expects their emulated tests to notice.

    scripts/mutate_kernels.py --build build-dev --test NAME [--test NAME...] [--source FILE...] [--limit N] [--jobs N]

NAME is a target made by quire_emulated_test; NAME_hooks is used too if it exists. A mutant is the kernel source without one
__syncthreads, __syncwarp, cp_async_wait or cp_async_commit, or with one comparison in the condition of an `if`, a loop's `&&` or
a `?:` taken for true (and, for `?:` and guards of return and continue, for false). Only code marked __global__ or QUIRE_DEVICE is
mutated; only one source that includes the mutated file is compiled again, without optimisation of the rest.

Exit status 1 if a mutant survives that tests/kernels/cuda/mutants_allowed.txt does not explain, or if that file explains one that
does not exist or is caught. Its lines: FILE :: MUTATION :: SOURCE LINE :: REASON; `#` begins a comment.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
ALLOWED = ROOT / "tests/kernels/cuda/mutants_allowed.txt"
# Of both back ends: not kernels.
NOT_KERNELS = {"platform.cuh", "intrinsics.cuh", "launch.h", "stream.h", "check.h"}
CALLS = ("__syncthreads", "__syncwarp", "cp_async_wait", "cp_async_commit")
COMPARISON = re.compile(r"(?<![<>\-=])(?:<=|>=|==|!=|<|>)(?![<>=])")


@dataclasses.dataclass(frozen=True)
class Mutant:
    file: str  # from the root
    begin: int  # of the text that is replaced
    end: int
    replacement: str
    what: str  # "without __syncthreads", "true: i < n"
    line: int
    line_text: str

    @property
    def key(self):
        return (self.file, self.what, self.line_text)

    def __str__(self):
        return f"{self.file}:{self.line}: {self.what}   [{self.line_text}]"


# ---- finding places


def blank_comments_and_strings(text):
    """The same text, of the same length, with blanks in place of comments, strings and preprocessor lines."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<![0-9a-zA-Z])\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#[^\n]*', re.S | re.M)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def matching(code, at):
    """The index of the bracket that closes the one at `at`."""
    pairs = {"(": ")", "{": "}", "[": "]"}
    depth, opening, closing = 0, code[at], pairs[code[at]]
    for i in range(at, len(code)):
        if code[i] == opening:
            depth += 1
        elif code[i] == closing:
            depth -= 1
            if depth == 0:
                return i
    raise ValueError("unbalanced brackets")


def device_bodies(code):
    """[begin, end) of the bodies of device functions."""
    bodies = []
    for mark in re.finditer(r"\b(?:QUIRE_DEVICE|__global__)\b", code):
        brace = code.find("{", mark.end())
        semicolon = code.find(";", mark.end())
        if brace < 0 or (0 <= semicolon < brace):
            continue
        # A constructor may have initialisers in braces before its body.
        while True:
            close = matching(code, brace)
            rest = code[close + 1 :].lstrip()
            if rest.startswith((",", "{")):
                brace = code.index("{", close + 1)
            else:
                break
        if not bodies or brace > bodies[-1][1]:
            bodies.append((brace, close))
    return bodies


def conjuncts(code, begin, end):
    """[begin, end) of the parts of a condition between && and || on its outermost level."""
    parts, depth, start, i = [], 0, begin, begin
    while i < end:
        if code[i] in "([{":
            depth += 1
        elif code[i] in ")]}":
            depth -= 1
        elif depth == 0 and code[i : i + 2] in ("&&", "||"):
            parts.append((start, i))
            start = i + 2
            i += 1
        i += 1
    return parts + [(start, end)]


def condition_of_choice(code, question):
    """Where the condition of the `?` at `question` begins."""
    depth = 0
    for i in range(question - 1, -1, -1):
        c = code[i]
        if c in ")]}":
            depth += 1
        elif c in "([{":
            if depth == 0:
                return i + 1
            depth -= 1
        elif depth == 0:
            if c in ";,?:":
                return i + 1
            if c == "=" and code[i - 1] not in "<>=!" and code[i + 1] != "=":
                return i + 1
            if code[i - 5 : i + 1] == "return":
                return i + 1
    return 0


def comparisons(code, begin, end, values):
    """(begin, end, replacement, what) for each comparison of a condition."""
    for a, b in conjuncts(code, begin, end):
        while a < b and code[a].isspace():
            a += 1
        while b > a and code[b - 1].isspace():
            b -= 1
        flat = re.sub(r"<[\w:, ]*>\(", lambda m: " " * (len(m.group()) - 1) + "(", code[a:b])  # f<kN>(x) compares nothing
        if COMPARISON.search(flat):
            for value in values:
                yield a, b, value, f"{value}: " + " ".join(code[a:b].split())


def places(code, begin, end):
    for call in re.finditer(r"\b(" + "|".join(CALLS) + r")\b\s*(?:<[^;()]*>)?\s*\(", code[begin:end]):
        close = matching(code, begin + call.end() - 1)
        yield begin + call.start(), close + 1, "(void)0", f"without {call.group(1)}"
    for condition in re.finditer(r"\bif\s*\(", code[begin:end]):
        first = begin + condition.end()
        close = matching(code, first - 1)
        leaves = re.match(r"\s*\{?\s*(?:return|continue|break)\b", code[close + 1 :]) is not None
        yield from comparisons(code, first, close, ["false"] if leaves else ["true"])
    for choice in re.finditer(r"\?", code[begin:end]):
        question = begin + choice.start()
        yield from comparisons(code, condition_of_choice(code, question), question, ["true", "false"])
    for loop in re.finditer(r"\b(?:for|while)\s*\(", code[begin:end]):
        first = begin + loop.end()
        close = matching(code, first - 1)
        head = code[first:close]
        if head.count(";") == 2:
            first, close = first + head.index(";") + 1, first + head.rindex(";")
        parts = conjuncts(code, first, close)
        if len(parts) > 1:  # a loop that never ends proves nothing; one of two conditions may be a bound
            for a, b in parts[1:]:
                yield from comparisons(code, a, b, ["true"])


def mutants_of(path):
    text = path.read_text()
    code = blank_comments_and_strings(text)
    lines = text.splitlines()
    found = {}
    for begin, end in device_bodies(code):
        for a, b, replacement, what in places(code, begin, end):
            line = text.count("\n", 0, a)
            found[(a, b, replacement)] = Mutant(
                str(path.relative_to(ROOT)), a, b, replacement, what, line + 1, lines[line].strip()
            )
    return [found[place] for place in sorted(found)]


# ---- building and running


class Variant:
    """A test executable as ninja would build it, with one source compiled anew."""

    def __init__(self, build, target):
        self.build = build
        self.target = target
        listing = subprocess.run(
            ["ninja", "-C", str(build), "-t", "commands", target], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        self.compile = {}  # of kernel sources, by path
        for command in listing:
            words = shlex.split(command)
            source = next((words[i + 1] for i, w in enumerate(words) if w == "-c" and i + 1 < len(words)), "")
            if source.endswith(".cu"):
                self.compile[pathlib.Path(source).resolve()] = self.prepared(words)
        link = next(part for part in listing[-1].split("&&") if f"-o tests/" in part)
        self.link = shlex.split(link)
        if "ccache" in self.link[0]:
            del self.link[0]
        self.includes = {source: self.dependencies(source) for source in self.compile}

    @staticmethod
    def prepared(words):
        if os.path.basename(words[0]) == "ccache":
            words = words[1:]
        kept, skip = [], 0
        for word in words:
            if skip:
                skip -= 1
            elif word in ("-MT", "-MF", "-o", "-c"):
                skip = 1
            elif word != "-MD" and not word.startswith("-W"):
                kept.append("-O1" if re.fullmatch(r"-O\d", word) else word)
        return kept + ["-w", "-g0"]

    def dependencies(self, source):
        """All files under the root that a source includes."""
        seen, todo = set(), [source]
        while todo:
            file = todo.pop()
            if file in seen or not file.exists():
                continue
            seen.add(file)
            todo += [ROOT / name for name in re.findall(r'#include "([^"]+)"', file.read_text())]
        return seen

    def unit_for(self, path):
        return next((source for source in sorted(self.compile) if path in self.includes[source]), None)

    def run(self, folder, mutant, gtest_filter, timeout):
        """'caught', 'survived' or 'no program'."""
        source = self.unit_for(ROOT / mutant.file) if mutant else None
        program = folder / self.target
        link = list(self.link)
        link[link.index("-o") + 1] = str(program)
        if mutant:
            text = (ROOT / mutant.file).read_text()
            copy = folder / mutant.file
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text[: mutant.begin] + mutant.replacement + text[mutant.end :])
            unit = copy if source == ROOT / mutant.file else source
            compiler = self.compile[source]
            compiled = folder / f"{self.target}.o"
            command = [compiler[0], f"-I{folder}", *compiler[1:], "-o", str(compiled), "-c", str(unit)]
            if subprocess.run(command, cwd=self.build, capture_output=True).returncode != 0:
                return "no program"
            link.insert(1, str(compiled))  # before the library that has the same symbols
        linked = subprocess.run(link, cwd=self.build, capture_output=True, text=True)
        if linked.returncode != 0:
            raise RuntimeError(f"cannot link {self.target}: {linked.stderr}")
        arguments = [str(program), "--gtest_brief=1", "--gtest_fail_fast", f"--gtest_filter={gtest_filter}"]
        try:
            status = subprocess.run(arguments, cwd=self.build, capture_output=True, timeout=timeout).returncode
        except subprocess.TimeoutExpired:
            status = -1
        finally:
            program.unlink()
        return "survived" if status == 0 else "caught"


class Suite:
    """The plain and the hooks build of a test."""

    def __init__(self, build, target, gtest_filter):
        self.target = target
        self.filter = gtest_filter
        self.variants = [Variant(build, target)]
        targets = subprocess.run(["ninja", "-C", str(build), "-t", "targets", "all"], capture_output=True, text=True).stdout
        if f"/{target}_hooks:" in targets or f"\n{target}_hooks:" in targets:
            self.variants.append(Variant(build, target + "_hooks"))
        self.timeout = 600.0

    def check_unbroken(self):
        for variant in self.variants:
            with tempfile.TemporaryDirectory() as folder:
                start = time.monotonic()
                if variant.run(pathlib.Path(folder), None, self.filter, 600) != "survived":
                    sys.exit(f"{variant.target} fails without any mutation")
                self.timeout = max(20.0, 20 * (time.monotonic() - start)) if variant is self.variants[0] else self.timeout

    def try_mutant(self, mutant):
        order = self.variants
        if mutant.what.startswith("without"):  # a race, most likely
            order = list(reversed(order))
        outcomes = []
        for variant in order:
            with tempfile.TemporaryDirectory() as folder:
                outcomes.append(variant.run(pathlib.Path(folder), mutant, self.filter, self.timeout))
            if outcomes[-1] != "survived":
                break
        return outcomes[-1]


def read_allowed():
    allowed = {}
    if ALLOWED.exists():
        for number, line in enumerate(ALLOWED.read_text().splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            fields = [field.strip() for field in line.split(" :: ")]
            if len(fields) != 4 or not fields[3]:
                sys.exit(f"{ALLOWED}:{number}: not FILE :: MUTATION :: SOURCE LINE :: REASON")
            allowed[tuple(fields[:3])] = fields[3]
    return allowed


def spread(mutants, limit):
    """`limit` of them, from all over."""
    if limit is None or len(mutants) <= limit:
        return mutants
    return [mutants[i * len(mutants) // limit] for i in range(limit)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build-dev", help="build folder (ninja), all built")
    parser.add_argument("--test", action="append", required=True, help="target of quire_emulated_test")
    parser.add_argument("--source", action="append", default=[], help="mutate this file only, from the root")
    parser.add_argument("--filter", default="*", help="gtest filter for the runs")
    parser.add_argument("--limit", type=int, help="try so many mutants per test, spread over all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    options = parser.parse_args()
    build = options.build.resolve()
    if not (build / "build.ninja").exists():
        parser.error(f"{options.build} is no build folder: cmake --preset dev && cmake --build --preset dev")

    work = []
    for target in options.test:
        suite = Suite(build, target, options.filter)
        sources = [ROOT / source for source in options.source] or sorted(
            {
                file
                for files in suite.variants[0].includes.values()
                for file in files
                if file.suffix in (".cu", ".cuh") and file.name not in NOT_KERNELS
            }
        )
        for source in sources:
            if suite.variants[0].unit_for(source) is None:
                sys.exit(f"{target} does not compile {source}")
        mutants = spread([mutant for source in sources for mutant in mutants_of(source)], options.limit)
        work += [(suite, mutant) for mutant in mutants]
        if not options.list:
            suite.check_unbroken()
    if options.list:
        print(*(mutant for _, mutant in work), sep="\n")
        return 0
    if not work:
        sys.exit("nothing to mutate")

    # A mutant is caught if the test of any of the given targets catches it.
    outcomes = collections.defaultdict(list)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for (suite, mutant), outcome in zip(work, pool.map(lambda job: job[0].try_mutant(job[1]), work)):
            outcomes[mutant].append(outcome)
            print(f"{outcome:10} {mutant}", flush=True)

    allowed = read_allowed()
    survivors = [mutant for mutant, results in outcomes.items() if set(results) == {"survived"}]
    unexplained = [mutant for mutant in survivors if mutant.key not in allowed]
    tried_keys = {mutant.key for mutant in outcomes}
    surviving_keys = {mutant.key for mutant in survivors}
    stale = [key for key in allowed if key in tried_keys and key not in surviving_keys]
    if options.limit is None and not options.source:
        files = {mutant.file for mutant in outcomes}
        stale += [key for key in allowed if key[0] in files and key not in tried_keys]
    caught = sum("caught" in results for results in outcomes.values())
    print(f"{len(outcomes)} mutants: {caught} caught, {len(survivors)} survived, {len(unexplained)} of them unexplained")
    for mutant in unexplained:
        print(f"SURVIVED {' :: '.join(mutant.key)}   (line {mutant.line})")
    for key in stale:
        print(f"STALE {' :: '.join(key)} is in {ALLOWED.relative_to(ROOT)}, but is caught or gone")
    return 1 if unexplained or stale else 0


if __name__ == "__main__":
    sys.exit(main())
