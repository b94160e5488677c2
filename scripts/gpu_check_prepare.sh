#!/usr/bin/env bash
# Collects what scripts/gpu_check.sh needs on a machine without a network into gpu_check_deps/ (some 30 MB): the headers that
# quire, its tests and benchmarks include from packages, the packages' libraries, and CMake modules that find both. Run it where
# the packages are installed (scripts/install_packages.sh test) and nvcc is; then take the whole tree to the GPU, with models/ if
# the engine is to be measured.
set -euo pipefail
cd "$(dirname "$0")/.."

out=gpu_check_deps
rm -rf "$out"
mkdir -p "$out/include" "$out/lib" "$out/cmake"

# Headers: what the compiler says it read.
cmake --preset cuda > /dev/null
cmake --build --preset cuda
ninja -C build-cuda -t deps | grep -oE '^ +/usr/include/[^ ]+' | sed 's/^ *//' | sort -u |
  grep -vE '^/usr/include/(c\+\+|x86_64-linux-gnu|linux|asm|asm-generic)/' |
  grep -E '^/usr/include/(fmt|spdlog|boost|gtest|gmock|rapidcheck|CLI)/|^/usr/include/(oniguruma|utf8proc|xxhash)\.h$' |
  while read -r header; do
    install -D -m 644 "$header" "$out/include/${header#/usr/include/}"
  done

# Libraries, under the names that the programs ask for.
libraries=/usr/lib/x86_64-linux-gnu
for name in fmt spdlog boost_json onig utf8proc xxhash; do
  cp -L "$libraries/lib$name.so" "$out/lib/"
  soname="$(objdump -p "$libraries/lib$name.so" | awk '$1 == "SONAME" { print $2 }')"
  [[ -e "$out/lib/$soname" ]] || cp -L "$libraries/lib$name.so" "$out/lib/$soname"
done
cp "$libraries"/lib{gtest,gmock,rapidcheck}.a "$out/lib/"

# find_package(NAME) for each. Definitions are those of the packages' own modules.
module() { # NAME TARGET LIBRARY [DEFINITION...]
  local name="$1" target="$2" library="$3"
  shift 3
  cat >> "$out/cmake/Find$name.cmake" << CMAKE
if(NOT TARGET $target)
  add_library($target INTERFACE IMPORTED)
  target_include_directories($target SYSTEM INTERFACE "\${CMAKE_CURRENT_LIST_DIR}/../include")
  target_compile_definitions($target INTERFACE $*)
  if(NOT "$library" STREQUAL "")
    target_link_libraries($target INTERFACE "\${CMAKE_CURRENT_LIST_DIR}/../lib/$library")
  endif()
endif()
set(${name}_FOUND TRUE)
CMAKE
}
module fmt fmt::fmt libfmt.so FMT_SHARED
module spdlog spdlog::spdlog libspdlog.so SPDLOG_SHARED_LIB SPDLOG_COMPILED_LIB SPDLOG_FMT_EXTERNAL
module Boost Boost::json libboost_json.so BOOST_JSON_NO_LIB BOOST_JSON_DYN_LINK BOOST_CONTAINER_NO_LIB BOOST_CONTAINER_DYN_LINK
module Oniguruma Oniguruma::Oniguruma libonig.so
module Utf8proc Utf8proc::Utf8proc libutf8proc.so
module XXHash XXHash::XXHash libxxhash.so
module GTest GTest::gtest libgtest.a
module GTest GTest::gmock libgmock.a
module rapidcheck rapidcheck librapidcheck.a
module rapidcheck rapidcheck_gtest ""
module CLI11 CLI11::CLI11 ""
echo "$out: $(du -sh "$out" | cut -f 1), $(find "$out/include" -type f | wc -l) headers"
model=models/SmolLM2-135M-Instruct.Q4_1.gguf
[[ -f "$model" ]] || echo "no $model, so no engine would be measured: scripts/fetch_model.sh smollm2 brings it"
