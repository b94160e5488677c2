#!/usr/bin/env python3
"""OpenVINO GenAI's continuous batching as a process of its own: a job a line in, an answer a line out, JSON both.

    openvino_worker.py MODEL THREADS KV_GIGABYTES

First it says {"ready": version} or {"refused": why it does not run the model}. It is kept over the rounds of a comparison, for it
takes seconds to read a GGUF file, and sleeps between jobs. Jobs:
  {"job": "prefill", "prompt_tokens": n}                               -> {"tokens_per_s"}
  {"job": "decode", "streams": b, "prompt_tokens": n, "output_tokens": g} -> {"tokens_per_s"}
  {"job": "shared", "streams": b, "prompt_tokens": n, "shared_prefix": p, "output_tokens": g} -> {"seconds"}
  {"job": "score", "ids": [...]}                                       -> {"logprobs": of every id but the first}
Each with "seed". Prompts are random ids, answers greedy, of exactly the length asked for, as in quire's throughput_bench.
"""
import json
import os
import sys
import time

import numpy
import openvino
import openvino_genai

LOWEST_ID, HIGHEST_ID = 100, 40_000  # ordinary tokens in every vocabulary here


class Worker:
    def __init__(self, model, threads, kv_gigabytes):
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = True
        scheduler.cache_size = kv_gigabytes
        scheduler.max_num_batched_tokens = 512  # as quire and llama.cpp; its default is 256
        properties = {"INFERENCE_NUM_THREADS": threads}
        if "ONEDNN_MAX_CPU_ISA" in os.environ:
            # Fewer instructions than the machine has. OpenVINO goes by what the machine has when it chooses a precision and the
            # groups of quantised activations, for which oneDNN then has no kernel ("could not create a primitive descriptor").
            properties |= {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
        self.next_id = 0

    def submit(self, ids, output_tokens, **options):
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = output_tokens
        config.ignore_eos = True
        config.do_sample = False
        for name, value in options.items():
            setattr(config, name, value)
        self.next_id += 1
        return self.pipeline.add_request(self.next_id, openvino.Tensor(numpy.array([ids], dtype=numpy.int64)), config)

    def run(self, prompts, output_tokens):
        """Seconds of all, then tokens and seconds after the step in which the last prompt got its first token."""
        start = time.perf_counter()
        handles = [self.submit(ids, output_tokens) for ids in prompts]
        counts = [0] * len(handles)
        began, tokens_after = None, 0
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            now = time.perf_counter()
            for i, handle in enumerate(handles):
                if not handle.can_read():
                    continue
                tokens = sum(len(output.generated_ids) for output in handle.read().values())
                counts[i] += tokens
                tokens_after += tokens if began is not None else 0
            if began is None and all(counts):
                began = now
        if counts != [output_tokens] * len(handles):
            raise RuntimeError(f"answers of {counts} tokens instead of {output_tokens}")
        return now - start, tokens_after, now - began

    def answer(self, job):
        if job["job"] == "score":
            handle = self.submit(job["ids"], 1, logprobs=1, echo=True)
            while self.pipeline.has_non_finished_requests():
                self.pipeline.step()
            output = handle.read_all()[0]
            if list(output.generated_ids[: len(job["ids"])]) != job["ids"]:
                raise RuntimeError("other ids came back than were scored")
            return {"logprobs": list(output.generated_log_probs[1 : len(job["ids"])])}
        random = numpy.random.default_rng(job["seed"])
        length = job["prompt_tokens"]
        shared = random.integers(LOWEST_ID, HIGHEST_ID, job.get("shared_prefix", 0)).tolist()
        prompts = [shared + random.integers(LOWEST_ID, HIGHEST_ID, length - len(shared)).tolist()
                   for _ in range(job.get("streams", 1))]
        if job["job"] == "prefill":
            return {"tokens_per_s": length / self.run(prompts, 1)[0]}
        if job["job"] == "shared":
            return {"seconds": self.run(prompts, job["output_tokens"])[0]}
        if job["job"] == "decode":
            self.run(prompts, 1)  # the second time they are found in the prefix cache
            _, tokens, seconds = self.run(prompts, job["output_tokens"])
            return {"tokens_per_s": tokens / seconds}
        raise ValueError(f"unknown job {job['job']}")


def main():
    try:
        worker = Worker(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
        worker.run([list(range(LOWEST_ID, LOWEST_ID + 32))] * 2, 8)  # warm-up
    except RuntimeError as error:  # what OpenVINO throws of a file that it does not load, or has no kernels for
        print(json.dumps({"refused": " ".join(str(error).split())}), flush=True)
        return
    print(json.dumps({"ready": openvino_genai.__version__}), flush=True)
    for line in sys.stdin:
        try:
            answer = worker.answer(json.loads(line))
        except Exception as error:  # pylint: disable=broad-except  # whatever it is, the comparison must hear of it
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
