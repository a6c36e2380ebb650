#!/usr/bin/env python3
"""Writes files of tests/text/golden: tiny tokenizers in the styles of published models, what Hugging Face's
`tokenizers` library makes of several hundred awkward strings with each of them, and which characters
it takes the Unicode properties of split patterns for.

Run by hand, with `pip install tokenizers` (the committed files were made with 0.23.3):
    tools/make_tokenizer_goldens.py models/tiny-v3-mtp3/tokenizer.json FOLDER
Tokenizers go to tests/text/golden as they are, cases and properties into its archive (tools/text_cases.py).
"""

import json
import pathlib
import random
import sys

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

DEEPSEEK_SPLITS = [
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
]
GLM_SPLITS = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
]
KIMI_SPLITS = [
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]
# Possessive quantifiers; numbers digit by digit; white space ends behind the first line break.
LING_SPLITS = [
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+",
]

SAMPLE = """The quick brown fox jumps over the lazy dog, and the dog doesn't mind; they'll be friends.
It's 12:45 on 2024-03-17. We've paid $1,234.56 (about 98%) for 3 items, haven't we?
def encode(self, text: str) -> list[int]:
    return [self.vocab[token] for token in self.split(text) if token in self.vocab]
for (int i = 0; i < 100; ++i) { sum += values[i] * weights[i]; }  // dot product
Größe, naïve café, señor, Ελληνικά, Русский язык, العربية, हिन्दी, 한국어, ไทย, Tiếng Việt.
今天的天气很好,我们去公园散步。価格は1000円です。カタカナとひらがな。
<html><body class="main">&nbsp;</body></html>   {"key": "value", "n": [1, 2, 3]}
"""

# What follows Chinese text and is not of the script Han, so that the vocabulary has tokens for it.
HAN_SAMPLE = """你好。
世界。
「你好」、《世界》。
ア・イ、〒・〆
"""

# Properties by which split patterns choose characters: general categories (no text has \p{Cs}), scripts.
CATEGORIES = ("L LC Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp "
              "C Cc Cf Co Cn").split()
SCRIPTS = ("Han Hani Hiragana Katakana Hangul Bopomofo Latin Greek Cyrillic Armenian Hebrew Arabic "
           "Devanagari Bengali Thai Tibetan Georgian Ethiopic Khmer Mongolian Common Inherited").split()
PROPERTIES = [r"\s", r"\S", r"\w", r"\W", r"[\w]", r"[^\w]", r"\d", r"\D", r"\p{^Han}", r"\P{Han}"]
PROPERTIES += [rf"\p{{{name}}}" for name in CATEGORIES + SCRIPTS]

PIECES = """the|The|THE|hello|world|don't|DON'T|they'll|I'm|ſ|'S|'ſ|can`t|x|Größe|naïve|cafe\u0301|e\u0301\u0323
éé|ñ|ß|ſt|ﬁ|İ|ı|Ωmega|Русский|язык|العربية|हिन्दी|क्षि|한국어|ᄒ\u1161ᆫ|ไทย|ภาษา|Tiếng|Việt|今天|天气|かな|カタカナ|々|〇|ー
龥|龦|鿿|㐀|𠮷|𪚥|豈|🙂|👩‍👩‍👧|🇩🇪|❤️|☃|€|$|£|©|™|№|½|²|٣|३|Ⅷ|㊿|1|12|123|1234|12345|1,234.56|3.14e-10|0x1F|2024-03-17
!|!!|?!|...|…|—|–|“q”|«q»|(|)|[]|{}|<|>|<>|/|//|\\|\\n|\\\\|#|##|@|&|&&|`|``|```|~|^|_|__|*|**|+|++|=|==|->|=>|:|::|;|,|.|'|''|"|"\"
def|foo_bar|fooBar|FooBar|FOOBar|HTTPServer|self.x|a[i]|f(x)|#include|i++|x->y|A::b|//c|/*d*/|<html>|</p>|&nbsp;|%s|%d|\\u0041
\u00a0|\u200b|\u200d|\ufeff|\u2028|\u2029|\u3000|\u180e|\u0085|\u1680|\u202f|\u00ad|\u0000|\u0001|\u001b|\u007f|\u009f|\ufffd|\uffff|\U0010ffff|\u0378|\ue000|\u0300|\u20dd"""
SPACES = ["", "", "", " ", " ", "  ", "   ", "\t", "\t\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n ",
          " \t ", "\x0b", "\x0c", "\u00a0", "\u3000", " \u2003", "        "]


def specials_of(tokenizer):
    return [token.content for token in tokenizer.get_added_tokens_decoder().values()]


