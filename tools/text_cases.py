#!/usr/bin/env python3
"""The larger cases of tests/text, which other implementations made: one archive, tests/text/golden/cases.tar.xz.

    tools/text_cases.py unpack FOLDER    writes them into FOLDER
    tools/text_cases.py pack FOLDER      makes the archive anew of FOLDER's files

To write some again: unpack, let a tool write into FOLDER (tools/make_tokenizer_goldens.py,
make_deepseek_v4_goldens.py, make_kimi_tools_goldens.py), pack. The same files give the same archive. CMake
unpacks them for the tests. Needs the Python standard library only.
"""
import argparse
import lzma
import pathlib

import fuzz_corpus

ARCHIVE = pathlib.Path(__file__).resolve().parent.parent / "tests/text/golden/cases.tar.xz"
NAMES = ("deepseek_v4_prompts.json", "kimi_tools.json", "tokenizer_cases.json", "unicode_properties.json")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["pack", "unpack"])
    parser.add_argument("folder", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.action == "unpack":
        arguments.folder.mkdir(parents=True, exist_ok=True)
        for name, content in fuzz_corpus.read(ARCHIVE).items():
            (arguments.folder / name).write_bytes(content)
        return
    missing = [name for name in NAMES if not (arguments.folder / name).is_file()]
    if missing:
        parser.error(f"{arguments.folder} does not have {', '.join(missing)}")
    files = {name: (arguments.folder / name).read_bytes() for name in NAMES}
    ARCHIVE.write_bytes(lzma.compress(fuzz_corpus.tar_of(files), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
