#!/usr/bin/env bash
# Everything that wants a GPU, on one: builds quire with CUDA (from gpu_check_deps/ of scripts/gpu_check_prepare.sh if that is
# there, without a network), runs the tests of kernels and engine on the device, the benchmarks of kernels and engine, PyTorch's
# attention beside them, and small cases of every family of kernels under compute-sanitizer. Every part has a time limit, all
# together are under ten minutes, and what one part finds stops no other but the build.
#   scripts/gpu_check.sh [FOLDER]          results go to FOLDER (default gpu_check/): results.json, which is whole after every
#                                          part, and the parts' logs; the exit status is 1 if a part failed or none ran
#   scripts/gpu_check.sh --limits          the parts, what each may take at most and until it is killed, in seconds
#   scripts/gpu_check.sh --cases BUILD     the sanitizer's cases as programs in the folder BUILD have them, on no GPU; fails where
#                                          a program lacks its own
# Needs nvcc, NCCL, CMake, a compiler and python3. What is there only perhaps (a model in models/, PyTorch, compute-sanitizer)
# leaves its part out, and results.json says so.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

# In their order. A part is the function of its name; it ends with 77 if something that it needs is not there, which its last line
# names.
parts=(build:225 tests:100 attention:35 throughput:40 serve:35 torch:25 sanitizer:105)
grace=2 # seconds after its limit, a part is killed

# The machine's GPUs as CMAKE_CUDA_ARCHITECTURES has them; Hopper if nobody says.
architectures() {
  local found
  found="$(timeout 5 nvidia-smi --query-gpu=compute_cap --format=csv,noheader | tr -d . | grep -xE '[0-9]+' | sort -nu)"
  sed 's/$/-real/; s/^90-/90a-/' <<< "${found:-90}" | paste -sd ';'
}

# Anew: the folder may have come along from where the tree was prepared.
build() {
  local options=("-DCMAKE_CUDA_ARCHITECTURES=$(architectures)")
  if [[ -d gpu_check_deps ]]; then
    options+=("-DCMAKE_MODULE_PATH=$PWD/gpu_check_deps/cmake" "-DCMAKE_BUILD_RPATH=$PWD/gpu_check_deps/lib")
  fi
  command -v ninja > /dev/null || options+=(-G "Unix Makefiles")
  cmake --fresh --preset cuda "${options[@]}" && cmake --build --preset cuda -j "$(nproc)"
}

# Without what is one nvcc's (registers) and what wants the packages themselves (an install).
tests() {
  (cd build-cuda &&
    ctest -L cuda -E '^(kernel_table|consumer_installed)$' -j 4 --no-tests=error --output-on-failure --timeout 90)
}

attention() { build-cuda/benchmarks/attention_bench; }

# The engine: prompts, then streams in lock-step; then a data set of which the steps are mixed.
throughput() {
  local lengths=(--prompt-tokens 512 --output-tokens 128) status=0
  with_model build-cuda/benchmarks/throughput_bench --lock-step 1,8,32,128 "${lengths[@]}" || status=$?
  with_model build-cuda/benchmarks/throughput_bench --prompts 256 --concurrency 64 "${lengths[@]}" || status=$?
  return "$status"
}

# The same under load, with its latencies.
serve() {
  with_model build-cuda/benchmarks/serving/serve_bench --streams 1,8,32 --num-requests 32 --input-tokens 512 --output-tokens 128 \
    --no-progress --json -
}

# with_model PROGRAM OPTION...: on the device, with the model that scripts/fetch_model.sh smollm2 brings.
with_model() {
  local program="$1" model=models/SmolLM2-135M-Instruct.Q4_1.gguf
  shift
  [[ -f "$model" ]] || { echo "no $model"; return 77; }
  "$program" --model "$model" --device cuda "$@"
}

# PyTorch's attention on the same prefill shapes.
torch() { python3 scripts/gpu_check_torch.py; }

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

