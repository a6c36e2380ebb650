#!/usr/bin/env python3
"""Takes out of the golden files what no test reads, and what says the same again.

    export OUTRIDER_GOLDEN_READS=/tmp/reads
    build/release/tests/networks/networks_test --gtest_filter='*Golden*:AttentionBackend*'
    build/release/tests/draft/draft_test --gtest_filter='*Golden*'
    python3 tests/cli/trained_hybrid_test.py build/release/outrider
    tools/trim_goldens.py /tmp/reads             lists what is in tests/golden, but not in the list
    tools/trim_goldens.py /tmp/reads --write     writes the files anew without it

Where a row of logits has thousands of numbers, the last rows of a case are kept (ROWS): tests compare the rows
that there are.
A file of which the list has nothing is an error: its tests did not run.
Needs the Python standard library only.
"""
import argparse
import json
import pathlib
import struct
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Read by C++ tests on a GPU, or by scripts, and so small that they stay.
NAMES_THAT_STAY = ("ids",)
# By the end of the name: how many rows, or of a block drafter blocks.
ROWS = {"logits": 1, "base_logits": 1, "biased_logits": 1, "hidden": 4}
MODELS_OF_MANY_TOKENS = ("tiny-v3-mtp3", "tiny-v4")


def read(path):
    """(header, bytes of tensors) of a safetensors file."""
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8:8 + size]), content[8 + size:]


def without(header, data, unread, rows_of):
    """The file's bytes but for some tensors, and of others but for their first rows."""
    kept, parts, offset = {}, [], 0
    tensors = {name: info for name, info in header.items() if name != "__metadata__" and name not in unread}
    for name, info in sorted(tensors.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = info["data_offsets"]
        rows = min(info["shape"][0], rows_of.get(name.rpartition(".")[2], info["shape"][0]))
        begin = end - (end - begin) // info["shape"][0] * rows
        kept[name] = dict(info, shape=[rows, *info["shape"][1:]], data_offsets=[offset, offset + end - begin])
        parts.append(data[begin:end])
        offset += end - begin
    text = json.dumps(kept, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reads", type=pathlib.Path, help="what tests have written")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    reads = {}
    for line in arguments.reads.read_text(encoding="utf-8").splitlines():
        path, _, name = line.rpartition(" ")
        reads.setdefault(pathlib.Path(path), set()).add(name)
    saved = 0
    for path in sorted((ROOT / "tests/golden").glob("*/golden*.safetensors")):
        if path not in reads:
            parser.error(f"no test read {path}")
        header, data = read(path)
        unread = {name: info for name, info in header.items() if name != "__metadata__"
                  and name not in reads[path] and name.rpartition(".")[2] not in NAMES_THAT_STAY}
        trimmed = without(header, data, unread, ROWS if path.parent.name in MODELS_OF_MANY_TOKENS else {})
        if len(trimmed) == path.stat().st_size:
            continue
        saved += path.stat().st_size - len(trimmed)
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size - len(trimmed)} bytes: "
              + (", ".join(sorted(unread)) or "rows"))
        if arguments.write:
            path.write_bytes(trimmed)
    print(f"{saved} bytes" + (" saved" if arguments.write else " too many"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
