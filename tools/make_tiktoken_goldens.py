#!/usr/bin/env python3
"""Writes tests/text/golden/kimi_tiktoken/: a small vocabulary in the files of Kimi's tokenizer
(tiktoken.model and tokenizer_config.json), and what the library `tiktoken` makes of some strings.

Run by hand, with `pip install tiktoken==0.14.0`:
    tools/make_tiktoken_goldens.py tests/text/golden/kimi_tiktoken

tests/text/tiktoken_test.py draws more strings, and compares with the library each time.
"""

import base64
import collections
import json
import pathlib
import random
import sys

import regex
import tiktoken

PATTERN = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])
SPECIAL_IDS = 258

# By their distance from the end of the vocabulary; those that are not special are marks of calls and
# reasoning, which a client may want to see.
NAMES = {
    0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>",
    6: "<|start_header_id|>", 7: "<|end_header_id|>", 9: "[EOT]", 10: "<|im_system|>",
    11: "<|tool_calls_section_begin|>", 12: "<|tool_calls_section_end|>", 13: "<|tool_call_begin|>",
    14: "<|tool_call_argument_begin|>", 15: "<|tool_call_end|>", 17: "<|im_middle|>",
    22: "<think>", 23: "</think>", 254: "[UNK]", 255: "[PAD]",
}
SHOWN = {11, 12, 13, 14, 15, 22, 23}

SAMPLE = """The quick brown fox jumps over the lazy dog, and the dog doesn't mind; they'll be friends.
It's 12:45 on 2024-03-17. We've paid $1,234.56 (about 98%) for 3 items, haven't we?
def encode(self, text: str) -> list[int]:
    return [self.vocab[token] for token in self.split(text) if token in self.vocab]
for (int i = 0; i < 100; ++i) { sum += values[i] * weights[i]; }  // dot product
Größe, naïve café, señor, Ελληνικά, Русский язык, العربية, हिन्दी, 한국어, ไทย, Tiếng Việt.
今天的天气很好，我们去公园散步。今天下午的天气也很好。価格は1000円です。カタカナとひらがな。混合English中文text文本。
<html><body class="main">&nbsp;</body></html>   {"key": "value", "n": [1, 2, 3]}
                                        aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!!!!!!!!!!!!!!!!
"""
# Tokens that merges of trained pairs do not lead to: words that are found whole, and ways to join.
EXTRA = [b" quick brown", "混合文".encode(), b"ababa", b"aba", b"bab", b"xyzzy", b"\xe4\xbb", b"\xbb\x8a",
         b" " * 40, b"\n" * 9]

TEXTS = """Hello world~1234567890~混合中文English文本~it's IT'S it'ſ~don't we'LL they've~a  b   c~  lead~trail
今天下午~々〇ー~カタカナ~한국어 हिन्दी ไทย~ababababab~xyzzy xyzzyx~quick brown fox~aaaaaaa~!!!???~— … «q»
[BOS]hi[EOS]~<|im_user|>user<|im_middle|>hi<|im_end|>~<|im_end|~im_end|>~<|im_end|<|im_end|>>~[BOS
<think>no</think>~<|reserved_token_{first}|>~<|reserved_token_{last}|>~<|reserved_token_1|>
<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>
é~e\u0301~ﬁ~İ~ß~👩‍👩‍👧~🇩🇪~\u00a0\u3000~\u001c\u001d~\u2028x~\u0000~\ufffd~𠮷𪚥~½²Ⅷ٣"""


def train(size):
    words = collections.Counter(regex.findall(PATTERN, SAMPLE, flags=regex.VERSION1))
    splits = {word: [bytes([b]) for b in word.encode()] for word in words}
    tokens = [bytes([b]) for b in range(256)]
    while len(tokens) < size:
        pairs = collections.Counter()
        for word, parts in splits.items():
            for pair in zip(parts, parts[1:]):
                pairs[pair] += words[word]
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merged = best[0] + best[1]
        if merged not in tokens:
            tokens.append(merged)
        for word, parts in splits.items():
            joined = []
            for part in parts:
                if joined and (joined[-1], part) == best:
                    joined[-1] = merged
                else:
                    joined.append(part)
            splits[word] = joined
    return tokens


def make_encoding(tokens):
    """tiktoken's encoding as Kimi's code makes it."""
    special = {NAMES.get(i, f"<|reserved_token_{len(tokens) + i}|>"): len(tokens) + i
               for i in range(SPECIAL_IDS)}
    return tiktoken.Encoding("kimi", pat_str=PATTERN, special_tokens=special,
                             mergeable_ranks={token: rank for rank, token in enumerate(tokens)})


def write_files(directory, tokens):
    directory.mkdir(parents=True, exist_ok=True)
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)]
    (directory / "tiktoken.model").write_text("".join(lines), encoding="ascii")
    decoder = {str(len(tokens) + i): {"content": name, "special": i not in SHOWN}
               for i, name in NAMES.items()}
    config = {"added_tokens_decoder": decoder, "bos_token": "[BOS]", "eos_token": "[EOS]",
              "tokenizer_class": "TikTokenTokenizer"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n",
                                                     encoding="utf-8")


def main():
    directory = pathlib.Path(sys.argv[1])
    tokens = train(900)
    rng = random.Random(20261125)
    for token in EXTRA:
        if token not in tokens:
            tokens.insert(rng.randrange(256, len(tokens)), token)
    write_files(directory, tokens)
    encoding = make_encoding(tokens)
    texts = TEXTS.replace("{first}", str(len(tokens) + 5)).replace(
        "{last}", str(len(tokens) + SPECIAL_IDS - 1)).replace("\n", "~").split("~")
    texts += [f"a {name}{name} b" for name in NAMES.values()]
    texts += [*SAMPLE.split("\n"), SAMPLE, "a" * 900, " " * 900, "今" * 300, "ab" * 500, "\n" * 300]
    cases = []
    for text in dict.fromkeys(texts):
        ids = encoding.encode(text, allowed_special="all")
        cases.append({"text": text, "ids": ids,
                      "ids_as_text": encoding.encode(text, disallowed_special=())})
    with open(directory / "cases.json", "w", encoding="utf-8") as file:
        json.dump(cases, file, ensure_ascii=False, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