def make_texts(specials):
    rng = random.Random(20261121)
    pieces = [piece for line in PIECES.split("\n") for piece in line.split("|") if piece]
    texts = ["", " ", "  ", "\n", "\r\n", "\t", "a", "ab", " a", "a ", " a ", "\u00e9", "e\u0301"]
    texts += pieces
    texts += SAMPLE.split("\n")
    texts += [*HAN_SAMPLE.split("\n"), "你好。\n世界", HAN_SAMPLE]
    texts += [SAMPLE[:200], "a" * 70, "ab" * 60, "the" * 40, " " * 65, "\n" * 50, "1" * 50, "!" * 50,
              "今" * 60, "🙂" * 20, "\u0301" * 10, "aA" * 20, "'s" * 20, " \n" * 20, "x \n y\n\n z  "]
    # White space that a token takes along and that is a token itself.
    texts += ["a<|right|>  b", "<|right|>    b", "<|right|>   b", "<|right|>\n\n  \n b", "<|right|> \n x",
              "<|right|>\n", "<|right|>  <|left|>x", "<|right|>   <|left|>x", "a \n\n \n\n  b",
              "<|n|> \t x", "<|n|>\t\t", "<|n|>\t \tx", "<|right|> \tx", "x² ³y z¹ ¼½ ¾a _²"]
    # What NFC composes, decomposes and orders, and what keeps marks from characters.
    texts += ["s\u0323\u0307s\u0307\u0323\u1e61\u0323", "e\u0301\u0301", "\u00e9\u0301x", "e\u0323\u0301",
              "\u212b\u2126\u2329", "\u0958\u0915\u093c\u0344\u0308\u0301", "\u0301\u0301a",
              "\u1112\u1161\u11ab\u1112\u1161\u11a7\ud558\u11ab", "a\u0316\u0301\u0300",
              "\uf900\ufa1e\U0002f800", "\u0cc6\u0cc2\u0cd5", "e\u200d\u0301", "\U00011935\U00011930",
              "\u03b1\u0313\u0300\u0345", "cafe\u0301's nai\u0308ve"]
    marks = "\u0300\u0301\u0307\u0308\u0316\u0323\u0327\u0338\u0345\u0334\u3099\u093c\u05b0\u1161\u11a8"
    marked = "aAeEoOuUsScC\u00e9\u1e69\u03b1\u1100\uac00\u304b"
    for _ in range(60):
        texts.append("".join(rng.choice(marked) + "".join(rng.choices(marks, k=rng.randint(0, 3)))
                             for _ in range(12)))
    for special in specials:
        texts += [special, f"a{special}b", f" {special} ", special[:-1], special + special,
                  f"{special[:3]}{special}\n"]
    for _ in range(330):
        text = ""
        for _ in range(rng.randint(1, 9)):
            choice = rng.random()
            text += rng.choice(specials) if choice < 0.04 else rng.choice(pieces)
            text += rng.choice(SPACES)
        texts.append(text)
    for _ in range(60):
        points = [rng.choice([rng.randrange(0x80), rng.randrange(0x800), rng.randrange(0x3000, 0xA000),
                              rng.randrange(0x1F300, 0x1F700)]) for _ in range(rng.randint(1, 12))]
        texts.append("".join(chr(point) for point in points))
    return list(dict.fromkeys(texts))


def train(splits, vocab_size, more=()):
    tokenizer = Tokenizer(models.BPE())
    steps = [pre_tokenizers.Split(Regex(split), "isolated") for split in splits]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([SAMPLE, SAMPLE.lower(), *more], trainer)
    return json.loads(tokenizer.to_str())


