#!/usr/bin/env bash
# From a bare Debian 12 to an answer of a real model: packages, model (98 MB), build, question.
#   scripts/quickstart.sh ["question"]        (after "--" if it begins with a dash)
# A second run repeats only the question. Nothing outside this folder changes, save for the Debian packages.
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ "${1:-}" == --help || "${1:-}" == -h ]]; then
  sed -n '2,/^set/ { /^set/d; s/^# \{0,1\}//; p }' scripts/quickstart.sh
  exit 0
fi
if [[ "${1:-}" == -- ]]; then
  shift
elif [[ "${1:-}" == -* ]]; then
  set -- too many
fi
if (($# > 1)); then
  echo 'usage: scripts/quickstart.sh ["question"], or -- "question" if it begins with a dash' >&2
  exit 2
fi
question="${1:-What is the capital of France?}"

# Ninja's counter on a terminal, nothing elsewhere.
show_progress() {
  local line
  while read -r line; do
    if [[ -t 1 && "$line" =~ ^\[([0-9]+)/([0-9]+)\] ]]; then
      printf '\r      %s of %s' "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}"
    fi
  done
  [[ ! -t 1 ]] || printf '\r\033[K'
}

# Runs a command quietly and shows its output only if it fails.
quietly() {
  local log=build/quickstart.log
  if ! "$@" 2>&1 | tee "$log" | show_progress; then
    tail -n 40 "$log" >&2
    echo "quickstart: '$*' failed; the end of $log is above" >&2
    return 1
  fi
}

mkdir -p build
echo "[1/4] Packages: the compiler and the libraries of scripts/packages.txt (about a minute on a bare machine)"
scripts/install_packages.sh build
echo "[2/4] Model: SmolLM2 135M Instruct, 4 bits, 98 MB"
model="$(scripts/fetch_model.sh smollm2 | tail -n 1)"
echo "[3/4] Build: the library and examples/chat, Release (a few minutes the first time)"
quietly cmake --preset release
quietly cmake --build --preset release --target chat generate
shown="${question//$'\n'/ }"
((${#shown} <= 80)) || shown="${shown:0:77}..."
echo "[4/4] Question: $shown"
echo
# A system prompt of our own: with the one that its template puts in, "The" and "L" are so close for the first token of this answer that the
# rounding of activations decides (docs/quality.md).
build/examples/chat --model "$model" --temperature 0 --system "You are a helpful assistant." --once="$question"
