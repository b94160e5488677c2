#!/usr/bin/env python3
"""Compares token ids and decoded text with Hugging Face's tokenizers and with SentencePiece, on random strings.

usage: oracle_test.py ENCODE_LINES MODELS_DIRECTORY [SEED]

Exit code 77 (skipped) without the Python packages tokenizers, sentencepiece and protobuf.
"""
import json
import os
import sys
import tempfile
import time

from oracle_support import SPACE_MARK, VECTORS, Differences, RandomText, ask, ids_of, json_lines, replaced, skip

try:
    import gguf_vocabulary_json
    import sentencepiece
    import tokenizers
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
except ImportError as e:
    skip(f"{e.name} is not installed")

CONTROL, USER_DEFINED, BYTE = 3, 4, 6
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
          r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")


def of_type(vocabulary, wanted):
    return [t for t, kind in zip(vocabulary["tokens"], vocabulary["types"]) if kind == wanted]


def encode_all(tokenizer, texts, special):
    tokenizer.encode_special_tokens = not special
    return [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=special)]


class Test:
    def __init__(self, executable, models_directory, directory, seed):
        self.executable = executable
        self.models = models_directory
        self.directory = directory
        self.seed = seed
        self.differences = Differences()

    def dump(self, model):
        """The GGUF file's vocabulary and the path of its dump; none if the file is absent."""
        path = os.path.join(self.models, model)
        if not os.path.exists(path):
            print(f"PART SKIPPED: {path} is absent")
            return None, None
        out = os.path.join(self.directory, model + ".json")
        vocabulary = gguf_vocabulary_json.read(path)
        gguf_vocabulary_json.write(vocabulary, out)
        return vocabulary, out

    def save(self, name, tokenizer):
        os.makedirs(os.path.join(self.directory, name), exist_ok=True)
        path = os.path.join(self.directory, name, "tokenizer.json")
        tokenizer.save(path)
        return path

    def encode(self, path, bodies, command="encode"):
        return [ids_of(line) for line in ask(self.executable, path, [(command, b) for b in bodies])]

    def check_decode(self, name, path, id_lists, decode):
        bodies = [" ".join(map(str, ids)).encode() for ids in id_lists]
        expected = [decode(ids) for ids in id_lists]
        for command in ("decode", "stream"):
            actual = json_lines(ask(self.executable, path, [(command, b) for b in bodies]))
            self.differences.compare(f"{name}: {command}", id_lists, actual, expected)

    def check_json(self, name, tokenizer, count, specials, not_decoded=()):
        """A saved tokenizer.json against the tokenizer that saved it, special tokens parsed and not, and decoding."""
        path = self.save(name, tokenizer)
        bodies = self.bodies(name, count, specials)
        texts = [replaced(b) for b in bodies]
        plain = encode_all(tokenizer, texts, False)
        self.differences.compare(f"{name}: encode", bodies, self.encode(path, bodies), plain)
        special = encode_all(tokenizer, texts, True)
        self.differences.compare(f"{name}: special", bodies, self.encode(path, bodies, "special"), special)
        decoded = [ids for ids in plain[: count // 4] + special[: count // 4] if not set(ids) & set(not_decoded)]
        self.check_decode(name, path, decoded, lambda ids: tokenizer.decode(ids, skip_special_tokens=True))

    def bodies(self, name, count, specials):
        random = RandomText(f"{self.seed} {name}", specials)
        return [v.encode() for v in VECTORS] + [random.bytes() for _ in range(count)]


# --- SmolLM2: byte-level BPE ------------------------------------------------------------------------------------------------


def smollm2_oracle(vocabulary):
    vocab = {token: i for i, token in enumerate(vocabulary["tokens"])}
    merges = [tuple(m.split(" ", 1)) for m in vocabulary["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in of_type(vocabulary, CONTROL)])
    return tokenizer


def test_smollm2(test, count):
    vocabulary, path = test.dump("SmolLM2-135M-Instruct.Q4_1.gguf")
    if vocabulary is None:
        return
    tokenizer = smollm2_oracle(vocabulary)
    specials = of_type(vocabulary, CONTROL)
    bodies = test.bodies("smollm2", count, specials)
    texts = [replaced(b) for b in bodies]
    plain = encode_all(tokenizer, texts, False)
    test.differences.compare("SmolLM2 GGUF: encode", bodies, test.encode(path, bodies), plain)
    special = encode_all(tokenizer, texts, True)
    test.differences.compare("SmolLM2 GGUF: special", bodies, test.encode(path, bodies, "special"), special)
    saved = test.save("smollm2", tokenizer)
    test.differences.compare("SmolLM2 tokenizer.json: encode", bodies, test.encode(saved, bodies), plain)
    random = RandomText(f"{test.seed} ids").random
    wild = [[random.randrange(len(vocabulary["tokens"])) for _ in range(random.randint(0, 12))] for _ in range(4000)]
    test.check_decode("SmolLM2 GGUF", path, plain[:4000] + wild, lambda ids: tokenizer.decode(ids, skip_special_tokens=True))


# --- Gemma 3: SentencePiece ---------------------------------------------------------------------------------------------------


def gemma_sentencepiece(vocabulary):
    proto = sentencepiece_model_pb2.ModelProto()
    proto.trainer_spec.model_type = 2  # BPE
    proto.trainer_spec.byte_fallback = True
    proto.trainer_spec.unk_id = vocabulary["unk"]
    proto.trainer_spec.bos_id = vocabulary["bos"]
    proto.trainer_spec.eos_id = vocabulary["eos"]
    proto.trainer_spec.pad_id = vocabulary["pad"]
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = False
    proto.normalizer_spec.remove_extra_whitespaces = False
    proto.normalizer_spec.escape_whitespaces = True
    for i, (token, score, kind) in enumerate(zip(vocabulary["tokens"], vocabulary["scores"], vocabulary["types"])):
        # GGUF writes user-defined tokens with spaces, SentencePiece with marks.
        piece = token.replace(" ", SPACE_MARK) if kind == USER_DEFINED else token
        proto.pieces.add(piece=piece, score=score, type=2 if i == vocabulary["unk"] else kind)
    return sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())


def gemma_hugging_face(vocabulary):
    """In the form of Gemma's own tokenizer.json: merges made from the scores, user-defined tokens as added tokens."""
    tokens = [t.replace(" ", SPACE_MARK) if kind == USER_DEFINED else t
              for t, kind in zip(vocabulary["tokens"], vocabulary["types"])]
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = []
    for i, token in enumerate(tokens):
        kind = vocabulary["types"][i]
        if kind not in (1, USER_DEFINED):
            continue
        score = 1e9 if kind == USER_DEFINED else vocabulary["scores"][i]
        for cut in range(1, len(token)):
            left, right = vocab.get(token[:cut]), vocab.get(token[cut:])
            if left is not None and right is not None:
                merges.append((-score, len(token), left, right))
    merges.sort()
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[(tokens[l], tokens[r]) for _, _, l, r in merges], byte_fallback=True,
                                     fuse_unk=True, unk_token=tokens[vocabulary["unk"]]))
    tokenizer.normalizer = normalizers.Replace(" ", SPACE_MARK)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    bos = tokens[vocabulary["bos"]]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, vocabulary["bos"])])
    kinds = vocabulary["types"]
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=k == CONTROL)
                          for t, k in zip(tokens, kinds) if k in (CONTROL, USER_DEFINED)])
    return tokenizer


