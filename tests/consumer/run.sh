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

# The program of the README, as it stands there.
awk '/^```cpp$/ { inside = 1; next } /^```$/ { inside = 0 } inside' "$source/README.md" > "$work/readme.cc"
[[ -s "$work/readme.cc" ]] || { echo "README.md holds no program"; exit 1; }

cmake -S "$source/tests/consumer" -B "$work/build" -G Ninja "-DREADME_PROGRAM=$work/readme.cc" "${options[@]}" "$@"
cmake --build "$work/build" --target consumer readme
[[ -f "$model" ]] || { echo "no $model: scripts/fetch_model.sh smollm2 brings it"; exit 77; }
"$work/build/consumer" "$model"
ln -s "$model" "$work/model.gguf"
(cd "$work" && build/readme) | tee "$work/answer"
grep -q Paris "$work/answer" || { echo "the program of the README does not name Paris"; exit 1; }
"$work/build/consumer" "$work/absent.gguf" 2> "$work/error" && { echo "a missing model was accepted"; exit 1; }
grep -q absent.gguf "$work/error" || { echo "the error does not name the file: $(cat "$work/error")"; exit 1; }
