#!/usr/bin/env python3
"""Draws results of serve_bench: plot.py RESULTS.jsonl [RESULTS.jsonl ...] --out FOLDER

latency.png   percentiles of the latencies over the load, where there are several loads of a kind
tokens.png    output tokens per second over the time of each run
Lines of several targets are drawn beside each other.
"""
import argparse
import json
import os
import sys

LATENCIES = [("ttft_ms", "time to first token"), ("itl_ms", "inter-token latency"), ("e2e_ms", "end-to-end latency")]
PERCENTILES = [("p50", "-"), ("p90", "--"), ("p99", ":")]


def matplotlib_pyplot():
    try:
        import matplotlib
    except ImportError as error:
        sys.exit(f"plot.py: {error}")
    matplotlib.use("Agg")
    import matplotlib.pyplot as pyplot

    return pyplot


def read_runs(paths):
    runs = []
    for path in paths:
        try:
            with open(path, encoding="utf-8") as lines:
                for number, line in enumerate(lines, 1):
                    try:
                        run = json.loads(line)
                        run["load"]["value"], run["target"], run["output_tokens_per_s_over_time"]["values"]
                    except (ValueError, KeyError, TypeError) as error:
                        sys.exit(f"plot.py: {path} line {number} is no result of serve_bench: {error!r}")
                    runs.append(run)
        except OSError as error:
            sys.exit(f"plot.py: {error}")
    if not runs:
        sys.exit("plot.py: no results to draw")
    return runs


def target_of(run):
    model = run.get("model")
    return f"{run['target']}, {model}" if model else run["target"]


def load_text(run):
    load = run["load"]
    if load["kind"] == "closed":
        return f"{load['value']:g} streams"
    return f"{load['kind']}, {load['value']:.3g} requests/s" if load["value"] > 0 else f"{load['kind']}, all at once"


def draw_latencies(pyplot, runs, path):
    kinds = sorted({run["load"]["kind"] for run in runs})
    figure, grid = pyplot.subplots(len(kinds), len(LATENCIES), figsize=(5 * len(LATENCIES), 4 * len(kinds)), squeeze=False,
                                   layout="constrained")
    for row, kind in zip(grid, kinds):
        of_kind = [run for run in runs if run["load"]["kind"] == kind]
        targets = list(dict.fromkeys(target_of(run) for run in of_kind))
        for axes, (key, title) in zip(row, LATENCIES):
            for number, target in enumerate(targets):
                points = sorted((r for r in of_kind if target_of(r) == target and r[key]), key=lambda r: r["load"]["value"])
                for percentile, style in PERCENTILES:
                    axes.plot([r["load"]["value"] for r in points], [r[key][percentile] for r in points], style, marker="o",
                              color=f"C{number % 10}", label=f"{target} {percentile}")
            axes.set_title(title)
            axes.set_xlabel("streams (closed loop)" if kind == "closed" else f"requests/s ({kind})")
            axes.set_ylabel("ms")
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
        row[0].legend(fontsize="small")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def draw_tokens(pyplot, runs, path):
    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    several = len({target_of(run) for run in runs}) > 1
    for run in runs:
        series = run["output_tokens_per_s_over_time"]
        label = f"{target_of(run)}: {load_text(run)}" if several else load_text(run)
        edges = [i * series["bin_s"] for i in range(len(series["values"]) + 1)]
        axes.stairs(series["values"], edges, label=label, baseline=None)
    axes.set_title("output tokens per second" if several else f"output tokens per second, {target_of(runs[0])}")
    axes.set_xlabel("s since the first request")
    axes.set_ylabel("tokens/s")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="*", help="JSON lines of serve_bench --json")
    parser.add_argument("--out", default=".", help="folder for the pictures")
    parser.add_argument("--format", default="png", choices=["png", "svg"])
    parser.add_argument("--check", action="store_true", help="only say whether drawing is possible")
    arguments = parser.parse_args()
    pyplot = matplotlib_pyplot()
    if arguments.check:
        return
    runs = read_runs(arguments.results)
    os.makedirs(arguments.out, exist_ok=True)
    for name, draw in (("latency", draw_latencies), ("tokens", draw_tokens)):
        draw(pyplot, runs, os.path.join(arguments.out, f"{name}.{arguments.format}"))


if __name__ == "__main__":
    main()
