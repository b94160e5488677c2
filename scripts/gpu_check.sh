#!/usr/bin/env bash
# Everything that wants a GPU, on one: builds quire with CUDA (from gpu_check_deps/ of scripts/gpu_check_prepare.sh if that is
# there, without a network), runs the tests of kernels and engine on the device, a short set of them under compute-sanitizer, then
# the benchmarks. Every part has a time limit, together under ten minutes, and what one part finds stops no other.
#   scripts/gpu_check.sh [FOLDER]          results go to FOLDER (default gpu_check/): results.json, and the parts' logs
#   scripts/gpu_check.sh --cases BUILD     the sanitizer's cases as programs in the folder BUILD have them, on no GPU; fails where
#                                          a program lacks its own
set -uo pipefail
cd "$(dirname "$0")/.." || exit

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

# Without what is one nvcc's (registers) and what wants the packages themselves (an install).
tests() {
  (cd build-cuda && ctest -L cuda -E '^(kernel_table|consumer_installed)$' -j 4 --output-on-failure --timeout 100)
}

# What runs under compute-sanitizer: small cases of every family of kernels. Program under tests/kernels/cuda, and its filter.
sanitized() {
  cat << 'CASES'
cuda_attention_test *CudaAttention.RowsOfAWiderMatrix*:*B085_*
cuda_activation_test *CudaActivation.EqualsTheOracleAtAnyWidth*:CudaSoftcap.EqualsTheOracle
cuda_embedding_test *CudaEmbedding.IsTheScaledRow*:CudaGatherRows.CopiesBits
cuda_kv_cache_test *CudaAppendKv.WritesTheSlotsAndNothingElse*:CudaCopyBlocks.OnePairAfterTheOther
cuda_norm_test *CudaNorm.InPlaceOverHeads*:*CudaNorm.AddRmsNormIsAddThenRmsNorm*
cuda_quantized_test *CudaDequantize.HasTheBitsOfTheHost*:*CudaMatmulQuantized.UnpackingIsDequantising*:*CudaMatmulQuantized.BiasOutTypesStridesAndRowsOfAMatrix*
cuda_rope_test CudaRopeTable.IsExactAtLargePositions:*CudaRope.ATokensBitsAreItsOwnAndStridesDoNotMatter*:PeerBugs.B062_*
cuda_sampling_test CudaSampling.AlternativesAndTargets:CudaSamplingDraw.TakesTheFirst*:PeerBugs.B094_*
CASES
}

# cases BUILD: their names. A filter of which a part names no test would pass.
cases() {
  local status=0 program filters filter found
  while read -r program filters; do
    while read -r filter; do
      found="$("$1/tests/kernels/cuda/$program" --gtest_list_tests --gtest_filter="$filter" | grep '^  ')"
      [[ -n "$found" ]] || { echo "$program has no test that $filter names"; status=1; }
      echo "$program $filter: $(wc -l <<< "$found")"
    done < <(tr ':' '\n' <<< "$filters")
  done < <(sanitized)
  return "$status"
}

sanitize_one() {
  local tool="$1" program="$2" filter="$3" log
  log="$(compute-sanitizer --tool "$tool" --error-exitcode 9 "build-cuda/tests/kernels/cuda/$program" \
    --gtest_filter="$filter" 2>&1)" && { echo "$tool $program: nothing found"; return; }
  echo "$tool $program: FAILED"$'\n'"$log"
  return 1
}

# Out-of-bounds accesses, races in shared memory, and reads of what nobody wrote.
sanitize() {
  local tool
  cases build-cuda || return
  for tool in memcheck racecheck initcheck; do
    sanitized | sed "s/^/$tool /"
  done | xargs -P 4 -L 1 bash -c 'sanitize_one "$@"' _
}

# PyTorch's attention on the same prefill shapes, if PyTorch is there.
torch_peer() { python3 scripts/gpu_check_torch.py; }

if [[ "${1:-}" == --cases ]]; then
  cases "$2"
  exit
fi

out="${1:-gpu_check}"
mkdir -p "$out"
export -f build tests sanitized cases sanitize sanitize_one torch_peer
nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,memory.total --format=csv,noheader > "$out/gpu.log" 2>&1
part build 270 bash -c build && {
  part tests 100 bash -c tests
  part attention_bench 60 build-cuda/benchmarks/attention_bench --json "$out/attention_bench.json"
  part torch 40 bash -c torch_peer
  part sanitizer 120 bash -c sanitize
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