# cases BUILD: their names. A filter of which a part names no test would pass; so would a program that nobody entered, but for those
# of cuBLASLt, of gigabytes and of the emulator's counts.
cases() {
  local status=0 program filters filter found
  [[ -d "$1/tests/kernels/cuda" ]] || { echo "$1 has no tests/kernels/cuda: it is not built"; return 1; }
  while read -r program filters; do
    while read -r filter; do
      found="$("$1/tests/kernels/cuda/$program" --gtest_list_tests --gtest_filter="$filter" | grep '^  ')"
      [[ -n "$found" ]] || { echo "$program has no test that $filter names"; status=1; }
      echo "$program $filter: $(wc -l <<< "$found")"
    done < <(tr ':' '\n' <<< "$filters")
  done < <(sanitized)
  for program in "$1"/tests/kernels/cuda/cuda_*_test; do
    program="${program##*/}"
    [[ "$program" =~ ^cuda_(matmul|far_memory|traffic_table)_test$ ]] || grep -q "^$program " <(sanitized) ||
      { echo "$program has no case here"; status=1; }
  done
  return "$status"
}

sanitize_one() {
  local tool="$1" program="$2" filter="$3" log
  log="$(compute-sanitizer --tool "$tool" --error-exitcode 9 "build-cuda/tests/kernels/cuda/$program" \
    --gtest_filter="$filter" 2>&1)" && { echo "$tool $program: nothing found"; return; }
  echo "$log"$'\n'"$tool $program: FAILED"
  return 1
}

# Out-of-bounds accesses, races in shared memory, and reads of what nobody wrote.
sanitizer() {
  local tool
  command -v compute-sanitizer || { echo "no compute-sanitizer"; return 77; }
  cases build-cuda || return
  for tool in memcheck racecheck initcheck; do
    sanitized | sed "s/^/$tool /"
  done | xargs -P 4 -L 1 bash -c 'sanitize_one "$@"' _
}

# part NAME SECONDS: its output to NAME.log, its end to the list of results.
part() {
  local name="$1" limit="$2" begin status
  echo "== $name (at most $limit s)"
  begin="$(date +%s)"
  timeout --kill-after="$grace" "$limit" bash -c "$name" > "$out/$name.log" 2>&1 &
  running=$!
  wait "$running"
  status=$?
  tail -n 3 "$out/$name.log" | cut -c 1-200
  echo "$name $status $(($(date +%s) - begin))" >> "$out/ended"
  return "$status"
}

results() { python3 scripts/gpu_check_results.py "$out" "${parts[@]}"; }

# Ends the part that runs, with all that it started, and keeps what the others had.
stop() {
  kill "$running" 2> /dev/null && wait "$running"
  results
  exit "$1"
}

case "${1:-}" in
  --limits)
    for each in "${parts[@]}"; do echo "${each/:/ } $grace"; done
    exit
    ;;
  --cases)
    [[ -n "${2:-}" ]] || { echo "gpu_check.sh: --cases wants the folder of a build" >&2; exit 2; }
    cases "$2"
    exit
    ;;
  -h | --help)
    sed -n '2,/^set/ { /^set/d; s/^# \{0,1\}//; p }' scripts/gpu_check.sh
    exit
    ;;
  -*)
    echo "gpu_check.sh: no option $1, see --help" >&2
    exit 2
    ;;
esac

# The tests' configuration asks for it too.
command -v python3 > /dev/null || { echo "gpu_check.sh: no python3, which writes the results" >&2; exit 1; }
out="${1:-gpu_check}"
mkdir -p "$out" && rm -f "$out"/*.log "$out"/{ended,results.json} || exit
for each in "${parts[@]}"; do export -f "${each%:*}"; done
export -f architectures with_model sanitized cases sanitize_one
timeout 5 nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,memory.total --format=csv,noheader > "$out/gpu.log" 2> /dev/null ||
  { true > "$out/gpu.log"; echo "gpu_check.sh: no GPU answers nvidia-smi; all that needs one will be skipped or fail" >&2; }
running=
trap 'stop 130' INT
trap 'stop 143' TERM
results > /dev/null
for each in "${parts[@]}"; do
  part "${each%:*}" "${each#*:}" || [[ "$each" != build:* ]] || break
  results > /dev/null
done
results
