#!/usr/bin/env python3
"""Breaks CUDA kernels on purpose, one place at a time, and expects their emulated tests to notice.

    scripts/mutate_kernels.py --build build-dev --test NAME [--source FILE...] [--limit N] [--filter F] [--jobs N]

NAME is a target made by quire_emulated_test; NAME_hooks is used too if it exists. What a mutant is: kernel_mutants.py. For each
source the kernels that include it are compiled once, with all its mutants inside. Every test says which it reaches; a mutant is
then tried with those tests, the quickest first, until one fails. Tests of --filter are asked first; the others have the last word.
With --limit a sample of all sources' mutants is tried (the same for the same --seed), in one program, in which only one of the
kernels that include a source is broken, and with tests of --filter alone.

Exit status 1 if a mutant survives that tests/kernels/cuda/mutants_allowed.txt does not explain, or if that file explains one that
does not exist or is caught. Its lines: FILE :: MUTATION :: SOURCE LINE :: REASON; `#` begins a comment.
"""

import argparse
import concurrent.futures
import os
import pathlib
import random
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time

from kernel_mutants import HEADER, SWITCH, mutants_of, with_all

ROOT = pathlib.Path(__file__).resolve().parent.parent
ALLOWED = ROOT / "tests/kernels/cuda/mutants_allowed.txt"
# Of both back ends: not kernels.
NOT_KERNELS = {"platform.cuh", "intrinsics.cuh", "launch.h", "stream.h", "check.h"}


