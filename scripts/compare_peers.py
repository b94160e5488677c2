#!/usr/bin/env python3
"""Measures quire beside llama.cpp and OpenVINO GenAI; started by scripts/compare_peers.sh, which builds and installs them.

For each cell the programs take turns, one run each in a round, and the table has the median of the rounds, quire's ratio to the
faster peer (median and range of the rounds' ratios) and a verdict. The load of other processes is taken from /proc/stat, sampled
before every round and added up over it: over the limit the comparison waits, measures the round again, then refuses.
docs/benchmarks.md says what each side does in each cell.
"""
import contextlib
import datetime
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import time

import peers
from peer_options import CELLS, DECODE, MODELS, PREFILL, SERVE, parse_arguments, targets_needed  # pylint: disable=unused-import
from peer_table import Unreadable, is_figure, markdown

SHARED = {"streams": 16, "prompt_tokens": 1100, "prefix": 1000, "output_tokens": 64}

# Ratios to the faster peer that quire has set itself: at least so much of a rate, at most so much of a time.
TARGETS = {
    ("smollm2", "prefill-512"): 1.5, ("gemma3", "prefill-512"): 2.0,
    ("smollm2", "decode-1x128"): 1.8, ("gemma3", "decode-1x128"): 1.5,
    ("smollm2", "decode-8x128"): 3.0, ("gemma3", "decode-8x128"): 3.0,
    ("smollm2", "decode-32x128"): 4.0, ("gemma3", "decode-32x128"): 4.0,
    ("smollm2", "shared-prefix"): 0.5, ("gemma3", "shared-prefix"): 0.5,
    ("smollm2", "serve-80 TTFT p99"): 0.3, ("gemma3", "serve-80 TTFT p99"): 0.3,
}


class Busy(Exception):
    """Other processes use the cores."""


# ---- other load

def cpu_times():
    """Busy and all jiffies of all cores since boot."""
    with open("/proc/stat", encoding="ascii") as file:
        fields = [int(field) for field in file.readline().split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)  # without idle and waiting for disks


def foreign_load(seconds=2.0):
    """Share of all cores that others use while this program sleeps, in per cent."""
    busy, total = cpu_times()
    time.sleep(seconds)
    busy_after, total_after = cpu_times()
    return 100.0 * (busy_after - busy) / max(total_after - total, 1)


