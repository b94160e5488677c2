#!/usr/bin/env python3
"""Writes the tokenizer metadata of a GGUF file as JSON, for tests that need a real vocabulary without the library's GGUF reader.

usage: gguf_vocabulary_json.py MODEL.gguf OUT.json
"""
import json
import mmap
import struct
import sys

FIELDS = {
    "tokenizer.ggml.model": "model",
    "tokenizer.ggml.pre": "pre",
    "tokenizer.ggml.tokens": "tokens",
    "tokenizer.ggml.scores": "scores",
    "tokenizer.ggml.token_type": "types",
    "tokenizer.ggml.merges": "merges",
    "tokenizer.ggml.bos_token_id": "bos",
    "tokenizer.ggml.eos_token_id": "eos",
    "tokenizer.ggml.eot_token_id": "eot",
    "tokenizer.ggml.eom_token_id": "eom",
    "tokenizer.ggml.unknown_token_id": "unk",
    "tokenizer.ggml.padding_token_id": "pad",
    "tokenizer.ggml.add_bos_token": "add_bos",
    "tokenizer.ggml.add_eos_token": "add_eos",
    "tokenizer.ggml.add_space_prefix": "add_space_prefix",
    "tokenizer.chat_template": "chat_template",
}
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}  # GGUF type to struct's
STRING, ARRAY = 8, 9


class Reader:
    def __init__(self, data, offset=0):
        self.data = data
        self.offset = offset

    def take(self, layout, count=1):
        values = struct.unpack_from(f"<{count}{layout}", self.data, self.offset)
        self.offset += struct.calcsize(f"<{count}{layout}")
        return values

    def string(self):
        (length,) = self.take("Q")
        self.offset += length
        return self.data[self.offset - length:self.offset].decode("utf-8")

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            return self.take(FORMATS[kind])[0]
        (of,), (count,) = self.take("I"), self.take("Q")
        return list(self.take(FORMATS[of], count)) if of in FORMATS else [self.value(of) for _ in range(count)]


def read(path):
    """The fields of src/text/gguf_vocabulary.h that the file has."""
    with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != b"GGUF":
            sys.exit(f"{path}: not a GGUF file")
        reader = Reader(data, 16)  # behind magic, version and the number of tensors
        vocabulary = {}
        for _ in range(reader.take("Q")[0]):
            key, (kind,) = reader.string(), reader.take("I")
            value = reader.value(kind)
            if key in FIELDS:
                vocabulary[FIELDS[key]] = value
        return vocabulary


def write(vocabulary, out):
    with open(out, "w", encoding="utf-8") as f:
        json.dump(vocabulary, f, ensure_ascii=False)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    write(read(sys.argv[1]), sys.argv[2])
