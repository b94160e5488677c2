"""Which approximation of the CPU backend costs how much accuracy: a NumPy forward pass with a switch for each.

The backend rounds activations to int8 in blocks of 32 before each product with quantised weights, and stores keys and values in
f16. This script runs the model teacher-forced over the golden texts in float32 and simulates each rounding on its own:

    source    is the input of                          tensor, [tokens, width]
    qkv       the query, key and value projections     normed hidden state
    o         the attention output projection          attention output
    gate_up   the two projections into the feed-forward normed hidden state
    down      the projection out of it                 gated activations
    head      the tied output head                     final normed hidden state
    kv        attention                                keys (after RoPE) and values

Weights are dequantised to float32: the backend's integer products are exact, so that only the rounding of activations and the order
of float additions differ from it. Architectures: llama and gemma3, with tied embeddings. Needs numpy and gguf.

A case is written as assignments `source=method`, joined by commas, e.g. `all=int8,kv=f16,down=two`; the later one wins, `all` is the
five products. A method may be limited to some layers: `down[0-3;29]=two`. What is not named stays float. Methods:

    none       float32
    f16        rounded to f16
    int8       blocks of 32, scale max|x| / 127 (what the backend does)
    half16     int8 in blocks of 16
    minus128   the entry of largest magnitude becomes -128, scale -x / 128
    search     int8 with the scale of least squared error among 9 between max|x| / 127 and max|x| / 123
    sum        int8, and the sum of each block is kept in float: the rounding error meets the weights less their block's middle
    two        two int8 terms, d1 * q1 + d2 * q2, the second for what the first leaves
    int16      blocks of 32, scale max|x| / 32767
    f16scale   int8 with the scale rounded to f16

int8, half16 and sum take a number of steps L just under 127, e.g. `int8:126.9`, for the scale max|x| / L: equal quality, but other
rounding errors. Compare methods over several such draws: the golden texts are few, and from draw to draw the means move by a tenth.

Prints per case the mean |dlogprob| against the golden file (prompt tokens, greedy tokens), the means per token without the longest
text, and the number of greedy tokens at which another token is likelier.
"""

import argparse
import json
import re
import time

import gguf
import numpy as np

PRODUCTS = ("qkv", "o", "gate_up", "down", "head")
SOURCES = PRODUCTS + ("kv",)
BLOCK = 32
QUERY_CHUNK = 256  # attention rows at a time
VOCAB_CHUNK = 8192  # head rows at a time


# --- Rounding -------------------------------------------------------------------------------------------------------------------


def round_to_scale(blocks, scale):
    """[n, B] blocks rounded to multiples of scale [n, 1], at most 128 steps from zero."""
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    return np.clip(np.rint(blocks * inverse), -128, 127) * scale


def search_scale(blocks, largest):
    """The candidate of least squared error per block: [n, B], [n, 1] -> [n, B]."""
    best, best_error = None, None
    for steps in np.linspace(127, 123, 9, dtype=np.float32):
        rounded = round_to_scale(blocks, largest / steps)
        error = np.square(rounded - blocks).sum(axis=1, keepdims=True)
        if best is None:
            best, best_error = rounded, error
        else:
            better = error < best_error
            best, best_error = np.where(better, rounded, best), np.where(better, error, best_error)
    return best


def simulate(method, x):
    """x [tokens, width] as `method` would store it, in float32."""
    if method == "none":
        return x
    if method == "f16":
        return x.astype(np.float16).astype(np.float32)
    name, _, steps = method.partition(":")
    blocks = x.reshape(-1, 16 if name == "half16" else BLOCK)
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    scale = largest / np.float32(steps or 127)
    if name == "int16":
        scale = largest / np.float32(32767)
        inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
        result = np.rint(blocks * inverse) * scale
    elif name == "minus128":
        extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1, keepdims=True), axis=1)
        result = round_to_scale(blocks, extreme / np.float32(-128))
    elif name == "search":
        result = search_scale(blocks, largest)
    elif name == "two":
        first = round_to_scale(blocks, scale)
        rest = blocks - first
        result = first + round_to_scale(rest, np.abs(rest).max(axis=1, keepdims=True) / np.float32(127))
    elif name == "f16scale":
        q = round_to_scale(blocks, scale) / np.where(scale == 0, 1, scale)
        result = q * scale.astype(np.float16).astype(np.float32)
    elif name in ("int8", "half16", "sum"):
        result = round_to_scale(blocks, scale)
    else:
        raise ValueError(f"unknown method {method!r}")
    return result.reshape(x.shape)


