#!/usr/bin/env bash
# Builds and runs every test: scripts/test.sh [stage...], by default all of
#   packages  what scripts/packages.txt lists            models  the two real models, into models/
#   format    clang-format has nothing to change         tidy    clang-tidy finds nothing (.clang-tidy)
#   dev       optimised build, warnings are errors; the whole suite
#   asan      AddressSanitizer and UBSan                 tsan    ThreadSanitizer
#   cuda      the CUDA kernels compiled by nvcc, and their tests on a GPU; skipped without one, the whole stage without nvcc
#   fuzz      every fuzz target for QUIRE_FUZZ_SECONDS (30) seconds
# With QUIRE_TIDY_SINCE=COMMIT, tidy looks at the sources changed since then only. The sanitizer stages leave out the tests labelled
# model, oracle and consumer, and what the tests' CMakeLists.txt say; tsan has only those in which threads meet (docs/testing.md).
# Every stage runs, whatever came before; the exit status is 1 if anything failed, and the last line counts the tests of all
# stages, a stage without tests of its own as one.
set -uo pipefail
cd "$(dirname "$0")/.."

all_stages=(packages models format tidy dev asan tsan cuda fuzz)
passed=0
failed=0
skipped=0
failures=()

# The Python packages of scripts/packages.txt.
export VIRTUAL_ENV="$PWD/.venv" PATH="$PWD/.venv/bin:$PATH"
if command -v ccache > /dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache
fi
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=1}"
export UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"

# check NAME COMMAND...: one thing that passes or fails.
check() {
  local name="$1"
  shift
  if "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    failures+=("$name")
  fi
}

# Adds the counts of a ctest run to ours. Fails if there is no summary.
count_ctest() {
  local log="$1" summary not_run
  summary="$(grep -E '^[0-9]+% tests passed, [0-9]+ tests failed out of [0-9]+' "$log")" || return 1
  [[ "$summary" =~ passed,\ ([0-9]+)\ tests\ failed\ out\ of\ ([0-9]+) ]]
  not_run="$(grep -cE '^[[:space:]]*[0-9]+ - .* \((Skipped|Disabled)\)$' "$log")"
  failed=$((failed + BASH_REMATCH[1]))
  skipped=$((skipped + not_run))
  passed=$((passed + BASH_REMATCH[2] - BASH_REMATCH[1] - not_run))
}

# Builds a preset and runs its tests.
build_and_test() {
  local preset="$1" log="build-$1/ctest.log"
  if ! { cmake --preset "$preset" > /dev/null && cmake --build --preset "$preset" -- -k 0; }; then
    check "$preset: build" false
    return
  fi
  ctest --preset "$preset" 2>&1 | tee "$log"
  local status="${PIPESTATUS[0]}"
  if ! count_ctest "$log"; then
    check "$preset: ctest gave no summary" false
  elif ((status != 0)); then
    failures+=("$preset: ctest")
  fi
}

format_check() {
  local sources wrong
  mapfile -t sources < <(git ls-files '*.h' '*.cc' '*.cu' '*.cuh')
  ((${#sources[@]} > 0)) || return 1
  clang-format --dry-run -Werror "${sources[@]}" 2> build-format.log && return
  echo "clang-format would change (run clang-format -i on them):"
  grep -oE '^[^: ]+:[0-9]+' build-format.log | cut -d : -f 1 | sort | uniq -c
  return 1
}

# One target, from its corpus; what it finds stays in build-fuzz/found/. Writes its exit status beside it.
fuzz_one() {
  local target="$1" name found folders
  name="$(basename "$target")"
  found="build-fuzz/found/$name"
  mkdir -p "$found"
  folders=("$found")
  [[ -d "tests/fuzz/corpus/$name" ]] && folders+=("tests/fuzz/corpus/$name")
  "$target" -max_total_time="${QUIRE_FUZZ_SECONDS:-30}" -rss_limit_mb=2048 -timeout=10 -verbosity=0 \
    -artifact_prefix="$found/" "${folders[@]}" > "$found.log" 2>&1
  echo $? > "$found.status"
  echo "Fuzzed $name"
}
export -f fuzz_one

fuzz() {
  if ! { cmake --preset fuzz > /dev/null && cmake --build --preset fuzz; }; then
    check "fuzz: build" false
    return
  fi
  local targets target found
  mapfile -t targets < <(find build-fuzz/tests/fuzz -maxdepth 1 -name '*_fuzz' -type f -executable | sort)
  if ((${#targets[@]} == 0)); then
    check "fuzz: no target found" false
    return
  fi
  printf '%s\n' "${targets[@]}" | xargs -P 2 -I '{}' bash -c 'fuzz_one "$1"' _ '{}'
  for target in "${targets[@]}"; do
    found="build-fuzz/found/$(basename "$target")"
    [[ "$(cat "$found.status")" == 0 ]] || tail -n 40 "$found.log"
    check "fuzz: $(basename "$target")" [ "$(cat "$found.status")" = 0 ]
  done
}

cuda() {
  if ! command -v nvcc > /dev/null; then
    echo "SKIPPED: no nvcc here, so the CUDA kernels are not compiled for a GPU (the emulator has run them)"
    skipped=$((skipped + 1))
    return
  fi
  build_and_test cuda
}

# Its output counts what it suppresses in system headers; only findings are shown.
tidy_one() {
  local output
  # The database is that of GCC, with its names of warnings.
  output="$(clang-tidy -p build-dev/tidy --quiet --extra-arg=-Wno-unknown-warning-option "$1" 2>&1)" && return
  grep -vE '^[0-9]+ warnings?( and [0-9]+ errors?)? generated' <<< "$output"
  return 1
}
export -f tidy_one

tidy() {
  # Without what only a build with CUDA compiles.
  local folders=('src/*.cc' 'kernels/*.cc' 'examples/*.cc' ':!src/backend/cuda/communicator.cc') sources
  if [[ -n "${QUIRE_TIDY_SINCE:-}" ]]; then
    mapfile -t sources < <(git diff --name-only --diff-filter=d "$QUIRE_TIDY_SINCE" -- "${folders[@]}")
    ((${#sources[@]} > 0)) || return 0
  else
    mapfile -t sources < <(git ls-files "${folders[@]}")
    ((${#sources[@]} > 0)) || return 1
  fi
  cmake --preset dev > /dev/null && scripts/tidy_database.py build-dev build-dev/tidy || return 1
  printf '%s\n' "${sources[@]}" | xargs -P 2 -I '{}' bash -c 'tidy_one "$1"' _ '{}'
}

run_stage() {
  case "$1" in
    packages) check packages scripts/install_packages.sh test ;;
    models)
      check "model smollm2" scripts/fetch_model.sh smollm2
      check "model gemma3" scripts/fetch_model.sh gemma3
      ;;
    format) check format format_check ;;
    dev | asan | tsan) build_and_test "$1" ;;
    cuda) cuda ;;
    fuzz) fuzz ;;
    tidy) check tidy tidy ;;
    *)
      echo "unknown stage '$1'; stages: ${all_stages[*]}" >&2
      exit 2
      ;;
  esac
}

(($# > 0)) || set -- "${all_stages[@]}"
for stage in "$@"; do
  echo "== $stage"
  SECONDS=0
  run_stage "$stage"
  echo "== $stage: ${SECONDS} s"
done

for failure in "${failures[@]}"; do
  echo "FAILED $failure"
done
summary="$passed passed, $failed failed"
((skipped > 0)) && summary+=", $skipped skipped"
echo "$summary"
((${#failures[@]} == 0 && failed == 0))
