#!/usr/bin/env bash
# Builds and runs the consumer project: run.sh installed|subdirectory QUIRE_SOURCE QUIRE_BINARY [cmake options...]
# The work folder is new each time, so that nothing of an earlier run helps. Exit status 77: no model to run it with.
set -euo pipefail
mode="$1" source="$2" binary="$3"
shift 3
model="$source/models/SmolLM2-135M-Instruct.Q4_1.gguf"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
case "$mode" in
  installed)
    cmake --install "$binary" --prefix "$work/prefix" > /dev/null
    # Only public headers, and no path of the source or build tree in what others will read.
    others="$(find "$work/prefix" -name '*.h' -not -path "$work/prefix/include/quire/*")"
    [[ -z "$others" ]] || { echo "private headers are installed: $others"; exit 1; }
    if grep -rn -e "$source" -e "$binary" "$work/prefix" --include='*.cmake'; then
      echo "the installed package points into the source or build tree"
      exit 1
    fi
    options=("-DCMAKE_PREFIX_PATH=$work/prefix")
    ;;
  subdirectory) options=("-DQUIRE_SOURCE=$source") ;;
  *) echo "run.sh: unknown mode '$mode'"; exit 2 ;;
esac

# The programs of the README, as they stand there: readme_1.cc, readme_2.cc.
awk -v stem="$work/readme_" '/^```cpp$/ { file = stem (++n) ".cc"; next } /^```$/ { file = "" } file { print > file }' "$source/README.md"
for i in 1 2; do
  [[ -s "$work/readme_$i.cc" ]] || { echo "README.md holds no program $i"; exit 1; }
done

# Without a build type the kernels are optimised all the same.
if [[ "$mode" == subdirectory ]]; then
  cmake -S "$source/tests/consumer" -B "$work/untyped" -G Ninja "-DREADME_PROGRAMS=$work" "${options[@]}" "$@" \
    -DCMAKE_BUILD_TYPE= -DCMAKE_EXPORT_COMPILE_COMMANDS=ON > "$work/untyped.log"
  grep -q "quire: CMAKE_BUILD_TYPE is not set" "$work/untyped.log" || { echo "no word about the missing build type"; exit 1; }
  grep '"command": .*/kernels/cpu/' "$work/untyped/compile_commands.json" > "$work/kernels" || { echo "no kernels are built"; exit 1; }
  ! grep -v -e ' -O2 ' "$work/kernels" || { echo "these kernels are not optimised"; exit 1; }
fi

cmake -S "$source/tests/consumer" -B "$work/build" -G Ninja "-DREADME_PROGRAMS=$work" "${options[@]}" "$@"
cmake --build "$work/build" --target consumer readme_1 readme_2
[[ -f "$model" ]] || { echo "no $model: scripts/fetch_model.sh smollm2 brings it"; exit 77; }
"$work/build/consumer" "$model"
ln -s "$model" "$work/model.gguf"
for i in 1 2; do
  (cd "$work" && "build/readme_$i") | tee "$work/answer"
  grep -q Paris "$work/answer" || { echo "program $i of the README does not name Paris"; exit 1; }
done
"$work/build/consumer" "$work/absent.gguf" 2> "$work/error" && { echo "a missing model was accepted"; exit 1; }
grep -q absent.gguf "$work/error" || { echo "the error does not name the file: $(cat "$work/error")"; exit 1; }
