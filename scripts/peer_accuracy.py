"""Distance of quire, llama.cpp and OpenVINO GenAI to the golden files, teacher-forced: scripts/compare_peers.sh --accuracy.

Every program scores the same ids, prompt and greedy continuation of each golden text, as one prompt; the table has the mean and
the largest |difference of natural-log probabilities|, and how many greedy tokens of the reference, ahead of their runner-up by over
0.3, are not the program's likeliest. llama.cpp gives logits through the bindings of llama-cpp-python's sources, on the library that
compare_peers.sh built; OpenVINO GenAI gives log probabilities of an echoed prompt, and no alternatives.
"""
import json
import math
import os
import sys

import numpy

import peers

GOLDEN = {"smollm2": "smollm2.jsonl", "gemma3": "gemma3.jsonl"}
CLEAR_MARGIN = 0.3
CONTEXT = 2048


def golden_texts(model):
    """(ids, logprobs of ids[1:], ids of the prompt, margins of the greedy tokens) of each text."""
    with open(os.path.join(peers.ROOT, "tests", "golden", GOLDEN[model]), encoding="utf-8") as file:
        for line in file:
            text = json.loads(line)
            greedy = text["greedy"]
            yield (text["prompt_ids"] + [step["id"] for step in greedy],
                   text["prompt_logprobs"] + [step["logprob"] for step in greedy], len(text["prompt_ids"]),
                   [step["margin"] for step in greedy])


class LlamaLogits:
    """Log probabilities and likeliest ids by llama.cpp's own logits."""

    def __init__(self, model, threads):
        version = os.environ["QUIRE_LLAMA_VERSION"]
        os.environ["LLAMA_CPP_LIB_PATH"] = peers.LLAMA
        sys.path.insert(0, os.path.join(peers.PEERS, f"llama_cpp_python-{version}"))
        import llama_cpp  # pylint: disable=import-outside-toplevel,import-error
        self.llama = llama_cpp.Llama(model_path=model, n_ctx=CONTEXT, n_batch=512, n_threads=threads, n_threads_batch=threads,
                                     logits_all=True, verbose=False)

    def score(self, ids):
        self.llama.reset()
        self.llama.eval(ids)
        logits = self.llama.scores[: len(ids) - 1].astype(numpy.float64)
        top = logits.max(axis=1)
        norm = top + numpy.log(numpy.exp(logits - top[:, None]).sum(axis=1))
        chosen = logits[numpy.arange(len(ids) - 1), ids[1:]]
        return (chosen - norm).tolist(), logits.argmax(axis=1).tolist()


def distance(model, score):
    """The figures of one program; `score` gives log probabilities, and likeliest ids or None."""
    prompt, greedy, other_top, knows_top = [], [], 0, True
    for ids, reference, num_prompt, margins in golden_texts(model):
        logprobs, likeliest = score(ids)
        if len(logprobs) != len(reference) or not all(math.isfinite(x) for x in logprobs):
            raise RuntimeError("scores are missing, or not finite")
        differences = [abs(a - b) for a, b in zip(logprobs, reference)]
        prompt += differences[: num_prompt - 1]
        greedy += differences[num_prompt - 1 :]
        knows_top = likeliest is not None
        if knows_top:
            other_top += sum(margin > CLEAR_MARGIN and likeliest[num_prompt - 1 + i] != ids[num_prompt + i]
                             for i, margin in enumerate(margins))
    return {"prompt_mean": numpy.mean(prompt), "prompt_max": max(prompt), "greedy_mean": numpy.mean(greedy),
            "greedy_max": max(greedy), "other_top": other_top if knows_top else None, "tokens": len(prompt) + len(greedy)}


def quire_distance(model, path, threads):
    report = peers.last_json(peers.run([os.path.join(peers.OURS, "logprob_bench"), "--model", path, "--threads", str(threads), "--golden",
                                        os.path.join(peers.ROOT, "tests", "golden", GOLDEN[model])]))
    figures = {key: report[f"{kind}_abs_dlogprob_{part}"] for part in ("prompt", "greedy") for kind in ("mean", "max")
               for key in [f"{part}_{kind}"]}
    return {**figures, "other_top": report["greedy_mismatches"], "tokens": report["tokens"]}


def openvino_distance(model, path, threads):
    program = peers.OpenVino(path, threads)
    try:
        return distance(model, lambda ids: (program.score(ids), None))
    finally:
        program.close()


def main(options):
    from compare_peers import model_path  # pylint: disable=import-outside-toplevel
    programs = {"quire": quire_distance,
                "llama.cpp": lambda model, path, threads: distance(model, LlamaLogits(path, threads).score),
                "OpenVINO": openvino_distance}
    print("| model | program | prompt mean | prompt max | greedy mean | greedy max | other top | tokens |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    rows, failed = [], False
    for model in [name for name in options.models if name in GOLDEN]:
        for name, measure in programs.items():
            try:
                f = measure(model, model_path(model), options.threads)
            except peers.NotAvailable as reason:
                print(f"| {model} | {name} | {reason} | | | | | |")
                continue
            except (RuntimeError, OSError, LookupError, TypeError, ValueError, ImportError) as error:
                print(f"| {model} | {name} | failed, no figure: {error!r} | | | | | |")
                failed = True
                continue
            other_top = "not given" if f["other_top"] is None else f["other_top"]
            print(f"| {model} | {name} | {f['prompt_mean']:.4f} | {f['prompt_max']:.3f} | {f['greedy_mean']:.4f} | "
                  f"{f['greedy_max']:.3f} | {other_top} | {f['tokens']} |", flush=True)
            rows.append({"model": model, "program": name, **{key: value if value is None else float(value) for key, value in f.items()}})
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            file.write(json.dumps({"rows": rows}) + "\n")
    return 1 if failed else 0
