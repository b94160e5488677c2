#!/usr/bin/env bash
# Everything that wants a GPU, on one: builds quire with CUDA (from gpu_check_deps/ of scripts/gpu_check_prepare.sh if that is
# there, without a network), runs the tests of kernels and engine on the device, a short set of them under compute-sanitizer, then
# the benchmarks. Every part has a time limit, together under ten minutes, and what one part finds stops no other.
#   scripts/gpu_check.sh [FOLDER]   results go to FOLDER (default gpu_check/): results.json, and the parts' logs
set -uo pipefail
cd "$(dirname "$0")/.."

out="${1:-gpu_check}"
mkdir -p "$out"
parts=()

# part NAME SECONDS COMMAND...: its output to NAME.log, its end to the list of results.
part() {
  local name="$1" limit="$2" begin status
  shift 2
  echo "== $name (at most $limit s)"
  begin="$(date +%s)"
  timeout --kill-after=5 "$limit" "$@" > "$out/$name.log" 2>&1
  status=$?
  tail -n 3 "$out/$name.log"
  parts+=("{\"part\": \"$name\", \"status\": $status, \"seconds\": $(($(date +%s) - begin)), \"limit_s\": $limit}")
  return "$status"
}

build() {
  local options=(-DCMAKE_CUDA_ARCHITECTURES="${QUIRE_GPU_ARCHITECTURES:-90a-real}")
  if [[ -d gpu_check_deps ]]; then
    options+=("-DCMAKE_MODULE_PATH=$PWD/gpu_check_deps/cmake" "-DCMAKE_BUILD_RPATH=$PWD/gpu_check_deps/lib")
  fi
  command -v ninja > /dev/null || options+=(-G "Unix Makefiles")
  cmake --preset cuda "${options[@]}" && cmake --build --preset cuda -j "$(nproc)"
}

tests() { (cd build-cuda && ctest -L cuda -j 4 --output-on-failure --timeout 100); }

# Out-of-bounds accesses, races, and reads of what nobody wrote, in a small case of both attention kernels. A filter that names no
# test would pass.
sanitize() {
  local status=0 tool test=build-cuda/tests/kernels/cuda/cuda_attention_test filter='*CudaAttention.RowsOfAWiderMatrix*'
  [[ -n "$("$test" --gtest_list_tests --gtest_filter="$filter")" ]] || { echo "no test is called $filter"; return 1; }
  for tool in memcheck racecheck initcheck; do
    compute-sanitizer --tool "$tool" --error-exitcode 9 "$test" --gtest_filter="$filter" || status=1
  done
  return "$status"
}

# PyTorch's attention on the same prefill shapes, if PyTorch is there.
torch_peer() { python3 scripts/gpu_check_torch.py; }

export -f build tests sanitize torch_peer
nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,memory.total --format=csv,noheader > "$out/gpu.log" 2>&1
part build 270 bash -c build && {
  part tests 100 bash -c tests
  part attention_bench 60 build-cuda/benchmarks/attention_bench --json "$out/attention_bench.json"
  part torch 40 bash -c torch_peer
  part sanitizer 60 bash -c sanitize
}

failed=0
{
  printf '{"date": "%s", "revision": "%s", "gpu": "%s", "parts": [' "$(date -u +%FT%TZ)" \
    "$(git rev-parse --short HEAD 2> /dev/null || echo unknown)" "$(head -n 1 "$out/gpu.log" | tr -d '"\\')"
  (IFS=,; printf '%s' "${parts[*]}")
  printf '], "attention": %s}\n' "$(cat "$out/attention_bench.json" 2> /dev/null || echo null)"
} > "$out/results.json"
echo "results in $out/results.json"
grep -q '"status": [^0]' "$out/results.json" && failed=1
exit "$failed"
