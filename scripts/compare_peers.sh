#!/usr/bin/env bash
# Compares quire with llama.cpp and OpenVINO GenAI on this machine: same model files, threads and work, runs alternated.
#   scripts/compare_peers.sh [--quick] [--cells LIST] [--models LIST] [--rounds N] [--force] [--json FILE] ...
# From nothing: it builds llama.cpp (llama-bench, llama-batched-bench, llama-server) from the pinned sdist of PyPI's
# llama-cpp-python with every instruction of this machine, installs the pinned openvino-genai in an environment of its own, and builds
# quire's benchmarks, all under build-peers/ and build-dev/; then scripts/compare_peers.py measures (its --help has all options).
#   scripts/compare_peers.sh --accuracy
# writes the peers' distance to tests/golden beside quire's instead. docs/benchmarks.md says what each cell is.
set -euo pipefail
cd "$(dirname "$0")/.."

llama_version=0.3.36       # of llama-cpp-python, which carries llama.cpp's sources
openvino_version=2026.4.1.0
peers="$PWD/build-peers"
python="$peers/venv/bin/python"
jobs="$(nproc)"

case " $* " in
  *" --help "* | *" -h "*) sed -n '2,/^set/ { /^set/d; s/^# \{0,1\}//; p }' scripts/compare_peers.sh; exec python3 scripts/compare_peers.py --help ;;
  *" --markdown "*) exec python3 scripts/compare_peers.py "$@" ;;  # it runs nothing
esac
# What the wanted cells need of llama.cpp and of quire; wrong arguments end here, before anything is built for them.
needs="$(python3 scripts/compare_peers.py --needs "$@")"
IFS=';' read -r llama_targets quire_targets isa <<< "$needs"
read -ra llama_targets <<< "$llama_targets"
read -ra quire_targets <<< "$quire_targets"

# Runs a command quietly and shows its output only if it fails.
quietly() {
  local log="$peers/$1.log"
  shift
  if ! "$@" > "$log" 2>&1 < /dev/null; then
    tail -n 40 "$log" >&2
    echo "compare_peers: '$*' failed; the end of $log is above" >&2
    return 1
  fi
}

install_python() {
  "$python" -m pip --version > /dev/null 2>&1 || python3 -m venv "$peers/venv"
  # numpy and gguf for make_f16_model.py, the rest for llama-cpp-python's own bindings, which read the library built below.
  quietly pip "$python" -m pip install --no-input --disable-pip-version-check "openvino-genai==$openvino_version" \
    numpy==2.4.6 gguf==0.19.0 jinja2==3.1.6 diskcache==5.6.3 typing-extensions
}

build_llama() {
  local source="$peers/llama_cpp_python-$llama_version" build="$peers/llama.cpp-$isa" native=ON
  if [[ ! -d "$source" ]]; then
    quietly download "$python" -m pip download --no-input --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
      --dest "$peers" "llama-cpp-python==$llama_version"
    tar -xzf "$peers/llama_cpp_python-$llama_version.tar.gz" -C "$peers"
  fi
  # Without GGML_NATIVE llama.cpp is built for AVX2, FMA and F16C.
  [[ "$isa" == native ]] || native=OFF
  local compilers=()
  # GCC 12 drops stores that fill the tile configuration, so that llama.cpp's AMX code dies; clang does not.
  if grep -qw amx_tile /proc/cpuinfo && command -v clang++ > /dev/null; then
    compilers=(-DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++)
  fi
  quietly llama-configure cmake -S "$source/vendor/llama.cpp" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=$native \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
    -DLLAMA_OPENSSL=OFF "${compilers[@]}"
  quietly llama-build nice cmake --build "$build" -j "$jobs" --target "${llama_targets[@]}"
}

build_quire() {
  quietly quire-configure cmake --preset dev
  quietly quire-build nice cmake --build --preset dev -j "$jobs" --target "${quire_targets[@]}"
}

mkdir -p "$peers"
echo "[1/4] Python packages: openvino-genai $openvino_version and what reads models"
install_python
echo "[2/4] llama.cpp of llama-cpp-python $llama_version (the first time some minutes)"
build_llama
echo "[3/4] quire's benchmarks"
build_quire
echo "[4/4] Measuring"
QUIRE_LLAMA_VERSION="$llama_version" exec "$python" scripts/compare_peers.py "$@"