class Target:
    """How ninja builds a test executable."""

    def __init__(self, build, name):
        self.build, self.name = build, name
        listing = subprocess.run(
            ["ninja", "-C", str(build), "-t", "commands", name], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        self.compile, self.object = {}, {}  # by the source's path
        for command in listing:
            words = shlex.split(command)
            source = next((words[i + 1] for i, w in enumerate(words) if w == "-c" and i + 1 < len(words)), "")
            if source.endswith((".cu", ".cc")) and "/kernels/cuda/" in source or "/tests/simt/" in source:
                path = pathlib.Path(source).resolve()
                self.compile[path] = self.prepared(words)
                self.object[path] = words[words.index("-o") + 1]
        link = next(part for part in listing[-1].split("&&") if "-o tests/" in part)
        self.link = [word for word in shlex.split(link) if "ccache" not in word]
        self.includes = {source: self.dependencies(source) for source in self.compile}

    @staticmethod
    def prepared(words):
        kept, skip = [], 0
        for word in words:
            if skip:
                skip -= 1
            elif word in ("-MT", "-MF", "-o", "-c"):
                skip = 1
            elif word != "-MD" and not word.startswith("-W") and os.path.basename(word) != "ccache":
                kept.append("-O1" if re.fullmatch(r"-O\d", word) else word)
        return kept + ["-w", "-Wno-narrowing", "-g0", "-ftrivial-auto-var-init=pattern"]  # registers nobody set are no zeros

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

    def kernel_sources(self):
        files = {file for source, included in self.includes.items() if source.suffix == ".cu" for file in included}
        return sorted(file for file in files if file.suffix in (".cu", ".cuh") and file.name not in NOT_KERNELS)


class Program:
    """A target with all mutants of some sources inside. `numbered`: (number, mutant); those that do not compile are dropped."""

    def __init__(self, target, sources, numbered, folder, one_unit):
        self.folder, self.target, self.numbered = folder, target, list(numbered)
        self.path = folder / target.name
        units = set()
        for source in sources:
            including = sorted(unit for unit, included in target.includes.items() if source in included)
            if not including:
                sys.exit(f"{target.name} does not compile {source}")
            units.update(including[-1:] if one_unit else including)
        self.units = sorted(units)
        (folder / "mutant.h").write_text(HEADER)
        switch = folder / "switch.cc"
        switch.write_text(f"#define COUNT {max(number for number, _ in numbered) + 1}\n{SWITCH}")
        subprocess.run([target.compile[self.units[0]][0], "-c", str(switch), "-o", str(folder / "switch.o")], check=True)
        copies = {source: folder / source.relative_to(ROOT) for source in sources}
        while wrong := self.build(copies):
            before = len(self.numbered)
            self.numbered = [pair for pair in self.numbered if (pair[1].file, pair[1].line) not in wrong]
            if len(self.numbered) == before:
                sys.exit(f"cannot compile {target.name} with its mutants")
        link = [word for word in target.link if word not in {target.object[unit] for unit in self.units}]
        link[link.index("-o") + 1] = str(self.path)
        link[1:1] = [str(folder / "switch.o"), *(str(self.object_of(unit)) for unit in self.units)]  # before the libraries
        linked = subprocess.run(link, cwd=target.build, capture_output=True, text=True)
        if linked.returncode != 0:
            sys.exit(f"cannot link {target.name}: {linked.stderr}")

    def build(self, copies):
        """The (file, line) that do not compile."""
        for source, copy in copies.items():
            copy.parent.mkdir(parents=True, exist_ok=True)
            name = str(source.relative_to(ROOT))
            copy.write_text(with_all(source.read_text(), [pair for pair in self.numbered if pair[1].file == name]))
        return set().union(*(self.compile(unit, copies.get(unit, unit), copies) for unit in self.units))

    def object_of(self, unit):
        return self.folder / f"{unit.name}.o"

    def compile(self, unit, text, copies):
        words = self.target.compile[unit]
        command = [words[0], f"-I{self.folder}", "-include", str(self.folder / "mutant.h"), *words[1:], "-o", str(self.object_of(unit)),
                   "-c", str(text)]
        run = subprocess.run(command, cwd=self.target.build, capture_output=True, text=True)
        if run.returncode == 0:
            return set()
        wrong = set()
        for source, copy in copies.items():
            lines = re.findall(re.escape(str(copy)) + r":(\d+):", run.stderr)
            wrong |= {(str(source.relative_to(ROOT)), int(line)) for line in lines}
        if not wrong:
            sys.exit(run.stderr)
        return wrong

    def run(self, gtest_filter, number, seconds=0, report=None):
        environment = os.environ | {"MUTANT": str(number)} | ({"MUTANTS_REACHED": str(report)} if report else {})
        arguments = [str(self.path), "--gtest_brief=1", "--gtest_fail_fast", f"--gtest_filter={gtest_filter}"]
        limit = (lambda: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))) if seconds else None
        output = subprocess.DEVNULL
        return subprocess.run(arguments, cwd=self.target.build, env=environment, stdout=output, stderr=output, preexec_fn=limit)

    def explore(self, gtest_filter):
        """[(CPU seconds, test, numbers it reaches)] of the tests, the quickest first."""
        listing = subprocess.run([str(self.path), "--gtest_list_tests", f"--gtest_filter={gtest_filter}"], cwd=self.target.build,
                                 capture_output=True, text=True, check=True).stdout
        tests, suite = [], ""
        for line in listing.splitlines():
            name = line.split("#")[0].rstrip()
            if name.startswith("  "):
                tests.append(suite + name.strip())
            elif name.endswith("."):
                suite = name
        result = []
        for test in tests:
            report = self.folder / "reached"
            start = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            if self.run(test, -1, report=report).returncode != 0:
                sys.exit(f"{self.target.name}: {test} fails without any mutation")
            seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - start
            result.append((seconds, test, {n for n, seen in enumerate(report.read_bytes()) if seen}))
        return sorted(result, key=lambda entry: entry[0])

    def kills(self, number, tests):
        """The first of the tests that fails, or None."""
        for seconds, test, reached in tests:
            if number in reached and self.run(test, number, int(3 + 5 * seconds)).returncode != 0:
                return test
        return None


