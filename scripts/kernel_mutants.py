"""Where a kernel can be broken, and one source that holds all the ways, switched on by number at run time.

A mutant is one of: a __syncthreads, __syncwarp, cp_async_wait, cp_async_commit or mask left out, or a wait for one copy group fewer; one
comparison of a condition taken for true or false, or with its bound moved by one; the last turn of a loop left out; an integer
one larger; + for - and the like; min for max. Only code marked __global__ or QUIRE_DEVICE is broken (of a .cc file: all bodies).

`with_all` inserts every mutant as a choice (Untch et al. 1993, "Mutation analysis using mutant schemata"): one compilation serves
all of them. Constants that the compiler needs (template arguments, array sizes, static_assert) keep their values and count as
never reached.
"""

import dataclasses
import re

ORDER = ("__syncthreads", "__syncwarp", "cp_async_wait", "cp_async_commit")
CALLS = (*ORDER, "mask")  # that are left out; those of order only the race detector is sure to miss
COMPARISON = re.compile(r"(?<![<>\-=])(?:<=|>=|==|!=|<|>)(?![<>=])")
OPERATORS = {"+": "-", "-": "+", "*": "a row further", "/": "%", "%": "/", "^": "|", "<<": ">>", ">>": "<<"}
BOUNDS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
# A quotient of constants that something is divided by: where it is whole its remainder is 0, and compilers take a division by 0
# for one that is never done.
DIVISOR = re.compile(r"[/%] \((?:\d+|k[A-Z]\w*) (/) (?:\d+|k[A-Z]\w*)\)")
INTEGER = re.compile(r"(?<![\w.])(?:0[xX][0-9a-fA-F]+|\d+)[uUlL]*(?![\w.'])")


@dataclasses.dataclass(frozen=True)
class Mutant:
    file: str  # from the root
    begin: int  # of the text it stands for
    end: int
    before: str  # what is inserted there; {n} is the mutant's number
    after: str
    what: str  # "without __syncthreads", "true: i < n", "+ to - (2)": the second of the line
    line: int
    line_text: str

    @property
    def key(self):
        return (self.file, self.what, self.line_text)

    @property
    def needs_races(self):
        return self.what.startswith("without") and self.what.split()[1] in ORDER

    def __str__(self):
        return f"{self.file}:{self.line}: {self.what}   [{self.line_text}]"


# ---- finding places