def block_middles(weight):
    """[out, in] -> [out, in / 32]: halfway between the smallest and largest weight of each block."""
    blocks = weight.reshape(weight.shape[0], -1, BLOCK)
    return (blocks.min(axis=2) + blocks.max(axis=2)) / 2


def product(method, x, weight):
    """simulate(x) @ weight^T: [tokens, in], [out, in] -> [tokens, out]."""
    rounded = simulate(method, x)
    result = rounded @ weight.T
    # The products with a block's middle value use the unrounded sum.
    if method.startswith("sum"):
        lost = (x - rounded).reshape(x.shape[0], -1, BLOCK).sum(axis=2)
        result += lost @ block_middles(weight).T
    return result


class Case:
    """The method of each source in each layer."""

    def __init__(self, text):
        self.text = text
        self._rules = []
        for part in filter(None, text.split(",")):
            match = re.fullmatch(r"(\w+)(?:\[([\d;-]+)\])?=([\w:.]+)", part)
            if not match or match[1] not in SOURCES + ("all",):
                raise ValueError(f"not a case: {part!r}")
            layers = None
            if match[2]:
                ranges = [r.split("-") for r in match[2].split(";")]
                layers = {i for r in ranges for i in range(int(r[0]), int(r[-1]) + 1)}
            self._rules.append((PRODUCTS if match[1] == "all" else (match[1],), layers, match[3]))

    def method(self, source, layer=None):
        chosen = "none"
        for sources, layers, method in self._rules:
            if source in sources and (layers is None or layer in layers):
                chosen = method
        return chosen

    def body_key(self, num_layers):
        """Equal for cases that differ in the head only."""
        return tuple(self.method(s, i) for i in range(num_layers) for s in SOURCES if s != "head")


# --- The model ------------------------------------------------------------------------------------------------------------------


def rms_norm(x, weight, epsilon):
    return x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(epsilon)) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)))


def rope(x, positions, theta, interleaved):
    """Rotates x [tokens, heads, size] by its positions: pairs (2i, 2i + 1) when interleaved, else (i, i + size / 2)."""
    half = x.shape[2] // 2
    angle = positions[:, None] * theta ** (-np.arange(half, dtype=np.float64) / half)
    cos, sin = (f(angle).astype(np.float32)[:, None, :] for f in (np.cos, np.sin))
    first, second = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(0, half), slice(half, None))
    a, b = x[..., first], x[..., second]
    out = np.empty_like(x)
    out[..., first] = a * cos - b * sin
    out[..., second] = a * sin + b * cos
    return out


def attend(q, k, v, window):
    """Causal attention of one text: q [T, H, D] (scaled), k and v [T, G, D] -> [T, H * D]; `window` is None or a token count."""
    tokens, heads, size = q.shape
    groups = k.shape[1]
    out = np.empty_like(q)
    for begin in range(0, tokens, QUERY_CHUNK):
        end = min(begin + QUERY_CHUNK, tokens)
        oldest = 0 if window is None else max(0, begin - window + 1)
        distance = np.arange(begin, end)[:, None] - np.arange(oldest, end)[None, :]
        hidden = (distance < 0) if window is None else (distance < 0) | (distance >= window)
        for h in range(heads):
            g = h * groups // heads
            scores = q[begin:end, h] @ k[oldest:end, g].T
            scores[hidden] = -np.inf
            scores -= scores.max(axis=1, keepdims=True)
            np.exp(scores, out=scores)
            out[begin:end, h] = (scores @ v[oldest:end, g]) / scores.sum(axis=1, keepdims=True)
    return out.reshape(tokens, heads * size)