def test_gemma(test, count):
    vocabulary, path = test.dump("gemma-3-270m-q4_k_m.gguf")
    if vocabulary is None:
        return
    specials = of_type(vocabulary, CONTROL)[:8] + of_type(vocabulary, USER_DEFINED) + ["<start_of_turn>", "<end_of_turn>"]
    bodies = test.bodies("gemma", count, specials)
    processor = gemma_sentencepiece(vocabulary)
    plain = processor.encode([replaced(b) for b in bodies])
    test.differences.compare("Gemma GGUF against SentencePiece: encode", bodies, test.encode(path, bodies), plain)
    random = RandomText(f"{test.seed} ids").random
    wild = [[random.choice([random.randrange(len(vocabulary["tokens"])), random.randrange(238, 494)])
             for _ in range(random.randint(0, 12))] for _ in range(4000)]
    # SentencePiece shows unknown tokens, and ends a run of byte tokens at a control token.
    wild = [[i for i in ids if vocabulary["types"][i] != CONTROL] for ids in wild]
    test.check_decode("Gemma GGUF against SentencePiece", path, plain[:4000] + wild, processor.decode)

    tokenizer = gemma_hugging_face(vocabulary)
    saved = test.save("gemma", tokenizer)
    texts = [replaced(b) for b in bodies]
    hugging_face = encode_all(tokenizer, texts, False)
    test.differences.compare("Gemma tokenizer.json: encode", bodies, test.encode(saved, bodies), hugging_face)
    # The two forms are one tokenizer but for runs of spaces, which only one of them cuts out.
    simple = [i for i, t in enumerate(texts) if "  " not in t and SPACE_MARK not in t]
    few = [bodies[i] for i in simple]
    special = encode_all(tokenizer, [texts[i] for i in simple], True)
    test.differences.compare("Gemma GGUF against Hugging Face: special", few, test.encode(path, few, "special"), special)


# --- small tokenizers, trained here -------------------------------------------------------------------------------------------


def training_corpus():
    random = RandomText("corpus")
    here = os.path.dirname(os.path.abspath(__file__))
    lines = [t for t in (random.text() for _ in range(2000)) if "<0x" not in t]  # or it would be merged into a byte token
    for name in sorted(os.listdir(here)):
        if name.endswith((".py", ".cc")):
            with open(os.path.join(here, name), encoding="utf-8") as f:
                lines += [line for line in f.read().splitlines(keepends=True) if "<0x" not in line]
    return lines