def blank_comments_and_strings(text):
    """The same text, of the same length, with blanks in place of comments, strings and preprocessor lines."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<![0-9a-zA-Z])\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#[^\n]*', re.S | re.M)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def matching(code, at):
    """The index of the bracket that closes the one at `at`."""
    pairs = {"(": ")", "{": "}", "[": "]"}
    depth, opening, closing = 0, code[at], pairs[code[at]]
    for i in range(at, len(code)):
        if code[i] == opening:
            depth += 1
        elif code[i] == closing:
            depth -= 1
            if depth == 0:
                return i
    raise ValueError("unbalanced brackets")


def device_bodies(code):
    """[begin, end) of the bodies of device functions."""
    bodies = []
    for mark in re.finditer(r"\b(?:QUIRE_DEVICE|__global__)\b", code):
        brace = code.find("{", mark.end())
        semicolon = code.find(";", mark.end())
        if brace < 0 or (0 <= semicolon < brace):
            continue
        # A constructor may have initialisers in braces before its body.
        while True:
            close = matching(code, brace)
            rest = code[close + 1 :].lstrip()
            if rest.startswith((",", "{")):
                brace = code.index("{", close + 1)
            else:
                break
        if not bodies or brace > bodies[-1][1]:
            bodies.append((brace, close))
    return bodies


def host_bodies(code):
    bodies = []
    for start in re.finditer(r"\)\s*(?:const\s*)?\{", code):
        if not bodies or start.end() > bodies[-1][1]:
            bodies.append((start.end() - 1, matching(code, start.end() - 1)))
    return bodies


def conjuncts(code, begin, end):
    """[begin, end) of the parts of a condition between && and || on its outermost level, trimmed."""
    parts, depth, start, i = [], 0, begin, begin
    while i < end:
        if code[i] in "([{":
            depth += 1
        elif code[i] in ")]}":
            depth -= 1
        elif depth == 0 and code[i : i + 2] in ("&&", "||"):
            parts.append((start, i))
            start = i + 2
            i += 1
        i += 1
    for a, b in parts + [(start, end)]:
        while a < b and code[a].isspace():
            a += 1
        while b > a and code[b - 1].isspace():
            b -= 1
        yield a, b


def condition_of_choice(code, question):
    """Where the condition of the `?` at `question` begins."""
    depth = 0
    for i in range(question - 1, -1, -1):
        c = code[i]
        if c in ")]}":
            depth += 1
        elif c in "([{":
            if depth == 0:
                return i + 1
            depth -= 1
        elif depth == 0:
            if c in ";,?:":
                return i + 1
            if c == "=" and code[i - 1] not in "<>=!" and code[i + 1] != "=":
                return i + 1
            if code[i - 5 : i + 1] == "return":
                return i + 1
    return 0


def conditions(code, begin, end, values):
    """(begin, end, before, after, what) for each comparison of a condition."""
    for a, b in conjuncts(code, begin, end):
        flat = re.sub(r"<[\w:, ]*>\(", lambda m: " " * (len(m.group()) - 1) + "(", code[a:b])  # f<kN>(x) compares nothing
        if COMPARISON.search(flat):
            for value in values:
                yield a, b, f"(mutant::on({{n}}) ? {value} : (", "))", f"{value}: " + " ".join(code[a:b].split())


def loop_heads(code, begin, end):
    for loop in re.finditer(r"\bfor\s*\(", code[begin:end]):
        first = begin + loop.end()
        close = matching(code, first - 1)
        if code[first:close].count(";") == 2:
            yield code.index(";", first) + 1, code.rindex(";", first, close)


def calls_and_conditions(code, begin, end):
    for call in re.finditer(r"\b(" + "|".join(CALLS) + r")\b\s*(?:<([^;()]*(?:\([^;()]*\)[^;()]*)*)>)?\s*\(", code[begin:end]):
        name, argument = call.groups()
        at, close = begin + call.start(), matching(code, begin + call.end() - 1) + 1
        yield at, close, "(mutant::on({n}) ? (void)0 : ", ")", f"without {name}"
        if name == "cp_async_wait":
            yield at, close, f"(mutant::on({{n}}) ? cp_async_wait<({argument}) + 1>() : ", ")", "waits for a group fewer"
    for condition in re.finditer(r"\bif\s*\(", code[begin:end]):
        first = begin + condition.end()
        close = matching(code, first - 1)
        leaves = re.match(r"\s*\{?\s*(?:return|continue|break)\b", code[close + 1 :]) is not None
        yield from conditions(code, first, close, ["false"] if leaves else ["true"])
    for choice in re.finditer(r"\?", code[begin:end]):
        question = begin + choice.start()
        yield from conditions(code, condition_of_choice(code, question), question, ["true", "false"])
    for first, close in loop_heads(code, begin, end):
        for a, b in list(conjuncts(code, first, close))[1:]:  # a loop that never ends proves nothing; its second condition may be a bound
            yield from conditions(code, a, b, ["true"])


def arithmetic(code, begin, end):
    """(begin, end, before, after, what) of operators and integers. clang-format has put blanks around binary operators."""
    heads = list(loop_heads(code, begin, end))
    in_head = lambda at: any(a <= at < b for a, b in heads)
    divisors = {divisor.start(1) for divisor in DIVISOR.finditer(code, begin, end)}
    for found in re.finditer(r" (<<|>>|<=|>=|[-+*/%^<>]) ", code[begin:end]):
        operator, at = found.group(1), begin + found.end()
        if begin + found.start(1) in divisors:
            continue
        if operator in BOUNDS and in_head(at):
            kind, what = "kFewer", "without the last turn"
        elif operator in BOUNDS:
            kind, what = "kBound", f"{operator} to {BOUNDS[operator]}"
        else:
            kind, what = "kOther", f"{operator} to {OPERATORS[operator]}"
        yield at, at, f"mutant::Operator<{{n}}, mutant::{kind}>{{{{}}}} {operator} ", "", what
    for found in re.finditer(r" [-+]= ", code[begin:end]):
        yield begin + found.end(), begin + found.end(), "mutant::Step<{n}>{{}} + ", "", "steps one more"
    for found in INTEGER.finditer(code, begin, end):
        if not in_head(found.start()):
            yield *found.span(), "mutant::larger<{n}>(", ")", f"{found.group()} plus 1"
    for found in re.finditer(r"\b(?:min|max)\(", code[begin:end]):
        at = begin + found.start()
        if code[at - 1] not in ":.":
            yield at, at + 3, "mutant::Bound<{n}>::", "", f"{code[at : at + 3]} to {'max' if code[at : at + 3] == 'min' else 'min'}"


def mutants_of(path, root):
    text = path.read_text()
    code = blank_comments_and_strings(text)
    lines = text.splitlines()
    found = {}
    for begin, end in host_bodies(code) if path.suffix == ".cc" else device_bodies(code):
        for places in (calls_and_conditions, arithmetic):
            for place in places(code, begin, end):
                found[place] = text.count("\n", 0, place[0])
    mutants, times = [], {}
    for (begin, end, before, after, what), line in sorted(found.items(), key=lambda item: item[0]):
        if places_in_line := what.find(": ") < 0:
            times[line, what] = times.get((line, what), 0) + 1
        if places_in_line and times[line, what] > 1:
            what += f" ({times[line, what]})"
        mutants.append(Mutant(str(path.relative_to(root)), begin, end, before, after, what, line + 1, lines[line].strip()))
    return mutants


# ---- one source for all


def with_all(text, numbered):
    """The text with a choice for each (number, mutant)."""
    # At one place: what closes, the inner one first; what follows an operator; what opens, the outer one first.
    insertions = []
    for number, m in numbered:
        insertions.append((m.begin, 2 if m.end > m.begin else 1, -m.end, number, m.before.format(n=number)))
        if m.after:
            insertions.append((m.end, 0, -m.begin, -number, m.after))
    parts, last = [], 0
    for place, *_, inserted in sorted(insertions):
        parts += [text[last:place], inserted]
        last = place
    return "".join(parts) + text[last:]


HEADER = """#pragma once
#include <type_traits>
namespace mutant {
extern int active;                // number of the mutant; -1: none, but note in `reached` which would be
extern unsigned char reached[];
#if defined(__SANITIZE_THREAD__)
__attribute__((no_sanitize("thread")))
#endif
inline bool is_active(int n) {
  if (active < 0) reached[n] = 1;
  return active == n;
}
constexpr bool on(int n) { return __builtin_is_constant_evaluated() ? false : is_active(n); }
template <int n> struct Step {};  // a += Step() + b
template <int n, typename T> constexpr T operator+(Step<n>, T x) { return on(n) ? static_cast<T>(x + 1) : x; }
template <int n, typename T> constexpr T larger(T x) { return on(n) ? static_cast<T>(x + 1) : x; }
template <int n> struct Bound {
  template <typename T> static constexpr T min(T a, T b) { return (b < a) != on(n) ? b : a; }
  template <typename T> static constexpr T max(T a, T b) { return (a < b) != on(n) ? b : a; }
};
enum Kind { kOther, kBound, kFewer };
template <int n, Kind kind> struct Operator {};  // a + Operator() + b: an operator that may become another
template <int n, Kind kind, typename T> struct Left { T value; };
#define MUTANT_OPERATOR(op, other, otherwise)                                                              \\
  template <int n, Kind kind, typename T>                                                                  \\
  constexpr Left<n, kind, T> operator op(T a, Operator<n, kind>) { return {a}; }                           \\
  template <int n, Kind kind, typename T, typename U>                                                      \\
  constexpr auto operator op(Left<n, kind, T> a, const U& b) {                                             \\
    using R = std::decay_t<decltype(a.value op b)>;                                                        \\
    if (!on(n)) return static_cast<R>(a.value op b);                                                       \\
    if constexpr (requires { static_cast<R>(a.value other b); }) return static_cast<R>(a.value other b);   \\
    else return static_cast<R>(otherwise);                                                                 \\
  }
MUTANT_OPERATOR(+, -, (a.value + b) + 1)
MUTANT_OPERATOR(-, +, (a.value - b) + 1)
MUTANT_OPERATOR(*, * b +, a.value * b)
MUTANT_OPERATOR(/, %, a.value * b)
MUTANT_OPERATOR(%, /, a.value % b)
MUTANT_OPERATOR(^, |, a.value ^ b)
MUTANT_OPERATOR(<<, >>, a.value << b)
MUTANT_OPERATOR(>>, <<, a.value >> b)
#define MUTANT_BOUND(op, other, toward)                                                                    \\
  template <int n, Kind kind, typename T>                                                                  \\
  constexpr Left<n, kind, T> operator op(T a, Operator<n, kind>) { return {a}; }                           \\
  template <int n, Kind kind, typename T, typename U>                                                      \\
  constexpr bool operator op(Left<n, kind, T> a, const U& b) {                                             \\
    if (!on(n)) return a.value op b;                                                                       \\
    if constexpr (kind == kFewer) return a.value toward 1 op b;                                            \\
    else return a.value other b;                                                                           \\
  }
MUTANT_BOUND(<, <=, +)
MUTANT_BOUND(<=, <, +)
MUTANT_BOUND(>, >=, -)
MUTANT_BOUND(>=, >, -)
}  // namespace mutant
"""

SWITCH = """#include <cstdio>
#include <cstdlib>
namespace mutant {
int active = std::getenv("MUTANT") ? std::atoi(std::getenv("MUTANT")) : 0;
unsigned char reached[COUNT];
struct Report {
  ~Report() {
    const char* path = std::getenv("MUTANTS_REACHED");
    std::FILE* file = path ? std::fopen(path, "wb") : nullptr;
    if (file == nullptr) return;
    std::fwrite(reached, 1, sizeof reached, file);
    std::fclose(file);
  }
} report;
}  // namespace mutant
"""
