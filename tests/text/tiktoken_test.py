#!/usr/bin/env python3
"""Compares the tokenizer with the library `tiktoken` on random texts: Kimi's small vocabulary of
tests/text/golden/kimi_tiktoken, and random vocabularies, whose tokens are joined in more ways.

    tiktoken_test.py --encode-lines PROGRAM [--texts 60000] [--seed N]
"""

import argparse
import base64
import itertools
import pathlib
import random
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "tools"))
from make_tiktoken_goldens import NAMES, SHOWN, SPECIAL_IDS, make_encoding, write_files  # noqa: E402

LONGEST_TEXT, LONGEST_RUN = 400_000, 25_000

PIECES = """the The THE hello don't DON'T they'll I'm ſ 'S 'ſ x Größe naïve cafe\u0301 e\u0301\u0323 ñ ß ﬁ İ ı
Ωmega Русский язык العربية हिन्दी क्षि 한국어 ᄒ\u1161ᆫ ไทย ภาษา Tiếng 今天 天气 かな カタカナ 々 〇 ー 龥 鿿 㐀 𠮷 豈 🙂
👩‍👩‍👧 🇩🇪 ❤️ € ½ ² ٣ ३ Ⅷ ㊿ 1 12 123 12345 1,234.56 3.14e-10 ! !! ... … — “q” «q» ( [ ] {} <> // \\n # @ && `` ^ _ __
* += -> :: ; ' " def foo_bar fooBar FOOBar HTTPServer self.x a[i] <html> %s ababab aba xyzzy 混合文 [BOS <|im_end
\u00ad \u0000 \u001b \u007f \u009f \ufffd \uffff \U0010ffff \ue000 \u0300 \u20dd \u200b \u200d \ufeff""".split()
SPACES = ["", "", "", " ", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n ", " \t ", "\x0b",
          "\x0c", "\x1c", "\x1f", "\u0085", "\u00a0", "\u3000", " \u2003", "\u2028", "\u180e", "        "]