def own_cpu_seconds():
    """Processor time of this process and of everything that it started: ended children and live descendants."""
    parents, seconds = {}, {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                    fields = file.read().rsplit(")", 1)[1].split()  # a name may hold spaces
            except OSError:
                continue  # ended meanwhile
            parents[int(entry)] = int(fields[1])
            seconds[int(entry)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    total = 0.0
    for process in seconds:
        ancestor = process
        while ancestor not in (os.getpid(), 0):
            ancestor = parents.get(ancestor, 0)
        total += seconds[process] if ancestor else 0.0
    return total


class LoadWatch:
    """What other processes, and a hypervisor that withholds the cores, took since this was made."""

    def __init__(self):
        self.own, (self.busy, self.total) = own_cpu_seconds(), cpu_times()

    def percent_of_cores(self):
        busy, total = cpu_times()
        own = (own_cpu_seconds() - self.own) * os.sysconf("SC_CLK_TCK")
        return max(0.0, 100.0 * (busy - self.busy - own) / max(total - self.total, 1))


def wait_for_quiet(limit, force, patience=6):
    """The load seen last. Raises Busy if it stays over the limit."""
    for attempt in range(patience):
        load = foreign_load()
        if load <= limit or force:
            return load
        print(f"  other processes use {load:.0f} % of the cores; waiting", file=sys.stderr)
        time.sleep(5 if attempt < patience - 1 else 0)
    raise Busy(f"other processes use {load:.0f} % of the cores, over the limit of {limit:g} %: stop them, or measure with --force "
               "and publish nothing of it")


# ---- cells

def measure_once(cell, program, seed, options):
    """{name of the figure: value} of one run."""
    if cell in PREFILL:
        return {cell: program.prefill(PREFILL[cell], seed)}
    if cell in DECODE:
        streams, context = DECODE[cell]
        output_tokens = 16 if options.quick else 64 if streams == 1 else 32
        return {cell: program.decode(streams, context, output_tokens, seed)}
    if cell == "shared-prefix":
        return {cell: program.shared(seed=seed, **SHARED)}
    try:
        report = checked(peers.serve(program.serve_target(), SERVE[cell] * options.capacity, options.requests, seed))
    finally:
        program.close()
    program.served_by(report)
    return {f"{cell} TTFT p50": report["ttft_ms"]["p50"], f"{cell} TTFT p99": report["ttft_ms"]["p99"],
            f"{cell} tokens/s": report["output_tokens_per_s"]}


def checked(report):
    """The report, if every request got the answer that the others' got: as long as asked for."""
    for what in ("failed", "short_answers"):
        if report["requests"][what] > 0:
            raise RuntimeError(f"{report['requests'][what]} requests are counted under {what}")
    return report


def is_time(figure):
    return "TTFT" in figure or figure == "shared-prefix"


def unit(figure):
    return "ms" if "TTFT" in figure else "s" if is_time(figure) else "tokens/s"


@contextlib.contextmanager
def expected_answers(name):
    """Makes of JSON that is not as expected, another version's perhaps, a failure of the program."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise RuntimeError(f"{name} answered something else than expected: {error!r}") from error


def measure_round(cell, programs, absent, seed, options):
    """{figure: {program: value}} of one run of each program that is not absent; adds to `absent` those that cannot."""
    figures = {}
    for program in programs:
        if program.name in absent:
            continue
        try:
            with expected_answers(program.name):
                measured = measure_once(cell, program, seed, options)
        except peers.NotAvailable as reason:
            absent[program.name] = str(reason)
            continue
        for figure, value in measured.items():
            if not is_figure(value):
                raise RuntimeError(f"{program.name} measured {value!r} in {figure}")
            figures.setdefault(figure, {})[program.name] = value
    return figures


def measure_quiet_round(cell, programs, absent, seed, options, patience=3):
    """measure_round and the load of others meanwhile, measured again if that was over the limit. Raises Busy if it stays so."""
    for _ in range(patience):
        before = wait_for_quiet(options.max_foreign_load, options.force)
        watch = LoadWatch()
        figures = measure_round(cell, programs, absent, seed, options)
        load = max(before, watch.percent_of_cores())
        if load <= options.max_foreign_load or options.force:
            return figures, load
        print(f"  other processes used {load:.0f} % of the cores during a round of {cell}; measuring it again", file=sys.stderr)
    raise Busy(f"other processes used {load:.0f} % of the cores during {patience} rounds of {cell}, over the limit of "
               f"{options.max_foreign_load:g} %: stop them, or measure with --force and publish nothing of it")


def measure_cell(cell, programs, options):
    """{figure: {program: [value of each round]}}, {program: why it has none}, and the greatest load of others in per cent."""
    values, absent, loads = {}, {}, []
    for number in range(options.rounds):
        first = number % len(programs)  # each is first, and after each of the others, in some round
        order = programs[first:] + programs[:first]
        figures, load = measure_quiet_round(cell, order, absent, 1 + number, options)
        loads.append(load)
        for figure, by_program in figures.items():
            for name, value in by_program.items():
                values.setdefault(figure, {}).setdefault(name, []).append(value)
    return values, absent, max(loads)


# ---- verdicts

def judge(figure, model, by_program):
    """Ratio to the faster peer, its range over the rounds, and a verdict."""
    ours = by_program["quire"]
    rivals = {name: statistics.median(v) for name, v in by_program.items() if name != "quire"}
    if not rivals:
        return {"verdict": "no peer to compare with"}
    best = min if is_time(figure) else max
    rival = best(rivals, key=rivals.get)
    ratios = [own / peer for own, peer in zip(ours, by_program[rival])]
    ratio, target = statistics.median(ratios), TARGETS.get((model, figure))
    better = (lambda x, y: x <= y) if is_time(figure) else (lambda x, y: x >= y)
    if min(ratios) <= 1 <= max(ratios) and len(ratios) > 1:
        verdict = "level: the rounds disagree"
    else:
        verdict = "ahead" if better(ratio, 1) else "behind"
    if target is not None:
        verdict += f", target {target:g}x " + ("met" if better(ratio, target) else "missed")
    return {"faster_peer": rival, "ratio": ratio, "ratio_min": min(ratios), "ratio_max": max(ratios), "target": target,
            "verdict": verdict}


def rows_of(cell, model, values, absent, load):
    rows = []
    for figure, by_program in values.items():
        rows.append({"model": model, "cell": cell, "figure": figure, "unit": unit(figure), "rounds": by_program,
                     "medians": {name: statistics.median(v) for name, v in by_program.items()}, "absent": absent,
                     "foreign_load_percent": load, **judge(figure, model, by_program)})
    return rows


def show(row):
    medians = ", ".join(f"{name} {value:.4g}" for name, value in row["medians"].items())
    line = f"{row['model']:<12} {row['figure']:<18} {row['unit']:<9} {medians}"
    if "ratio" in row:
        line += f"; {row['ratio']:.2f}x {row['faster_peer']} ({row['ratio_min']:.2f} to {row['ratio_max']:.2f})"
    print(f"{line}: {row['verdict']}")
    for name, reason in row["absent"].items():
        print(f"{'':<12} {name}: {reason}")


def versions_seen(rows):
    """{program: version}; a program tells it once it has loaded a model, which it may refuse for the last one."""
    versions = {}
    for row in rows:
        versions.update({name: version for name, version in row["versions"].items() if version})
    return versions


# ---- the run

def model_path(name):
    path = os.path.join(peers.ROOT, "models", MODELS[name])
    if name != "smollm2-f16":
        if not os.path.exists(path):
            raise Unreadable(f"there is no {path}: scripts/fetch_model.sh {name} brings it")
        return path
    copy = os.path.join(peers.PEERS, MODELS[name])
    if not os.path.exists(copy):
        print("making the F16 model", file=sys.stderr)
        peers.run([sys.executable, os.path.join(peers.ROOT, "scripts", "make_f16_model.py"), model_path("smollm2"), copy])
    return copy


def measure_capacity(llama, options):
    """Requests a second that llama-server answers to 16 streams."""
    wait_for_quiet(options.max_foreign_load, options.force)
    try:
        with expected_answers(llama.name):
            capacity = checked(peers.serve(llama.serve_target(), None, options.requests, seed=99))["requests_per_s"]
    finally:
        llama.close()
    if not is_figure(capacity):
        raise RuntimeError(f"{llama.name} answered {capacity!r} requests/s")
    return capacity


def compare(options, keep=lambda rows: None):
    """The rows, and whether a cell failed. What is there goes to keep() after every cell, for the next may end the run."""
    rows, failed = [], False
    paths = {model: model_path(model) for model in options.models}  # all of them, before hours are spent on the first
    for model, path in paths.items():
        programs = [peers.Quire(path, options.threads), peers.LlamaCpp(path, options.threads), peers.OpenVino(path, options.threads)]
        with contextlib.ExitStack() as stack:
            for program in programs:
                stack.callback(program.close)
            options.capacity = None
            for cell in options.cells:
                try:
                    if cell in SERVE and options.capacity is None:
                        options.capacity = measure_capacity(programs[1], options)
                        print(f"{model:<12} capacity of llama-server: {options.capacity:.3g} requests/s")
                    new_rows = rows_of(cell, model, *measure_cell(cell, programs, options))
                except (RuntimeError, OSError, http.client.HTTPException, subprocess.SubprocessError) as error:
                    print(f"{model:<12} {cell:<18} failed, no figure: {error}")
                    failed = True
                else:
                    for row in new_rows:
                        row["versions"] = {program.name: program.version for program in programs}
                        show(row)
                    rows.extend(new_rows)
                keep(rows)
    return rows, failed


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown")


def end_what_was_started():
    """Lets the signals that ask this program to end do so by an exception, which ends servers and workers too."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, lambda number, frame: sys.exit(128 + number))


def write_json(options, date, rows):
    """What is measured so far, in the place of what the file had."""
    if not options.json:
        return
    with open(options.json, "w", encoding="utf-8") as file:
        json.dump({"date": date, "cpu": cpu_name(), "isa": options.isa, "threads": options.threads, "rounds": options.rounds,
                   "forced": options.force, "quick": options.quick, "rows": rows}, file)
        file.write("\n")


def main():
    options = parse_arguments(__doc__)
    end_what_was_started()
    if options.needs:
        print(targets_needed(options))
        return 0
    try:
        return markdown_or_measure(options)
    except Busy as error:
        print(f"compare_peers: {error}", file=sys.stderr)
        return 3
    except (Unreadable, RuntimeError, OSError) as error:
        print(f"compare_peers: {error}", file=sys.stderr)
        return 1


def markdown_or_measure(options):
    """The exit status."""
    if options.markdown:
        print(markdown(options.markdown))
        return 0
    peers.limit_instructions(options.isa)
    if options.accuracy:
        import peer_accuracy  # pylint: disable=import-outside-toplevel  # needs packages that the rest does not
        return peer_accuracy.main(options)
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    capped = "" if options.isa == "native" else f", no more than {options.isa}"
    print(f"{cpu_name()}{capped}, {os.cpu_count()} cores, {options.threads} threads, {options.rounds} rounds, {date}")
    if options.force:
        print("FORCED: other load was allowed; these figures are worth nothing beyond a first look")
    wait_for_quiet(options.max_foreign_load, options.force)
    rows, failed = compare(options, lambda rows: write_json(options, date, rows))
    for name, version in versions_seen(rows).items():
        print(f"{name}: {version}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
