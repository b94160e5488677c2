#!/usr/bin/env python3
"""Compares ChatTemplate with what jinja2 makes of the template itself, text and token ids.

usage: chat_template_test.py ENCODE_LINES MODELS_DIRECTORY

The templates are written here in the form in which their families publish them; SmolLM2's comes from its GGUF file.
Exit code 77 (skipped) without the Python packages tokenizers and jinja2.
"""
import json
import os
import sys
import tempfile

from oracle_support import SPACE_MARK, Differences, ask, skip

try:
    import gguf_vocabulary_json
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
except ImportError as e:
    skip(f"{e.name} is not installed")

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")

CHATML_BOS = "{{ bos_token }}" + CHATML

QWEN2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")

QWEN25 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nYou may call functions within <tool_call></tool_call> XML tags.<|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant") %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

QWEN3 = """{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') }}
                {{- '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
    "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + "
    "content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}")

LLAMA31 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

ALTERNATE = ("{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
             "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}")

GEMMA2 = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}" + ALTERNATE +
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}")

GEMMA3 = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    """ + ALTERNATE + """
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
"""

MISTRAL1_OLD = (
    "{{ bos_token }}{% for message in messages %}" + ALTERNATE +
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}")

MISTRAL_HEAD = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    """ + ALTERNATE.replace("{%", "{%-")


def mistral(instruction, close, place, assistant):
    return MISTRAL_HEAD + """
    {%- if message["role"] == "user" %}
        {%- if PLACE and system_message is defined %}
            {{- "OPEN" + system_message + "\\n\\n" + message["content"] + "CLOSE" }}
        {%- else %}
            {{- "OPEN" + message["content"] + "CLOSE" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- ASSISTANT + eos_token }}
    {%- endif %}
{%- endfor %}
""".replace("OPEN", instruction).replace("CLOSE", close).replace("PLACE", place).replace("ASSISTANT", assistant)


MISTRAL1 = mistral(" [INST] ", " [/INST]", "loop.first", '" " + message["content"]')
MISTRAL3 = mistral("[INST] ", "[/INST]", "loop.last", '" " + message["content"]|trim')
MISTRAL3_TEKKEN = mistral("[INST]", "[/INST]", "loop.last", 'message["content"]|trim')

MISTRAL7 = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + '[/INST]' }}"
    "{% elif message['role'] == 'system' %}{{ '[SYSTEM_PROMPT] ' + message['content'] + '[/SYSTEM_PROMPT]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}")

CHATML_TOKENS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
LLAMA3_TOKENS = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
GEMMA_TOKENS = ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"]
MISTRAL_TOKENS = ["<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"]

# name, template, family, control tokens, BOS, EOS, whether to use a SentencePiece-like vocabulary
CASES = [
    ("chatml", CHATML, "chatml", CHATML_TOKENS, None, "<|im_end|>", False),
    ("chatml with BOS", CHATML_BOS, "chatml", CHATML_TOKENS, "<|endoftext|>", "<|im_end|>", False),
    ("qwen2", QWEN2, "chatml", CHATML_TOKENS, None, "<|im_end|>", False),
    ("qwen2.5", QWEN25, "qwen", CHATML_TOKENS, None, "<|im_end|>", False),
    ("qwen3", QWEN3, "qwen3", CHATML_TOKENS, None, "<|im_end|>", False),
    ("llama3", LLAMA3, "llama3", LLAMA3_TOKENS, "<|begin_of_text|>", "<|end_of_text|>", False),
    ("llama3.1", LLAMA31, "llama3", LLAMA3_TOKENS, "<|begin_of_text|>", "<|end_of_text|>", False),
    ("gemma2", GEMMA2, "gemma", GEMMA_TOKENS, "<bos>", "<eos>", True),
    ("gemma3", GEMMA3, "gemma", GEMMA_TOKENS, "<bos>", "<eos>", True),
    ("mistral v1, old", MISTRAL1_OLD, "mistral-v1", MISTRAL_TOKENS[:2], "<s>", "</s>", True),
    ("mistral v1", MISTRAL1, "mistral-v1", MISTRAL_TOKENS[:2], "<s>", "</s>", True),
    ("mistral v3", MISTRAL3, "mistral-v3", MISTRAL_TOKENS, "<s>", "</s>", True),
    ("mistral v3 tekken", MISTRAL3_TEKKEN, "mistral-v3", MISTRAL_TOKENS, "<s>", "</s>", False),
    ("mistral v7", MISTRAL7, "mistral-v7", MISTRAL_TOKENS, "<s>", "</s>", True),
]

ALTERNATING = ("gemma", "mistral-v1", "mistral-v3")

S, U, A = "system", "user", "assistant"
DIALOGUES = [
    [(U, "Hi")], [(S, "Be brief."), (U, "Hi")], [(U, "Hi"), (A, "Hello!"), (U, "And you?")], [(U, "Hi"), (A, "Hello!")],
    [(S, "Be brief."), (U, "Hi"), (A, "Hello!"), (U, "And you?"), (A, " Fine. \n")],
    [(S, " \n padded \u3000"), (U, "\n\n  spaces around \t\n"), (A, "  yes\n"), (U, "\u00a0caf\u00e9 \u6f22\u5b57 \U0001f44d ")],
    [(U, "think"), (A, "<think>\nhm\n\n</think>\n\nYes."), (U, "again"), (A, "<think>a</think>\n\n\nNo.")],
    [(U, "one"), (A, "two"), (A, "<think>x</think>three"), (A, "four")],
    [(S, "first"), (U, "a"), (S, "second"), (U, "b")], [(S, ""), (U, "")], [(S, "alone")],
    [(A, "first"), (U, "then")], [(U, "a"), (U, "b")],
]


def render(template, messages, prompt, bos, eos):
    """As Hugging Face's apply_chat_template does; none where the template refuses."""
    def raise_exception(message):
        raise TemplateError(message)
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = raise_exception
    try:
        compiled = environment.from_string(template)
        return compiled.render(messages=messages, add_generation_prompt=prompt, bos_token=bos, eos_token=eos)
    except TemplateError:
        return None