BROKEN = [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe4\xbb", b"\xf0\x9f\x99", b"\x80"]


def cut(text):
    """The pieces that Kimi's tokenizer encodes one by one."""
    for start in range(0, len(text), LONGEST_TEXT):
        part = text[start:start + LONGEST_TEXT]
        cuts, position = [0], 0
        for _, run in itertools.groupby(part, str.isspace):
            length = sum(1 for _ in run)
            cuts += range(position + LONGEST_RUN, position + length, LONGEST_RUN)
            position += length
        yield from (part[a:b] for a, b in zip(cuts, [*cuts[1:], len(part)]))


def expected(encoding, policy, text):
    options = {"parse": {"allowed_special": "all"}, "text": {"disallowed_special": ()}, "refuse": {}}
    try:
        return [id for piece in cut(text) for id in encoding.encode(piece, **options[policy])]
    except ValueError:
        assert policy == "refuse"
        return None


def draw_text(rng, specials):
    kind = rng.random()
    if kind < 0.70:
        return "".join((rng.choice(specials) if rng.random() < 0.05 else rng.choice(PIECES)) +
                       rng.choice(SPACES) for _ in range(rng.randint(0, 14)))
    if kind < 0.80:  # characters from anywhere
        planes = [(0, 0x80), (0, 0x800), (0x800, 0x3000), (0x3000, 0xA000), (0xA000, 0xD800),
                  (0xE000, 0x10000), (0x10000, 0x1F000), (0x1F000, 0x1FB00), (0x20000, 0x32400)]
        return "".join(chr(rng.randrange(*rng.choice(planes))) for _ in range(rng.randint(1, 30)))
    if kind < 0.92:  # few letters, many ways to join them
        return "".join(rng.choices("ab c中", k=rng.randint(1, 60)))
    unit = rng.choice(["a", "ab", " ", "\n", " \n", "今", "中文", "!", "1", "é", "aA", "'s", "\u0301"])
    return rng.choice(PIECES) + unit * rng.randint(1, 400) + rng.choice(PIECES)


def draw_bytes(rng, specials):
    text = draw_text(rng, specials).encode()
    if rng.random() < 0.1:
        at = rng.randint(0, len(text))  # perhaps within a character
        text = text[:at] + rng.choice(BROKEN) + text[at:]
    return text


def long_texts(rng):
    """Texts that are cut, with words and special tokens where the cuts are."""
    unit = "<|im_end|>word 中文"
    return [text.encode() for text in [
        "a" * 60_000, " " * 60_000, "中" * 51_000, "\n\u3000" * 40_000, "x" * 25_000 + " " * 25_000 + "y" * 25_001,
        "a" * 24_995 + unit, "word " * 5 + "b" * 24_990 + unit, "lorem ipsum " * 40_000,
        "".join(rng.choices("ab", k=100_000)), ("c" * 399_998 + unit) * 2, (" a" * 199_997 + unit) * 2]]


def random_vocabulary(rng):
    tokens = [bytes([byte]) for byte in range(256)]
    alphabet = [b"a", b"b", b" ", b"c", *[bytes([b]) for b in "中".encode()], "中".encode()]
    while len(tokens) < 256 + 200:
        token = b"".join(rng.choices(alphabet, k=rng.randint(2, 6)))
        if token not in tokens:
            tokens.append(token)
    rng.shuffle(tokens)
    return tokens


def check(program, directory, tokens, texts):
    encoding = make_encoding(tokens)
    hidden = {len(tokens) + i for i in NAMES if i not in SHOWN}
    policies = list(itertools.islice(itertools.cycle(["parse", "text", "refuse"]), len(texts)))
    lines = "".join(f"{policy} {text.hex()}\n" for policy, text in zip(policies, texts))
    run = subprocess.run([program, directory], input=lines, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"{program} ended with {run.returncode}: {run.stderr}")
    answers = run.stdout.splitlines()
    assert len(answers) == len(texts), (len(answers), len(texts))
    refused = 0
    for policy, raw, answer in zip(policies, texts, answers):
        text = raw.decode("utf-8", "replace")
        ids = expected(encoding, policy, text)
        if ids is None or answer == "refused":
            if ids is not None or answer != "refused":
                sys.exit(f"{policy} {text[:200]!r}: answered {answer[:200]}, tiktoken {ids}")
            refused += 1
            continue
        found, decoded, visible = answer.split(",")
        found = [int(id) for id in found.split()]
        if found != ids:
            sys.exit(f"{policy} {text[:200]!r}: ids\n{found[:100]}, tiktoken\n{ids[:100]}")
        if bytes.fromhex(decoded).decode() != encoding.decode(ids):
            sys.exit(f"{policy} {text[:200]!r}: decodes otherwise")
        if bytes.fromhex(visible).decode() != encoding.decode([id for id in ids if id not in hidden]):
            sys.exit(f"{policy} {text[:200]!r}: decodes otherwise without special tokens")
    return refused


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--encode-lines", required=True)
    parser.add_argument("--texts", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=20261125)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)

    golden = HERE / "golden" / "kimi_tiktoken"
    lines = (golden / "tiktoken.model").read_text().split("\n")
    tokens = [base64.b64decode(line.split()[0]) for line in lines if line]
    specials = [*NAMES.values(), f"<|reserved_token_{len(tokens) + 5}|>",
                f"<|reserved_token_{len(tokens) + SPECIAL_IDS - 1}|>"]
    texts = [draw_bytes(rng, specials) for _ in range(arguments.texts * 5 // 6)]
    texts += [text for text in long_texts(rng) for _ in range(4)]  # a policy each, and one more
    refused = check(arguments.encode_lines, str(golden), tokens, texts)
    count = len(texts)

    for _ in range(10):
        with tempfile.TemporaryDirectory() as directory:
            tokens = random_vocabulary(rng)
            write_files(pathlib.Path(directory), tokens)
            texts = [draw_bytes(rng, specials) for _ in range(arguments.texts // 60)]
            refused += check(arguments.encode_lines, directory, tokens, texts)
            count += len(texts)
    print(f"{count} texts as tiktoken encodes them, {refused} of them refused by both")


if __name__ == "__main__":
    main()
