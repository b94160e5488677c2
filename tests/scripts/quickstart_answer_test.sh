#!/usr/bin/env bash
# The help of scripts/quickstart.sh; then its question, as its last line asks it, with the chat program given: the answer names Paris,
# and the numbers follow.
set -euo pipefail
root="$(cd "$(dirname "$0")/../.." && pwd)"
"$root/scripts/quickstart.sh" --help | grep -q 'scripts/quickstart.sh \["question"\]' || { echo "--help shows no usage"; exit 1; }
status=0
"$root/scripts/quickstart.sh" --nonsense 2> /dev/null || status=$?
((status == 2)) || { echo "an unknown option ends with $status, not 2"; exit 1; }
model="$root/models/SmolLM2-135M-Instruct.Q4_1.gguf"
[[ -f "$model" ]] || { echo "no $model: scripts/fetch_model.sh smollm2 brings it"; exit 77; }
line="$(tail -n 1 "$root/scripts/quickstart.sh")"
[[ "$line" == build/examples/chat* ]] || { echo "the last line of quickstart.sh is '$line'"; exit 1; }
grep -q -- ' --once="$question"$' <<< "$line" || { echo "a question that begins with a dash would be taken for an option"; exit 1; }
question="What is the capital of France?"
answer="$(eval "\"$1\" ${line#build/examples/chat}")"
echo "$answer"
for wanted in Paris "time to first token" prefill decode "KV blocks" "KV waste"; do
  grep -q "$wanted" <<< "$answer" || { echo "'$wanted' is missing"; exit 1; }
done