class Model:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self._tensors = {t.name: t for t in reader.tensors}
        field = lambda key: reader.fields[key].contents()
        self.family = field("general.architecture")
        if self.family not in ("llama", "gemma3"):
            raise ValueError(f"general.architecture is {self.family!r}, not llama or gemma3")
        own = lambda key: field(f"{self.family}.{key}")
        self.num_layers = own("block_count")
        self.heads = own("attention.head_count")
        self.groups = own("attention.head_count_kv")
        self.epsilon = own("attention.layer_norm_rms_epsilon")
        self.theta = own("rope.freq_base")
        self.is_gemma = self.family == "gemma3"
        self.window = own("attention.sliding_window") if self.is_gemma else None
        self.size = own("attention.key_length") if self.is_gemma else own("embedding_length") // self.heads
        self.layers = [self._load_layer(f"blk.{i}.") for i in range(self.num_layers)]
        self.output_norm = self._dequantise("output_norm.weight")

    def _dequantise(self, name, rows=slice(None)):
        tensor = self._tensors[name]
        if tensor.tensor_type == gguf.GGMLQuantizationType.F32:
            return np.array(tensor.data)
        return np.ascontiguousarray(gguf.quants.dequantize(tensor.data[rows], tensor.tensor_type), dtype=np.float32)

    def _load_layer(self, prefix):
        load = lambda *names: np.concatenate([self._dequantise(f"{prefix}{n}.weight") for n in names])
        layer = {
            "qkv": load("attn_q", "attn_k", "attn_v"),
            "o": load("attn_output"),
            "gate_up": load("ffn_gate", "ffn_up"),
            "down": load("ffn_down"),
            "attn_norm": load("attn_norm"),
            "ffn_norm": load("ffn_norm"),
        }
        if self.is_gemma:
            for name in ("attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm"):
                layer[name] = load(name)
        return layer

    def _attention(self, i, normed, case, spans):
        layer = self.layers[i]
        qkv = product(case.method("qkv", i), normed, layer["qkv"])
        q_width, kv_width = self.heads * self.size, self.groups * self.size
        q, k, v = (part.reshape(len(part), -1, self.size) for part in np.split(qkv, [q_width, q_width + kv_width], axis=1))
        if self.is_gemma:
            q, k = rms_norm(q, layer["attn_q_norm"], self.epsilon), rms_norm(k, layer["attn_k_norm"], self.epsilon)
        local = self.is_gemma and (i + 1) % 6 != 0
        positions = np.concatenate([np.arange(end - begin) for begin, end in spans])
        theta = 10000.0 if local else self.theta
        q, k = (rope(part, positions, theta, interleaved=not self.is_gemma) for part in (q, k))
        q *= np.float32(self.size**-0.5)
        k, v = (simulate(case.method("kv", i), part) for part in (k, v))
        window = self.window if local else None
        mixed = np.concatenate([attend(q[b:e], k[b:e], v[b:e], window) for b, e in spans])
        return product(case.method("o", i), mixed, layer["o"])

    def _feed_forward(self, i, normed, case):
        gate, up = np.split(product(case.method("gate_up", i), normed, self.layers[i]["gate_up"]), 2, axis=1)
        gated = (gelu_tanh(gate) if self.is_gemma else silu(gate)) * up
        return product(case.method("down", i), gated, self.layers[i]["down"])

    def hidden(self, ids, spans, case):
        """The final normed hidden state [tokens, width] of texts that lie one behind the other, text t in spans[t]."""
        x = self._dequantise("token_embd.weight", ids)
        if self.is_gemma:
            x *= np.float32(np.sqrt(x.shape[1]))
        for i, layer in enumerate(self.layers):
            y = self._attention(i, rms_norm(x, layer["attn_norm"], self.epsilon), case, spans)
            x = x + (rms_norm(y, layer["post_attention_norm"], self.epsilon) if self.is_gemma else y)
            y = self._feed_forward(i, rms_norm(x, layer["ffn_norm"], self.epsilon), case)
            x = x + (rms_norm(y, layer["post_ffw_norm"], self.epsilon) if self.is_gemma else y)
        return rms_norm(x, self.output_norm, self.epsilon)

    def logprobs(self, hidden, targets, method):
        """(logprob of targets[t] at token t, likeliest id there), over chunks of the vocabulary."""
        vocabulary = int(self._tensors["token_embd.weight"].shape[1])
        tokens = len(targets)
        total, chosen = np.zeros(tokens), np.full(tokens, np.nan)
        largest, likeliest = np.full(tokens, -np.inf), np.zeros(tokens, dtype=np.int64)
        for begin in range(0, vocabulary, VOCAB_CHUNK):
            weight = self._dequantise("token_embd.weight", slice(begin, begin + VOCAB_CHUNK))
            logits = product(method, hidden, weight)
            inside = np.flatnonzero((targets >= begin) & (targets < begin + len(weight)))
            chosen[inside] = logits[inside, targets[inside] - begin]
            top = logits.argmax(axis=1)
            chunk_largest = logits[np.arange(tokens), top].astype(np.float64)
            likeliest = np.where(chunk_largest > largest, top + begin, likeliest)
            new_largest = np.maximum(largest, chunk_largest)
            logits -= new_largest.astype(np.float32)[:, None]
            np.exp(logits, out=logits)
            total = total * np.exp(largest - new_largest) + logits.sum(axis=1, dtype=np.float64)
            largest = new_largest
        return chosen - largest - np.log(total), likeliest