class Campaign:
    """The mutants of some sources under one test, plain and with hooks."""

    def __init__(self, build, test, sources, options):
        self.options = options
        listed = subprocess.run(["ninja", "-C", str(build), "-t", "targets", "all"], capture_output=True, text=True).stdout
        names = [test] + [test + "_hooks"] * (f"\n{test}_hooks:" in listed and options.hooks != "no")
        if options.hooks == "only":
            names = names[-1:]
        self.folder = tempfile.TemporaryDirectory()
        numbered = list(enumerate((mutant for source in sources for mutant in mutants_of(source, ROOT)), 1))
        if options.only:
            numbered = [pair for pair in numbered if options.only in str(pair[1])]
        self.programs = []
        for name in names:
            folder = pathlib.Path(self.folder.name) / name
            folder.mkdir()
            self.programs.append(Program(Target(build, name), sources, numbered, folder, options.limit is not None))
        compiled = set.intersection(*({number for number, _ in program.numbered} for program in self.programs))
        self.not_compiled = [mutant for number, mutant in numbered if number not in compiled]
        self.numbered = [pair for pair in numbered if pair[0] in compiled]
        self.tests = [program.explore(options.filter) for program in self.programs]
        reached = set().union(*(entry[2] for tests in self.tests for entry in tests))
        self.unreached = [mutant for number, mutant in self.numbered if number not in reached]
        self.numbered = [pair for pair in self.numbered if pair[0] in reached]
        if options.limit is not None and options.limit < len(self.numbered):
            self.numbered = sorted(random.Random(options.seed).sample(self.numbered, options.limit))

    def killer_of(self, number, mutant):
        order = list(zip(self.programs, self.tests))
        if mutant.needs_races:
            order.reverse()
        for program, tests in order:
            if killer := program.kills(number, tests):
                return killer
        if self.options.filter != "*" and self.options.limit is None:  # the tests that were not asked
            for program in self.programs:
                seconds = 600
                if program.run("*", number, seconds).returncode != 0:
                    return "*"
        return None

    def run(self):
        """[(mutant, the test that noticed it or None)]"""
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            for (_, mutant), killer in zip(self.numbered, pool.map(lambda pair: self.killer_of(*pair), self.numbered)):
                print(f"{'caught  ' if killer else 'SURVIVED'} {mutant}" + (f"   by {killer}" if killer else ""), flush=True)
                yield mutant, killer


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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build-dev", help="build folder (ninja), all built")
    parser.add_argument("--test", required=True, help="target of quire_emulated_test")
    parser.add_argument("--source", action="append", default=[], help="break this file only, from the root")
    parser.add_argument("--filter", default="*", help="gtest filter: the tests that are asked first")
    parser.add_argument("--hooks", choices=["yes", "no", "only"], default="yes", help="use the hooks build of the test")
    parser.add_argument("--limit", type=int, help="try so many mutants")
    parser.add_argument("--seed", type=int, default=1, help="of the sample of --limit")
    parser.add_argument("--only", help="only mutants whose description holds this text")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    options = parser.parse_args()
    build = options.build.resolve()
    if not (build / "build.ninja").exists():
        parser.error(f"{options.build} is no build folder: cmake --preset dev && cmake --build --preset dev")

    sources = [ROOT / source for source in options.source] or Target(build, options.test).kernel_sources()
    if options.list:
        print(*(mutant for source in sources for mutant in mutants_of(source, ROOT)), sep="\n")
        return 0
    allowed = read_allowed()
    start = time.monotonic()
    outcomes, unreached, not_compiled = {}, [], []
    sources = [source for source in sources if mutants_of(source, ROOT)]
    for together in [sources] if options.limit is not None else [[source] for source in sources]:
        campaign = Campaign(build, options.test, together, options)
        outcomes |= dict(campaign.run())
        unreached += campaign.unreached
        not_compiled += campaign.not_compiled

    survivors = [mutant for mutant, killer in outcomes.items() if killer is None]
    unexplained = [mutant for mutant in survivors if mutant.key not in allowed]
    tried, surviving = {mutant.key for mutant in outcomes}, {mutant.key for mutant in survivors}
    stale = [key for key in allowed if key in tried and key not in surviving]
    if options.limit is None and options.only is None:
        files = {str(source.relative_to(ROOT)) for source in sources}
        known = tried | {mutant.key for mutant in unreached + not_compiled}
        stale += [key for key in allowed if key[0] in files and key not in known]
    for mutant in unreached if options.limit is None else []:
        print(f"unreached {mutant}")
    print(f"{len(outcomes)} mutants: {len(outcomes) - len(survivors)} caught, {len(survivors)} survived, {len(unexplained)} of them "
          f"unexplained; {len(unreached)} are in constants or not reached, {len(not_compiled)} no program; "
          f"{time.monotonic() - start:.0f} s")
    for mutant in unexplained:
        print(f"SURVIVED {' :: '.join(mutant.key)}   (line {mutant.line})")
    for key in stale:
        print(f"STALE {' :: '.join(key)} is in {ALLOWED.relative_to(ROOT)}, but is caught or gone")
    return 1 if unexplained or stale else 0


if __name__ == "__main__":
    sys.exit(main())
