#!/usr/bin/env python3
"""Writes src/outrider/text/normal_form_tables.cc: what Normalization Form C decomposes, composes and orders.
Python carries Unicode's data. What the library `tokenizers` does not know yet, as its Unicode is older, is
left out: a text becomes what it becomes there.

Run by hand, with `pip install tokenizers==0.23.3` and Python 3.11 (Unicode 14):
    tools/make_normal_form_tables.py src/outrider/text/normal_form_tables.cc
"""

import pathlib
import sys
import textwrap
import unicodedata

from tokenizers import normalizers

MARKS = "\u0334\u0345\u0301\u0316\u05b0"  # of different classes
HANGUL = range(0xAC00, 0xD7A4)            # by arithmetic
POINTS = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000]


def rows_of(rows):
    return textwrap.fill(" ".join(rows), 98, initial_indent="  ", subsequent_indent="  ", break_long_words=False)


def knows_class(point):
    form = normalizers.NFD().normalize_str
    texts = [f"a{chr(point)}{mark}" for mark in MARKS] + [f"a{mark}{chr(point)}" for mark in MARKS]
    return all(form(text) == unicodedata.normalize("NFD", text) for text in texts)


def main():
    form = normalizers.NFD().normalize_str
    decompositions = []
    for point in POINTS:
        parts = unicodedata.decomposition(chr(point)).split()
        if not parts or parts[0].startswith("<") or point in HANGUL:
            continue
        if form(chr(point)) != unicodedata.normalize("NFD", chr(point)):
            continue
        first, second = (int(part, 16) for part in (parts + ["0"])[:2])
        composes = unicodedata.normalize("NFC", chr(point)) == chr(point)
        decompositions.append(f"{{0x{point:X},0x{first:X},0x{second:X},{str(composes).lower()}}},")
    classes = []
    for point in POINTS:
        kind = unicodedata.combining(chr(point))
        if not kind or not knows_class(point):
            continue
        if classes and classes[-1][1] == point - 1 and classes[-1][2] == kind:
            classes[-1][1] = point
        else:
            classes.append([point, point, kind])
    pathlib.Path(sys.argv[1]).write_text(f"""\
// Written by tools/make_normal_form_tables.py; not to be edited.
// clang-format off
#include "outrider/text/normal_form_tables.h"

namespace outrider {{
namespace {{

constexpr Decomposition kDecompositions[] = {{
{rows_of(decompositions)}
}};

constexpr CombiningRange kCombining[] = {{
{rows_of(f"{{0x{first:X},0x{last:X},{kind}}}," for first, last, kind in classes)}
}};

}}  // namespace

std::span<const Decomposition> Decompositions() {{ return kDecompositions; }}
std::span<const CombiningRange> CombiningRanges() {{ return kCombining; }}

}}  // namespace outrider
""", encoding="utf-8")


if __name__ == "__main__":
    main()