# --- Comparing with the golden file ---------------------------------------------------------------------------------------------


class Golden:
    """The golden texts one behind the other, each with its greedy continuation fed back."""

    def __init__(self, path, max_tokens=None):
        ids, targets, expected, is_greedy, text = [], [], [], [], []
        self.spans = []
        with open(path, encoding="utf-8") as file:
            records = [json.loads(line) for line in file if line.strip()]
        for number, record in enumerate(records):
            fed = record["prompt_ids"] + [token["id"] for token in record["greedy"]]
            begin, prompt = len(ids), len(record["prompt_ids"]) - 1
            ids += fed[:-1]
            targets += fed[1:]
            expected += record["prompt_logprobs"] + [token["logprob"] for token in record["greedy"]]
            is_greedy += [False] * prompt + [True] * len(record["greedy"])
            text += [number] * (len(fed) - 1)
            for column in (ids, targets, expected, is_greedy, text):
                del column[begin + (max_tokens or len(fed)) :]
            self.spans.append((begin, len(ids)))
        self.ids, self.targets, self.expected = np.array(ids), np.array(targets), np.array(expected)
        self.is_greedy = np.array(is_greedy)
        longest = max(range(len(records)), key=lambda n: len(records[n]["prompt_ids"]))
        self.in_longest = np.array(text) == longest

    def summary(self, logprobs, likeliest):
        error = np.abs(logprobs - self.expected)
        prompt, greedy, short = ~self.is_greedy, self.is_greedy, ~self.in_longest
        return {
            "prompt": error[prompt].mean(),
            "greedy": error[greedy].mean(),
            "prompt_short": error[prompt & short].mean(),
            "greedy_short": error[greedy & short].mean(),
            "flips": int((likeliest != self.targets)[greedy].sum()),
        }


def default_cases():
    """The float pass, the backend, each source alone, all but each, remedies, and further draws of the backend's noise."""
    backend = "all=int8,kv=f16"
    yield from ("all=none", backend)
    for source in SOURCES:
        yield f"{source}={'f16' if source == 'kv' else 'int8'}"
    for source in SOURCES:
        yield f"{backend},{source}=none"
    for method in ("minus128", "search", "sum", "half16", "f16scale"):
        yield f"all={method},kv=f16"
    for source in ("head", "down"):
        yield f"{backend},{source}=int16"
    for source in ("qkv", "gate_up", "down", "head"):
        yield f"{backend},{source}=two"
    yield f"{backend},qkv=two,head=two"
    for steps in ("126.9", "126.8", "126.7", "126.6"):
        yield f"all=int8:{steps},kv=f16"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--golden", required=True, help="its golden outputs, JSON lines")
    parser.add_argument("--case", action="append", help="e.g. all=int8,kv=f16,down=two; may be given again; default: a whole table")
    parser.add_argument("--max-tokens", type=int, help="cut texts after so many tokens: other means, but in less time")
    parser.add_argument("--save", help="write the signed errors of every case here, as .npz")
    arguments = parser.parse_args()

    golden, model = Golden(arguments.golden, arguments.max_tokens), Model(arguments.model)
    hidden_of, errors = {}, {}
    print(f"{'prompt':>8} {'greedy':>8} {'p.short':>8} {'g.short':>8} flips seconds  case")
    for case in map(Case, arguments.case or default_cases()):
        started = time.monotonic()
        key = case.body_key(model.num_layers)
        if key not in hidden_of:
            hidden_of[key] = model.hidden(golden.ids, golden.spans, case)
        logprobs, likeliest = model.logprobs(hidden_of[key], golden.targets, case.method("head"))
        errors[case.text] = logprobs - golden.expected
        s = golden.summary(logprobs, likeliest)
        print(
            f"{s['prompt']:8.5f} {s['greedy']:8.5f} {s['prompt_short']:8.5f} {s['greedy_short']:8.5f} {s['flips']:5d} "
            f"{time.monotonic() - started:7.1f}  {case.text}",
            flush=True,
        )
    if arguments.save:
        np.savez(arguments.save, is_greedy=golden.is_greedy, in_longest=golden.in_longest, **errors)


if __name__ == "__main__":
    main()
