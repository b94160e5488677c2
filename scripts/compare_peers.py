#!/usr/bin/env python3
"""Measures quire beside llama.cpp and OpenVINO GenAI; started by scripts/compare_peers.sh, which builds and installs them.

For each cell the programs take turns, one run each in a round, and the table has the median of the rounds, quire's ratio to the
faster peer (median and range of the rounds' ratios) and a verdict. The load of other processes is taken from /proc/stat, sampled
before every round and added up over it: over the limit the comparison waits, measures the round again, then refuses.
docs/benchmarks.md says what each side does in each cell.
"""
import argparse
import contextlib
import datetime
import http.client
import json
import os
import statistics
import subprocess
import sys
import time

import peers

MODELS = {
    "smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma3": "gemma-3-270m-q4_k_m.gguf",
    "smollm2-f16": "SmolLM2-135M-Instruct.F16.gguf",
}
PREFILL = {f"prefill-{n}": n for n in (512, 4000)}
DECODE = {f"decode-{b}x{c}": (b, c) for c in (128, 2000) for b in (1, 8, 32)}
SERVE = {f"serve-{share}": share / 100 for share in (50, 80)}
CELLS = [*PREFILL, *DECODE, "shared-prefix", *SERVE]
QUICK_CELLS = ["prefill-512", "decode-1x128", "decode-8x128", "decode-32x128"]
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
    report = checked(peers.serve(program.serve_target(), SERVE[cell] * options.capacity, options.requests, seed))
    program.served_by(report)
    program.close()
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


def measure_round(cell, programs, absent, seed, options):
    """{figure: {program: value}} of one run of each program that is not absent; adds to `absent` those that cannot."""
    figures = {}
    for program in programs:
        if program.name in absent:
            continue
        try:
            measured = measure_once(cell, program, seed, options)
        except peers.NotAvailable as reason:
            absent[program.name] = str(reason)
            continue
        for figure, value in measured.items():
            if not value > 0:
                raise RuntimeError(f"{program.name} measured {value} in {figure}")
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


def markdown(files):
    """The rows of files that --json wrote as a Markdown table; of a figure that several have, the last one's."""
    rows = {}
    for name in files:
        with open(name, encoding="utf-8") as file:
            report = json.load(file)
        for row in report["rows"]:
            rows[row["model"], row["figure"]] = row, max(map(len, row["rounds"].values()), default=0)
    lines = ["| model | figure | quire | llama.cpp | OpenVINO | ratio to the faster peer (range) | target | rounds |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for (model, figure), (row, rounds) in rows.items():
        cells = [f"{row['medians'][name]:.4g}" if name in row["medians"] else "-" for name in ("quire", "llama.cpp", "OpenVINO")]
        ratio = "-" if "ratio" not in row else f"{row['ratio']:.2f} ({row['ratio_min']:.2f} to {row['ratio_max']:.2f})"
        target = "" if row.get("target") is None else f"{row['target']:g}"
        lines.append(" | ".join([f"| {model}", f"{figure}, {row['unit']}", *cells, ratio, target, f"{rounds} |"]))
    return "\n".join(lines)


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
            sys.exit(f"compare_peers: there is no {path}: scripts/fetch_model.sh {name} brings it")
        return path
    copy = os.path.join(peers.PEERS, MODELS[name])
    if not os.path.exists(copy):
        print("making the F16 model", file=sys.stderr)
        peers.run([sys.executable, os.path.join(peers.ROOT, "scripts", "make_f16_model.py"), model_path("smollm2"), copy])
    return copy


def measure_capacity(llama, options):
    """Requests a second that llama-server answers to 16 streams."""
    wait_for_quiet(options.max_foreign_load, options.force)
    report = checked(peers.serve(llama.serve_target(), None, options.requests, seed=99))
    llama.close()
    return report["requests_per_s"]


def compare(options):
    rows, failed = [], False
    for model in options.models:
        path = model_path(model)
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
                except (RuntimeError, OSError, KeyError, ValueError, http.client.HTTPException, subprocess.SubprocessError) as error:
                    print(f"{model:<12} {cell:<18} failed, no figure: {error}")
                    failed = True
                    continue
                for row in new_rows:
                    row["versions"] = {program.name: program.version for program in programs}
                    show(row)
                rows.extend(new_rows)
    return rows, failed


def parse_arguments():
    def listed(allowed):
        def parse(text):
            names = text.split(",")
            unknown = [name for name in names if name not in allowed]
            if unknown:
                raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not among {', '.join(allowed)}")
            return names
        return parse

    def positive(text):
        value = int(text)
        if not 0 < value <= 10_000:
            raise argparse.ArgumentTypeError(f"{value} is not between 1 and 10000")
        return value

    parser = argparse.ArgumentParser(prog="compare_peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="SmolLM2 Q4_1, prefill 512 and short decode, three rounds")
    parser.add_argument("--cells", type=listed(CELLS), help=f"of {', '.join(CELLS)}")
    parser.add_argument("--models", type=listed(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--rounds", type=positive, help="runs of each program in each cell (5)")
    parser.add_argument("--threads", type=positive, default=len(os.sched_getaffinity(0)), help="of every program")
    parser.add_argument("--isa", choices=["native", "avx2"], default="native",
                        help="avx2: no program uses more, as on a machine without AVX-512")
    parser.add_argument("--requests", type=positive, default=60, help="of a serve cell")
    parser.add_argument("--max-foreign-load", type=float, default=5.0, help="per cent of the cores")
    parser.add_argument("--force", action="store_true", help="measure whatever else is running, and say so")
    parser.add_argument("--json", help="write all figures to this file")
    parser.add_argument("--markdown", nargs="+", metavar="FILE", help="measure nothing: a table of what --json wrote")
    parser.add_argument("--accuracy", action="store_true", help="distance to tests/golden instead of speed")
    parser.add_argument("--needs", action="store_true", help=argparse.SUPPRESS)  # for compare_peers.sh
    options = parser.parse_args()
    options.cells = options.cells or (QUICK_CELLS if options.quick else CELLS)
    options.models = options.models or (["smollm2"] if options.quick else list(MODELS))
    options.rounds = options.rounds or (3 if options.quick else 5)
    if options.json and not os.path.isdir(os.path.dirname(os.path.abspath(options.json))):
        parser.error(f"--json: there is no folder for {options.json}")
    return options


def targets_needed(options):
    """What compare_peers.sh has to build: llama.cpp's targets, quire's, and for which instructions, with semicolons between."""
    if options.accuracy:
        return f"llama;logprob_bench;{options.isa}"
    theirs, ours = {"llama-bench", "llama-batched-bench"}, {"throughput_bench"}
    if any(cell in SERVE or cell == "shared-prefix" for cell in options.cells):
        theirs.add("llama-server")
    if any(cell in SERVE for cell in options.cells):
        ours.add("serve_bench")
    return ";".join([" ".join(sorted(theirs)), " ".join(sorted(ours)), options.isa])


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown")


def main():
    options = parse_arguments()
    if options.needs:
        print(targets_needed(options))
        return 0
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
    try:
        wait_for_quiet(options.max_foreign_load, options.force)
        rows, failed = compare(options)
    except Busy as error:
        print(f"compare_peers: {error}", file=sys.stderr)
        return 3
    for name, version in versions_seen(rows).items():
        print(f"{name}: {version}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"date": date, "cpu": cpu_name(), "isa": options.isa, "threads": options.threads, "rounds": options.rounds, "forced": options.force,
                       "quick": options.quick, "rows": rows}, file)
            file.write("\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
