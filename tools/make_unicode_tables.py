#!/usr/bin/env python3
"""Writes src/outrider/text/unicode_tables.cc: the characters of each Unicode property that split patterns can
name. The package `regex` carries Unicode's data. Take the release of it that carries the version of the
published tokenizers (`tokenizers` and `tiktoken`): a later one would cut newer characters otherwise than they
do. tests/text/published_tokenizers_test.py sweeps all characters against both.

Run by hand, with `pip install regex==2025.7.34` (Unicode 16):
    tools/make_unicode_tables.py src/outrider/text/unicode_tables.cc
"""

import pathlib
import sys
import textwrap

import regex
from regex import _regex_core

UNICODE_OF_REGEX = {"2.5.159": "16.0"}  # by regex.__version__

CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn").split()
# With what Unicode calls them at length, and the short name, if there is one.
BINARY = {"alphabetic": "alpha", "lowercase": "lower", "uppercase": "upper", "whitespace": "wspace",
          "ideographic": "ideo", "emoji": None, "extendedpictographic": "extpict"}


def ranges(pattern):
    matches = regex.compile(pattern).fullmatch
    found = []
    for point in range(0x110000):
        if matches(chr(point)):
            if found and found[-1][1] == point - 1:
                found[-1][1] = point
            else:
                found.append([point, point])
    return found


def names_of(kind):
    """The names of each value of a property, in lower case without separators, the longest first."""
    values = {}
    for name, value in _regex_core.PROPERTIES[kind][1].items():
        values.setdefault(value, []).append(name.lower())
    return [sorted(names, key=len, reverse=True) for _, names in sorted(values.items())]


def main():
    properties = []  # (names, pattern)
    for names in names_of("GENERALCATEGORY"):
        short = next((category for category in CATEGORIES if category.lower() in names), None)
        if short:
            properties.append((names, rf"\p{{gc={short}}}"))
    taken = {name for names, _ in properties for name in names}
    for names in names_of("SCRIPT"):
        assert not taken & set(names), names
        properties.append((names, rf"\p{{sc={names[0]}}}"))
    for name, short in BINARY.items():
        properties.append(([name, short] if short else [name], rf"\p{{{name}=yes}}"))

    tables, entries = [], []
    for index, (names, pattern) in enumerate(properties):
        found = ranges(pattern)
        if not found:
            continue  # Katakana_Or_Hiragana
        text = textwrap.fill(" ".join(f"{{0x{a:X},0x{b:X}}}," for a, b in found), 98,
                             initial_indent="  ", subsequent_indent="  ")
        tables.append(f"constexpr CodePointRange k{names[0].capitalize()}[] = {{\n{text}\n}};\n")
        entries += [f'  {{"{name}", k{names[0].capitalize()}}},' for name in names if name.isalpha()]
    pathlib.Path(sys.argv[1]).write_text(f"""\
// Written by tools/make_unicode_tables.py from Unicode {UNICODE_OF_REGEX[regex.__version__]}; not to be edited.
// clang-format off
#include "outrider/text/unicode_tables.h"

namespace outrider {{
namespace {{

{"".join(tables)}
constexpr UnicodeTable kTables[] = {{
{chr(10).join(sorted(entries))}
}};

}}  // namespace

std::span<const UnicodeTable> UnicodeTables() {{ return kTables; }}

}}  // namespace outrider
""")


if __name__ == "__main__":
    main()
