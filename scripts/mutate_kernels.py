#!/usr/bin/env python3
"""Breaks CUDA kernels on purpose, one place at a time, and expects their emulated tests to notice.

    scripts/mutate_kernels.py --build build-dev --test NAME... [--source FILE...] [--limit N] [--only TEXT] [--results FILE]

NAME is a target made by quire_emulated_test; NAME_hooks is used too if it exists. What a mutant is: kernel_mutants.py. The kernels
that include a source are compiled once per program, with all its mutants inside. Every test says which it reaches; a mutant is
tried with those tests, first the quick and those that noticed others, until one fails. Programs are asked one after the other, each
about what those before it did not notice; barriers, waits and commits are asked of the hooks alone where there are hooks.

With --patience S a mutant is shown to the quickest tests that reach it, to S CPU seconds of them in each program, and not to the
others. With --limit a sample of all sources' mutants is tried (by a hash of --seed and what a mutant changes, so that an edit elsewhere
picks no other; without those that mutants_allowed.txt explains), in one program, in which only one of the kernels that include a
source is broken. With --results FILE what was noticed is kept there and not tried again while its source is the same: a run that
was stopped goes on, and after new tests were written only the survivors are tried.

Exit status 1 if a mutant survives that tests/kernels/cuda/mutants_allowed.txt does not explain, or if that file explains one that
does not exist or is caught. Its lines: FILE :: MUTATION :: SOURCE LINE :: REASON, one for each mutant; `#` begins a comment.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import resource
import shlex
import signal
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

    def units(self, sources, options):
        """What is compiled anew for mutants of the sources."""
        units = set()
        for source in sources:
            including = sorted(unit for unit, included in self.includes.items() if source in included)
            if options.unit:
                including = [unit for unit in including if unit.name in options.unit]
            units.update(including if options.limit is None or options.unit else including[-1:])
        return sorted(units)


@dataclasses.dataclass
class Test:
    name: str
    seconds: float  # of CPU
    reached: frozenset  # numbers of mutants
    kills: int = 0


class Program:
    """A target with all mutants of some sources inside. `numbered`: (number, mutant); those that do not compile are dropped."""

    def __init__(self, target, sources, numbered, folder, options):
        self.folder, self.target, self.numbered = folder, target, list(numbered)
        self.path, self.options = folder / target.name, options
        self.units = target.units(sources, options)
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
        self.tests = self.explore()

    def build(self, copies):
        """The (file, line) that do not compile."""
        for source, copy in copies.items():
            copy.parent.mkdir(parents=True, exist_ok=True)
            name = str(source.relative_to(ROOT))
            copy.write_text(with_all(source.read_text(), [pair for pair in self.numbered if pair[1].file == name]))
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            return set().union(*pool.map(lambda unit: self.compile(unit, copies.get(unit, unit), copies), self.units))

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
        """(whether it passed, CPU seconds). A test ends with its first failure."""
        environment = os.environ | {"MUTANT": str(number)} | ({"MUTANTS_REACHED": str(report)} if report else {})
        environment |= {"RC_PARAMS": "seed=1 noshrink=1", "TEST_TMPDIR": str(self.folder)}  # a broken test removes nothing
        arguments = [str(self.path), "--gtest_brief=1", "--gtest_break_on_failure", f"--gtest_filter={gtest_filter}"]

        def limit():
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if seconds:
                resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

        output = subprocess.DEVNULL
        process = subprocess.Popen(arguments, cwd=self.target.build, env=environment, stdout=output, stderr=output, preexec_fn=limit)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
        return status == 0, usage.ru_utime + usage.ru_stime

    def explore(self):
        """Runs every test unbroken."""
        listing = subprocess.run([str(self.path), "--gtest_list_tests", f"--gtest_filter={self.options.filter}"], cwd=self.target.build,
                                 capture_output=True, text=True, check=True).stdout
        names, suite = [], ""
        for line in listing.splitlines():
            name = line.split("#")[0].rstrip()
            if name.startswith("  "):
                names.append(suite + name.strip())
            elif name.endswith("."):
                suite = name

        def explored(i):
            report = self.folder / f"reached{i}"
            passed, seconds = self.run(names[i], -1, report=report)
            if not passed:
                sys.exit(f"{self.target.name}: {names[i]} fails without any mutation")
            return Test(names[i], seconds, frozenset(n for n, seen in enumerate(report.read_bytes()) if seen))

        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            return sorted(pool.map(explored, range(len(names))), key=lambda test: test.seconds)

    def reached(self):
        return frozenset().union(*(test.reached for test in self.tests))

    def killer_of(self, number):
        """The first test that fails, or None."""
        left, asked = self.options.patience, []
        for test in self.tests:
            if number in test.reached and left > 0:
                asked.append(test)
                left -= test.seconds
        for test in sorted(asked, key=lambda test: test.seconds / (1 + test.kills)):
            if not self.run(test.name, number, int(2 + 4 * test.seconds))[0]:
                test.kills += 1
                return test.name
        return None


class Results:
    """What was noticed, and by what, on disk if a file is given."""

    def __init__(self, path):
        self.path, self.killers = path, {}
        if path and path.exists():
            for line in path.read_text().splitlines():
                *place, killer = json.loads(line)
                self.killers[tuple(place)] = killer

    @staticmethod
    def place(mutant):
        return (mutant.file, hashlib.sha1((ROOT / mutant.file).read_bytes()).hexdigest()[:12], mutant.line, mutant.what)

    def killer_of(self, mutant):
        return self.killers.get(self.place(mutant))

    def add(self, mutant, killer):
        self.killers[self.place(mutant)] = killer
        if self.path:
            with self.path.open("a") as file:
                file.write(json.dumps([*self.place(mutant), killer]) + "\n")


class Campaign:
    """The mutants of some sources, shown to one program after the other."""

    def __init__(self, build, sources, results, options):
        self.build, self.sources, self.results, self.options = build, sources, results, options
        self.numbered = list(enumerate((mutant for source in sources for mutant in mutants_of(source, ROOT)), 1))
        if options.only:
            self.numbered = [pair for pair in self.numbered if re.search(options.only, str(pair[1]))]
        self.reached, self.not_compiled, self.sample = set(), set(), None

    def programs(self):
        """(name, whether the next one is its build with hooks)."""
        listed = subprocess.run(["ninja", "-C", str(self.build), "-t", "targets", "all"], capture_output=True, text=True).stdout
        for test in self.options.test:
            has_hooks = f"\n{test}_hooks:" in listed
            if not has_hooks or self.options.hooks != "only":
                yield test, has_hooks
            if has_hooks and self.options.hooks != "no":
                yield test + "_hooks", False

    def run(self):
        left = [pair for pair in self.numbered if self.results.killer_of(pair[1]) is None]
        for name, has_hooks in self.programs():
            asked = [pair for pair in left if not (has_hooks and pair[1].needs_races)]
            if asked:
                caught = self.ask(name, asked)
                left = [pair for pair in left if pair[0] not in caught and (self.sample is None or pair[0] in self.sample)]

    def ask(self, name, asked):
        target = Target(self.build, name)
        if not target.units(self.sources, self.options):
            return set()
        with tempfile.TemporaryDirectory() as folder:
            program = Program(target, self.sources, asked, pathlib.Path(folder), self.options)
            compiled = {number for number, _ in program.numbered}
            self.not_compiled |= {number for number, _ in asked if number not in compiled}
            reached = program.reached()
            tried = [pair for pair in program.numbered if pair[0] in reached]
            if self.options.limit is not None and self.sample is None:
                allowed = read_allowed()
                tried = [pair for pair in tried if pair[1].key not in allowed]
                tried = sorted(sorted(tried, key=self.draw)[: self.options.limit])
                self.sample = {number for number, _ in tried}
            self.reached |= {number for number, _ in tried}
            caught = set()
            with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
                for (number, mutant), killer in zip(tried, pool.map(lambda pair: program.killer_of(pair[0]), tried)):
                    print(f"{'caught  ' if killer else 'survives'} {mutant}   {'by ' + killer if killer else name}", flush=True)
                    if killer:
                        self.results.add(mutant, killer)
                        caught.add(number)
            return caught

    def draw(self, pair):
        return hashlib.sha1(repr((self.options.seed, pair[1].key)).encode()).digest()

    def outcomes(self):
        """[(mutant, "caught", "survived", "unreached" or "no program")]"""
        for number, mutant in self.numbered:
            if self.results.killer_of(mutant) is not None:
                yield mutant, "caught"
            elif number in self.reached:
                yield mutant, "survived"
            elif number in self.not_compiled:
                yield mutant, "no program"
            elif self.options.limit is None:
                yield mutant, "unreached"


def read_allowed():
    """How many mutants of a key are explained."""
    allowed = collections.Counter()
    for number, line in enumerate(ALLOWED.read_text().splitlines() if ALLOWED.exists() else [], 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split(" :: ")]
        if len(fields) != 4 or not fields[3]:
            sys.exit(f"{ALLOWED}:{number}: not FILE :: MUTATION :: SOURCE LINE :: REASON")
        allowed[tuple(fields[:3])] += 1
    return allowed


def report(outcomes, sources):
    """Prints what came out; whether all is as tests/kernels/cuda/mutants_allowed.txt says."""
    allowed, seen = read_allowed(), collections.defaultdict(collections.Counter)
    for mutant, outcome in outcomes:
        seen[mutant.key][outcome] += 1
        if outcome in ("unreached", "no program"):
            print(f"{outcome} {mutant}")
    for file in sorted({mutant.file for mutant, _ in outcomes}):
        counts = collections.Counter(outcome for mutant, outcome in outcomes if mutant.file == file)
        explained = sum(min(allowed[key], seen[key]["survived"]) for key in seen if key[0] == file)
        print(f"{file}: {counts['caught'] + counts['survived']} mutants: {counts['caught']} caught, {counts['survived']} survived, "
              f"{explained} of them explained; {counts['unreached']} are in constants or not reached, {counts['no program']} no program")
    good = True
    for mutant, outcome in outcomes:
        if outcome == "survived" and seen[mutant.key]["survived"] > allowed[mutant.key]:
            print(f"SURVIVED {' :: '.join(mutant.key)}   (line {mutant.line})")
            good = False
    existing = collections.Counter(mutant.key for source in sources for mutant in mutants_of(source, ROOT))
    for key, count in allowed.items():
        if ROOT / key[0] in sources and count > existing[key] - seen[key]["caught"]:
            print(f"STALE {' :: '.join(key)} is in {ALLOWED.relative_to(ROOT)}, but is caught or gone")
            good = False
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build-dev", help="build folder (ninja), all built")
    parser.add_argument("--test", action="append", required=True, help="target of quire_emulated_test")
    parser.add_argument("--source", action="append", default=[], help="break this file only, from the root")
    parser.add_argument("--together", action="store_true", help="all sources' mutants in one program")
    parser.add_argument("--unit", action="append", default=[], help="name of a kernel to break; the others that include it are not")
    parser.add_argument("--filter", default="*", help="gtest filter: the tests that are asked")
    parser.add_argument("--hooks", choices=["yes", "no", "only"], default="yes", help="use the hooks build of the test; with no, what only it can notice is not asked")
    parser.add_argument("--patience", type=float, default=float("inf"), help="CPU seconds of tests that a mutant is shown to")
    parser.add_argument("--limit", type=int, help="try so many mutants")
    parser.add_argument("--seed", type=int, default=1, help="of the sample of --limit")
    parser.add_argument("--only", help="only mutants whose description matches this expression")
    parser.add_argument("--results", type=pathlib.Path, help="keep what was noticed here, and try the rest")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    options = parser.parse_args()
    build = options.build.resolve()
    if not (build / "build.ninja").exists():
        parser.error(f"{options.build} is no build folder: cmake --preset dev && cmake --build --preset dev")

    for source in options.source:
        if not (ROOT / source).is_file():
            parser.error(f"--source {source}: there is no such file")
    known = subprocess.run(["ninja", "-C", build, "-t", "targets", "all"], capture_output=True, text=True, check=True).stdout
    for test in options.test:
        if f"/{test}: " not in known:
            parser.error(f"--test {test}: there is no such program in {options.build}")
    sources = [ROOT / source for source in options.source] or Target(build, options.test[0]).kernel_sources()
    sources = [source for source in sources if mutants_of(source, ROOT)]
    if options.list:
        print(*(mutant for source in sources for mutant in mutants_of(source, ROOT)), sep="\n")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as ^C: temporary folders are removed
    start, results, outcomes = time.monotonic(), Results(options.results), []
    for together in [sources] if options.limit is not None or options.together else [[source] for source in sources]:
        campaign = Campaign(build, together, results, options)
        campaign.run()
        outcomes += campaign.outcomes()
    if not outcomes:
        sys.exit("no mutant is chosen" + (f": none matches --only {options.only}" if options.only else ""))
    good = report(outcomes, sources)
    print(f"{time.monotonic() - start:.0f} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