def train_byte_level(pre_tokenizer, normalizer=None, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(training_corpus(), trainers.BpeTrainer(
        vocab_size=1500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return tokenizer


def train_characters(**options):
    """A vocabulary of characters, their merges, and the byte tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", SPACE_MARK)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(SPACE_MARK, "merged_with_next")
    tokenizer.train_from_iterator(training_corpus(), trainers.BpeTrainer(
        vocab_size=1500, limit_alphabet=400, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False))
    model = json.loads(tokenizer.to_str())["model"]
    vocab = dict(model["vocab"])
    for byte in options.pop("bytes", range(256)):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    return Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m) for m in model["merges"]], unk_token="<unk>", **options))


def bos(tokenizer, token):
    special = [(token, tokenizer.token_to_id(token))]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{token} $A", special_tokens=special)


def test_llama3_style(test, count):
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), byte_level])
    tokenizer = train_byte_level(split, ignore_merges=True)
    specials = ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>"]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in specials])
    bos(tokenizer, "<|begin_of_text|>")
    test.check_json("llama3-style", tokenizer, count, specials)


def test_qwen_style(test, count):
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"), byte_level])
    tokenizer = train_byte_level(split, normalizer=normalizers.NFC())
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in specials])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("d\u0323", normalized=True)])
    # Hugging Face decodes a normalized token to its normalised form, the library to its own.
    normalized = tokenizer.token_to_id("d\u0323")
    test.check_json("qwen-style", tokenizer, count, specials + ["<think>", "d\u0323", "\u1e0d"], [normalized])


def test_tekken_style(test, count):
    """A pattern that only the regular expression engine knows."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(TEKKEN), "isolated"), byte_level])
    test.check_json("tekken-style", train_byte_level(split, ignore_merges=True), count, [])


def test_odd_steps(test, count):
    """Every other splitting behaviour, and every flag of added tokens."""
    split = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.Split(Regex(r"[.,;:!?'\"/]"), "merged_with_previous"),
        pre_tokenizers.Split("e", "merged_with_next"), pre_tokenizers.Split(Regex(r"o+|x*"), "contiguous"),
        pre_tokenizers.Split(Regex(r"[^q]+"), "removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)])
    tokenizer = train_byte_level(split)
    tokenizer.add_special_tokens([AddedToken("<l>", lstrip=True, special=True, normalized=False),
                                  AddedToken("<r>", rstrip=True, special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("word", single_word=True, normalized=False), AddedToken("the", single_word=True),
                          AddedToken("<lr>", lstrip=True, rstrip=True, normalized=False), AddedToken("<lrx>", normalized=False)])
    test.check_json("odd-steps", tokenizer, count, ["<l>", "<r>", "word", "the", "<lr>", "<lrx>"])


def test_gemma_style(test, count):
    tokenizer = train_characters(byte_fallback=True, fuse_unk=True)
    tokenizer.normalizer = normalizers.Replace(" ", SPACE_MARK)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    tokenizer.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("\t\t", normalized=False)])
    bos(tokenizer, "<s>")
    test.check_json("gemma-style", tokenizer, count, ["<s>", "</s>", "\n\n", "\t\t"])


def llama2(tokenizer):
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    bos(tokenizer, "<s>")
    return tokenizer


def test_llama2_style(test, count):
    tokenizer = llama2(train_characters(byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), normalizers.Replace(" ", SPACE_MARK)])
    test.check_json("llama2-style", tokenizer, count, ["<s>", "</s>", "<unk>"])


def test_metaspace_style(test, count):
    for scheme, split in (("first", False), ("always", True), ("never", True)):
        tokenizer = llama2(train_characters(byte_fallback=True, fuse_unk=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE_MARK, prepend_scheme=scheme, split=split)
        if scheme == "always":
            tokenizer.decoder = decoders.Metaspace(SPACE_MARK, prepend_scheme=scheme, split=split)
        test.check_json(f"metaspace-{scheme}", tokenizer, count // 3, ["<s>", "</s>"])


def test_unknown_characters(test, count):
    for fuse in (False, True):
        tokenizer = train_characters(byte_fallback=False, fuse_unk=fuse)
        tokenizer.normalizer = normalizers.Replace(" ", SPACE_MARK)
        tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE_MARK, " "), decoders.Fuse()])
        tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")])
        test.check_json(f"unknown-fused-{fuse}", tokenizer, count // 2, ["<s>"])


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    seed = sys.argv[3] if len(sys.argv) == 4 else "1"
    print(f"seed {seed}; tokenizers {tokenizers.__version__}, sentencepiece {sentencepiece.__version__}")
    with tempfile.TemporaryDirectory() as directory:
        test = Test(sys.argv[1], sys.argv[2], directory, seed)
        for run, count in ((test_smollm2, 100000), (test_gemma, 100000), (test_llama3_style, 5000), (test_qwen_style, 5000),
                           (test_tekken_style, 2000), (test_odd_steps, 5000), (test_gemma_style, 5000), (test_llama2_style, 5000),
                           (test_metaspace_style, 6000), (test_unknown_characters, 2000)):
            begin = time.time()
            run(test, count)
            print(f"  {run.__name__}: {time.time() - begin:.1f} s", flush=True)
        test.differences.exit()


if __name__ == "__main__":
    main()
