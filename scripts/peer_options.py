"""The command line of compare_peers.py: which models and cells there are, and what of quire and llama.cpp they need."""
import argparse
import os

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


def parse_arguments(description):
    def listed(allowed):
        def parse(text):
            names = text.split(",")
            unknown = [repr(name) for name in names if name not in allowed]
            if unknown:
                raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not among {', '.join(allowed)}")
            if len(set(names)) < len(names):
                raise argparse.ArgumentTypeError(f"{text}: one of them stands there twice")
            return names
        return parse

    def positive(text):
        value = int(text)
        if not 0 < value <= 10_000:
            raise argparse.ArgumentTypeError(f"{value} is not between 1 and 10000")
        return value

    def percent(text):
        value = float(text)
        if not 0 <= value <= 100:
            raise argparse.ArgumentTypeError(f"{value:g} is not between 0 and 100")
        return value

    parser = argparse.ArgumentParser(prog="compare_peers", description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="SmolLM2 Q4_1, prefill 512 and short decode, three rounds")
    parser.add_argument("--cells", type=listed(CELLS), help=f"of {', '.join(CELLS)}")
    parser.add_argument("--models", type=listed(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--rounds", type=positive, help="runs of each program in each cell (5)")
    parser.add_argument("--threads", type=positive, help="of every program (the cores this process may use)")
    parser.add_argument("--isa", choices=["native", "avx2"],
                        help="avx2: no program uses more, as on a machine without AVX-512")
    parser.add_argument("--requests", type=positive, help="of a serve cell (60)")
    parser.add_argument("--max-foreign-load", type=percent, help="per cent of the cores (5)")
    parser.add_argument("--force", action="store_true", help="measure whatever else is running, and say so")
    parser.add_argument("--json", help="write all figures to this file, after every cell")
    parser.add_argument("--markdown", nargs="+", metavar="FILE", help="measure nothing: a table of what --json wrote")
    parser.add_argument("--accuracy", action="store_true", help="distance to tests/golden instead of speed")
    parser.add_argument("--needs", action="store_true", help=argparse.SUPPRESS)  # for compare_peers.sh
    options = parser.parse_args()
    if wrong := given_in_vain(options) or not_writable(options.json):
        parser.error(wrong)
    defaults = {"cells": QUICK_CELLS if options.quick else CELLS, "models": ["smollm2"] if options.quick else list(MODELS),
                "rounds": 3 if options.quick else 5, "threads": len(os.sched_getaffinity(0)), "isa": "native", "requests": 60,
                "max_foreign_load": 5.0}
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def not_writable(path):
    """Why nothing could be written to the file; "" if nothing speaks against it. Known before hours are spent on what it is for."""
    if path is None:
        return ""
    if not path:
        return "--json: the name is empty"
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        return f"--json: there is no folder {folder}"
    if os.path.isdir(path):
        return f"--json: {path} is a folder"
    return "" if os.access(path if os.path.exists(path) else folder, os.W_OK) else f"--json: {path} is not writable"


def given_in_vain(options):
    """Which option was given and could not matter; "" if none."""
    given = [name for name, value in vars(options).items() if value is not None and value is not False]  # a 0 was given
    measures = ["quick", "cells", "rounds", "requests", "max_foreign_load", "force"]
    if options.markdown:
        mode, idle = "with --markdown, which measures nothing", [*measures, "models", "threads", "isa", "json", "accuracy"]
    elif options.accuracy:
        mode, idle = "with --accuracy, which measures no speed", measures
    elif not any(cell in SERVE for cell in options.cells or ([] if options.quick else CELLS)):
        mode, idle = "without a serve cell", ["requests"]
    else:
        return ""
    return next((f"--{name.replace('_', '-')} does not apply {mode}" for name in idle if name in given), "")


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