def small_tokenizer(tokens, sentencepiece_like):
    """Characters and bytes as tokens, a few merges, and the family's control tokens."""
    if sentencepiece_like:
        tokens_of_bytes = [f"<0x{b:02X}>" for b in range(256)]
        vocab = {t: i for i, t in enumerate(["<unk>", *tokens_of_bytes, *map(chr, range(33, 127)), SPACE_MARK])}
        merges = [("i", "n"), (SPACE_MARK, "a"), ("[", "I")]
        for left, right in merges:
            vocab[left + right] = len(vocab)
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
        tokenizer.normalizer = normalizers.Replace(" ", SPACE_MARK)
        tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
        tokenizer.add_tokens([AddedToken("\n", normalized=False), AddedToken("\n\n", normalized=False)])
    else:
        vocab = {t: i for i, t in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
        merges = [("\u010a", "\u010a"), ("u", "s"), ("e", "r"), ("us", "er"), ("\u0120", "a")]
        for left, right in merges:
            vocab[left + right] = len(vocab)
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in tokens])
    return tokenizer


def check(differences, executable, name, template, family, path, bos, eos, ids_of_text):
    requests, expected, givens = [], [], []
    for dialogue in DIALOGUES:
        for prompt in (False, True):
            messages = [{"role": role, "content": content} for role, content in dialogue]
            text = render(template, messages, prompt, bos, eos)
            if family in ALTERNATING and (all(r == S for r, _ in dialogue) or S in [r for r, _ in dialogue[1:]]):
                text = None  # some of these templates drop or mislabel such a message without a word; the library refuses
            # Where a template refuses a system message, the library puts it in front of the first user's, as its successors do.
            elif text is None and dialogue[0][0] == S:
                continue
            requests.append(("chat", json.dumps({"messages": messages, "add_generation_prompt": prompt}).encode()))
            expected.append(text)
            givens.append((messages, prompt))
    for given, answer, text in zip(givens, ask(executable, path, requests), expected, strict=True):
        if text is None:
            differences.check(f"{name}: refusal", given, answer.startswith("error: messages"), True)
            continue
        if answer.startswith("error"):
            differences.check(f"{name}: text", given, answer, text)
            continue
        ids, rendered, actual_family = json.loads(answer)
        differences.check(f"{name}: family", given, actual_family, family)
        differences.check(f"{name}: text", given, rendered, text)
        differences.check(f"{name}: ids", given, ids, ids_of_text(text))
    print(f"{name}: {len(requests)} dialogues", flush=True)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    executable, models_directory = sys.argv[1:]
    differences = Differences()
    with tempfile.TemporaryDirectory() as directory:
        for name, template, family, tokens, bos, eos, sentencepiece_like in CASES:
            tokenizer = small_tokenizer(tokens, sentencepiece_like)
            path = os.path.join(directory, name)
            os.makedirs(path)
            tokenizer.save(os.path.join(path, "tokenizer.json"))
            with open(os.path.join(path, "tokenizer_config.json"), "w", encoding="utf-8") as f:
                json.dump({"chat_template": template, "bos_token": bos, "eos_token": {"content": eos}}, f)
            check(differences, executable, name, template, family, os.path.join(path, "tokenizer.json"), bos, eos,
                  lambda text, t=tokenizer: t.encode(text, add_special_tokens=False).ids)
        model = os.path.join(models_directory, "SmolLM2-135M-Instruct.Q4_1.gguf")
        if os.path.exists(model):
            vocabulary = gguf_vocabulary_json.read(model)
            path = os.path.join(directory, "smollm2.json")
            gguf_vocabulary_json.write(vocabulary, path)
            whole = lambda text: [int(i) for i in ask(executable, path, [("special", text.encode())])[0].split()]
            check(differences, executable, "SmolLM2's own", vocabulary["chat_template"], "chatml", path,
                  vocabulary["tokens"][vocabulary["bos"]], vocabulary["tokens"][vocabulary["eos"]], whole)
        else:
            print(f"PART SKIPPED: {model} is absent")
    differences.exit()


if __name__ == "__main__":
    main()