def added(id, content, special=True, **flags):
    return {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": special, **flags}


def deepseek_style():
    spec = train(DEEPSEEK_SPLITS, 520)
    names = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"]
    spec["added_tokens"] = [added(520 + i, name) for i, name in enumerate(names)]
    spec["added_tokens"] += [added(524, "<think>", special=False, normalized=True),
                             added(525, "</think>", special=False, normalized=True),
                             added(526, "<｜User｜>s", special=False)]
    spec["normalizer"] = {"type": "Sequence", "normalizers": []}
    spec["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False,
                              "use_regex": True}
    return spec


def glm_style():
    spec = train(GLM_SPLITS, 500)
    spec["model"]["merges"] = [" ".join(merge) for merge in spec["model"]["merges"]]
    spec["model"]["ignore_merges"] = True
    for word in [" quick brown", "brown", " friends", "doesn"]:  # words no merge leads to
        spelled = word.replace(" ", "Ġ")
        if spelled not in spec["model"]["vocab"]:
            spec["model"]["vocab"][spelled] = len(spec["model"]["vocab"])
    first = len(spec["model"]["vocab"])
    spec["added_tokens"] = [added(first, "[gMASK]"), added(first + 1, "<sop>"),
                            added(first + 2, "<|user|>"), added(first + 3, "<|left|>", lstrip=True),
                            added(first + 4, "<|right|>", rstrip=True),
                            added(first + 5, "<|both|>", special=False, lstrip=True, rstrip=True),
                            added(first + 6, "éé", special=False), added(first + 7, "a b")]
    special = {name: {"id": name, "ids": [first + i], "tokens": [name]}
               for i, name in enumerate(["[gMASK]", "<sop>"])}
    single = [{"SpecialToken": {"id": "[gMASK]", "type_id": 0}},
              {"SpecialToken": {"id": "<sop>", "type_id": 0}},
              {"Sequence": {"id": "A", "type_id": 0}}]
    pair = single + [{"Sequence": {"id": "B", "type_id": 0}}]
    spec["post_processor"] = {"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}]}
    return spec


def kimi_style():
    spec = train(KIMI_SPLITS, 500, [HAN_SAMPLE] * 20)
    spec["added_tokens"] = [added(500, "[BOS]"), added(501, "<|im_end|>")]
    return spec


def ling_style():
    spec = train(LING_SPLITS, 500)
    names = ["<|startoftext|>", "<|endoftext|>", "[gMASK]", "<role>", "</role>", "<|role_end|>"]
    spec["added_tokens"] = [added(500 + i, name) for i, name in enumerate(names)]
    spec["added_tokens"] += [added(506, "<think>", special=False), added(507, "</think>", special=False),
                             added(508, "e\u0301\u0301", special=False, normalized=True)]
    spec["normalizer"] = {"type": "NFC"}
    return spec


def gpt2_style():
    spec = train([], 420)
    spec["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "Split", "pattern": {"String": "=="}, "behavior": "Isolated", "invert": False},
        {"type": "Split", "pattern": {"Regex": "\u2028+"}, "behavior": "Removed", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]}
    spec["added_tokens"] = [added(420, "<|endoftext|>")]
    return spec


def words_style():
    """Splits by \\w, and has added tokens of nothing but white space."""
    spec = train([r"\w+"], 420, ["x² ³y z¹ ¼½ ¾a _²\n"] * 20)
    tokens = [("<|right|>", {"rstrip": True}), ("  ", {}), ("\n", {"special": False}),
              ("<|left|>", {"lstrip": True}), (" \n\n", {"lstrip": True, "rstrip": True}),
              ("\t", {"normalized": True}), ("<|n|>", {"normalized": True, "rstrip": True})]
    spec["added_tokens"] = [added(420 + i, name, **flags) for i, (name, flags) in enumerate(tokens)]
    return spec


def ranges_of(pattern):
    """The characters that the library takes `pattern` for: [first, last, first, last, ...]."""
    text = "".join(chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000)
    others = pre_tokenizers.Split(Regex(pattern + "+"), "removed").pre_tokenize_str(text)
    ranges, start = [], 0
    for _, (first, last) in others + [("", (len(text), len(text)))]:
        if first > start:
            ranges += [ord(text[start]), ord(text[first - 1])]
        start = last
    return ranges


def golden(tokenizer, texts):
    """Per text: [ids] or [ids, ids when special tokens are plain text] where they differ."""
    cases = []
    for text in texts:
        tokenizer.encode_special_tokens = False
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = True
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = False
        cases.append([ids] if ids == plain else [ids, plain])
    rng = random.Random(7)
    size = tokenizer.get_vocab_size()
    decoded = []
    for _ in range(60):
        ids = [rng.randrange(size) for _ in range(rng.randint(0, 12))]
        decoded.append([ids, tokenizer.decode(ids, skip_special_tokens=False),
                        tokenizer.decode(ids, skip_special_tokens=True)])
    return {"encode": cases, "decode": decoded,
            "with_special_tokens": tokenizer.encode("Hello 12").ids}


def main():
    bundled, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    styles = {"deepseek_style": deepseek_style(), "glm_style": glm_style(),
              "kimi_style": kimi_style(), "gpt2_style": gpt2_style(), "words_style": words_style(),
              "ling_style": ling_style()}
    tokenizers = {"bundled": Tokenizer.from_file(str(bundled))}
    for name, spec in styles.items():
        text = json.dumps(spec, ensure_ascii=False, separators=(",", ":"))
        (out / f"{name}_tokenizer.json").write_text(text + "\n", encoding="utf-8")
        tokenizers[name] = Tokenizer.from_str(text)
    specials = list(dict.fromkeys(s for t in tokenizers.values() for s in specials_of(t)))
    texts = make_texts(specials)
    result = {"texts": texts,
              "tokenizers": {name: golden(t, texts) for name, t in tokenizers.items()}}
    text = json.dumps(result, separators=(",", ":"))
    (out / "tokenizer_cases.json").write_text(text + "\n", encoding="utf-8")
    properties = {pattern: ranges_of(pattern) for pattern in PROPERTIES}
    text = json.dumps(properties, separators=(",", ":")).replace("],", "],\n")
    (out / "unicode_properties.json").write_text(text + "\n", encoding="utf-8")
    print(f"{len(texts)} texts, {len(tokenizers)} tokenizers, {len(properties)} properties")


if __name__ == "__main__":
    main()
