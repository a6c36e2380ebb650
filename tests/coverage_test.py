"""Holds that every source of src/outrider has a test: one of its name (x.cc has x_test.cc, in any folder of tests/),
or the one that outrider_covers in tests/ROOM/CMakeLists.txt names for it.

    coverage_test.py SOURCE_DIRECTORY --rooms ROOM... --covers ROOM:TEST:PATTERN...

TEST is a file of tests/, PATTERN names sources below src/outrider/ROOM.
"""

import argparse
import pathlib
import sys

SOURCES = {".cc", ".cu"}
TESTS = {".cc", ".cu", ".py", ".sh"}


def faults(source: pathlib.Path, rooms: list[str], covers: list[str]) -> list[str]:
    tests = {file.stem for file in source.glob("tests/**/*_test.*") if file.suffix in TESTS}
    without_test = {
        file
        for room in rooms
        for file in source.glob(f"src/outrider/{room}/**/*")
        if file.suffix in SOURCES and f"{file.stem}_test" not in tests
    }
    errors, covered = [], set()
    for room, test, pattern in (line.split(":") for line in covers):
        if not test.rpartition(".")[0].endswith("_test") or not (source / "tests" / test).is_file():
            errors.append(f"tests/{room}/CMakeLists.txt: there is no test tests/{test}")
        found = set(source.glob(f"src/outrider/{room}/{pattern}")) & without_test - covered
        if not found:
            errors.append(f"tests/{room}/CMakeLists.txt: '{pattern}' names no source of src/outrider/{room} that is "
                          "without a test of its name or an earlier line")
        covered |= found
    errors += [f"{file}: no test has its name, and tests/*/CMakeLists.txt names none for it (outrider_covers)"
               for file in sorted(without_test - covered)]
    return errors


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("--rooms", nargs="+", required=True)
    parser.add_argument("--covers", nargs="*", default=[])
    arguments = parser.parse_args()
    errors = faults(arguments.source, arguments.rooms, arguments.covers)
    print("\n".join(errors) if errors else f"{len(arguments.rooms)} rooms, every source with a test")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
