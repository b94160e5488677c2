#!/usr/bin/env bash
# The chat program as a person meets it: chat_test.sh CHAT_PROGRAM. Exit status 77: the command line is right, but there is no model
# to talk to.
set -uo pipefail
chat="$1"
root="$(cd "$(dirname "$0")/../.." && pwd)"
model="$root/models/SmolLM2-135M-Instruct.Q4_1.gguf"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
failures=0

# expect STATUS PATTERN ARGUMENTS...: how the program ends without input, and what it writes to standard output or error.
expect() {
  local status="$1" pattern="$2"
  shift 2
  "$chat" "$@" < "${input:-/dev/null}" > "$work/out" 2>&1
  local was=$?
  if ((was != status)) || ! grep -q -e "$pattern" "$work/out"; then
    echo "FAILED: chat $(printf '%.40q ' "$@"): status $was, expected $status and '$pattern' in:"
    head -c 2000 "$work/out"
    failures=$((failures + 1))
  fi
}

expect 0 "--once" --help
expect 2 "--model is required"
expect 2 "--nonsense" --model x --nonsense
expect 2 "the question is empty" --model x --once ""
expect 2 "the question is empty" --model x --once "  "
expect 1 "x: no such file" --model x --once hello

(("$failures" == 0)) || exit 1
[[ -f "$model" ]] || { echo "no $model: scripts/fetch_model.sh smollm2 brings it"; exit 77; }

long="$(printf 'word%.0s ' {1..2000})"
small=(--model "$model" --max-context 128 --max-tokens 8 --temperature 0 --system "Be brief.")
expect 1 'chat: the question "word word .*\.\.\." makes a prompt of 20[0-9][0-9] tokens; the context holds 128' "${small[@]}" --once "$long"
(("$(wc -c < "$work/out")" < 200)) || { echo "FAILED: a long question is echoed"; failures=$((failures + 1)); }

# Six turns do not fit; a question that never could is refused in between; the dialogue goes on.
printf 'What is a %s?\n' cat dog cow pig hen > "$work/lines"
printf '%s\n' "$long" 'What is a fox?' >> "$work/lines"
input="$work/lines" expect 0 "the context of 128 tokens is full: turns forgotten: ." "${small[@]}"
(("$(grep -c '^\[.* prompt tokens' "$work/out")" == 6)) || { echo "FAILED: not six answers:"; cat "$work/out"; failures=$((failures + 1)); }
echo "$failures failed checks"
((failures == 0))
