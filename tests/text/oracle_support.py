"""What the oracle tests share: talking to encode_lines, random text, and counting differences."""
import json
import random
import subprocess
import sys
import unicodedata

SKIP = 77  # ctest's SKIP_RETURN_CODE
SPACE_MARK = "\u2581"


def skip(reason):
    print(f"SKIPPED: {reason}")
    sys.exit(SKIP)


def ask(executable, tokenizer, requests):
    """The answers of encode_lines to (command, bytes) pairs, as lines of text."""
    data = b"".join(b"%s %d\n%s\n" % (command.encode(), len(body), body) for command, body in requests)
    result = subprocess.run([executable, tokenizer], input=data, capture_output=True, check=False)
    if result.returncode != 0:
        sys.exit(f"encode_lines {tokenizer}: {result.stderr.decode()}")
    lines = result.stdout.decode().split("\n")[:-1]
    if len(lines) != len(requests):
        sys.exit(f"encode_lines {tokenizer}: {len(lines)} answers to {len(requests)} requests")
    return lines


def ids_of(line):
    return line if line.startswith("error") else [int(x) for x in line.split()]


class Differences:
    """Counts comparisons, shows the first few that fail."""

    def __init__(self):
        self.compared = 0
        self.different = 0

    def check(self, name, given, actual, expected):
        self.compared += 1
        if actual == expected:
            return
        self.different += 1
        if self.different <= 20:
            print(f"DIFFERENT {name}\n  given    {given!r}\n  quire    {actual!r}\n  expected {expected!r}")

    def compare(self, name, givens, actuals, expecteds):
        before = self.different
        for given, actual, expected in zip(givens, actuals, expecteds, strict=True):
            self.check(name, given, actual, expected)
        print(f"{name}: {len(givens)} compared, {self.different - before} different", flush=True)

    def exit(self):
        print(f"total: {self.compared} compared, {self.different} different")
        sys.exit(1 if self.different else 0)


def assigned(code_point):
    """Assigned in Unicode 14, the version of the library's tables; newer Pythons know more, so ask them for less."""
    if 0xD800 <= code_point < 0xE000:
        return False
    known = unicodedata if unicodedata.unidata_version == "14.0.0" else unicodedata.ucd_3_2_0
    return known.category(chr(code_point)) != "Cn"


class RandomText:
    """Strings that tokenizers are known to disagree about. The same seed gives the same strings."""

    SCRIPTS = [(0x20, 0x7F), (0xA0, 0x180), (0x370, 0x400), (0x400, 0x500), (0x590, 0x600), (0x600, 0x700), (0x900, 0x980),
               (0xE00, 0xE80), (0x1100, 0x1200), (0x1E00, 0x2000), (0x3040, 0x3100), (0x4E00, 0x5000), (0xAC00, 0xAD00),
               (0x300, 0x370), (0x2000, 0x2070), (0x1F300, 0x1F700), (0x0, 0x20), (0x2150, 0x2190), (0xFF00, 0xFFF0)]
    SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", " \n", "\u00a0", "\u3000", "\u2028", "\u1680", "\x0b", "\x85",
              "\u200b", "\u180e", "\ufeff", SPACE_MARK]
    WORDS = ["the", "Hello", "world", "don't", "I'll", "WE'RE", "it'S", "you'Ve", "'s", "'T", "'\u017f", "''", "caf\u00e9",
             "cafe\u0301", "Vi\u1ec7t", "na\u00efve", "stra\u00dfe", "\u0130",
             "def f(x):", "return", "0x1F", "3.14159", "1234567890",
             "\u0661\u0662\u0663", "\u00bd", "\u2167", "A\u030a\u0323", "\u1e9b\u0323", "e\u0323\u0302", "\u1112\u1161\u11ab",
             "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "\U0001f44d\U0001f3fd",
             "\u6f22\u5b57", "\u30ab\u3099", "\u0e20\u0e32\u0e29\u0e32", "\u0939\u093f\u0928\u094d\u0926\u0940", "\x00", "\x7f",
             "<0x0A>", "!!!", "...", "---", "/*", "*/", "&&", "\ufffd", "_a_", "http://x.y/z?q=1"]

    def __init__(self, seed, specials=()):
        self.random = random.Random(seed)
        self.specials = list(specials)
        self.everything = [c for c in range(0x110000) if assigned(c)]
        self.scripts = [[c for c in range(a, b) if assigned(c)] for a, b in self.SCRIPTS]

    def piece(self):
        r = self.random
        kind = r.random()
        if kind < 0.28:
            return r.choice(self.WORDS)
        if kind < 0.50:
            return r.choice(self.SPACES) * r.choice([1, 1, 1, 1, 2, 3, 5])
        if kind < 0.70:
            script = r.choice(self.scripts)
            return "".join(chr(r.choice(script)) for _ in range(r.randint(1, 8)))
        if kind < 0.78:
            return "".join(chr(r.choice(self.everything)) for _ in range(r.randint(1, 4)))
        if kind < 0.84:
            return r.choice(" \n\ta0'_") * r.randint(1, 40)
        if kind < 0.94 and self.specials:
            return r.choice(self.specials)
        return "".join(r.choice("abcdefghijklmnopqrstuvwxyzABCDEF0123456789'., ") for _ in range(r.randint(1, 12)))

    def text(self):
        return "".join(self.piece() for _ in range(self.random.randint(0, 10)))

    def bytes(self):
        """Mostly UTF-8, sometimes broken."""
        body = bytearray(self.text().encode())
        if self.random.random() < 0.15:
            for _ in range(self.random.randint(1, 4)):
                at = self.random.randint(0, len(body))
                if self.random.random() < 0.5:
                    body[at:at + 1] = b""
                else:
                    body[at:at] = bytes(self.random.choice([0x80, 0xBF, 0xC0, 0xC3, 0xE2, 0xED, 0xA0, 0xF0, 0x9F, 0xF4, 0xFF])
                                        for _ in range(self.random.randint(1, 3)))
        return bytes(body)


# The places in which engines have differed; compared whatever the seed.
VECTORS = [
    "", " ", "  ", "<s> a", "<s>a", "<|im_start|>user\nHi<|im_end|>", "<start_of_turn>user\nHi<end_of_turn>", " Vi\u1ec7t", " a", "a ",
    "\x00", "a\x00b", "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "1234567890", "a\r\nb\r\n\r\nc", "\t\t\tx",
    "don't I'LL", "\u6f22\u5b57\u304b\u306a \u0440\u0443\u0441 \u0639\u0631\u0628", "\n" * 40, " " * 40 + "x", "\u2581\u2581",
    "<0x0A>", "\u0120the",
]


def replaced(body):
    """The text that quire encodes: what is not UTF-8 is U+FFFD, one per maximal subpart."""
    return body.decode("utf-8", "replace")


def json_lines(lines):
    return [line if line.startswith("error") else json.loads(line) for line in lines]
