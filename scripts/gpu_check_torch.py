#!/usr/bin/env python3
"""PyTorch's scaled_dot_product_attention on the prefill shapes of attention_bench, as a yardstick: one JSON line each. The exit
status is 77 without PyTorch."""
import json
import statistics
import sys

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError:
    print("no PyTorch")
    sys.exit(77)

HEADS, KV_HEADS, SIZE, REPEATS = 32, 8, 128, 20


def seconds(call):
    times = []
    for i in range(REPEATS + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        if i >= 3:
            times.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(times)


for tokens in (1024, 2048, 4096, 8192, 16384):
    q = torch.randn(1, HEADS, tokens, SIZE, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(1, KV_HEADS, tokens, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        with sdpa_kernel(backend):
            try:
                time = seconds(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))
            except RuntimeError as error:
                print(json.dumps({"peer": backend.name, "tokens": tokens, "error": str(error)[:200]}), flush=True)
                continue
        flops = 4 * HEADS * SIZE * tokens * (tokens + 1) / 2
        print(json.dumps({"peer": backend.name, "tokens": tokens, "us": time * 1e6, "tflop_per_s": flops / time * 1e-12}),
              flush=True)
