"""Holds the order of rooms: a file of src/outrider/ROOM includes headers of its own room and of rooms
before it only. The same order stands in CMakeLists.txt and in the table of docs/architecture.md.

    room_order_test.py SOURCE_DIRECTORY ROOM...
"""

import pathlib
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s+"outrider/(\w+)/', re.MULTILINE)
SOURCES = {".h", ".cc", ".cu", ".cuh", ".in"}


def wrong_includes(source: pathlib.Path, rooms: list[str]) -> list[str]:
    place = {room: i for i, room in enumerate(rooms)}
    errors = []
    for file in sorted(source.glob("src/outrider/**/*")):
        if file.suffix not in SOURCES:
            continue
        room = file.relative_to(source / "src/outrider").parts[0]
        if room not in place:
            errors.append(f"{file}: the room '{room}' is not in OUTRIDER_ROOMS of CMakeLists.txt")
            continue
        for included in INCLUDE.findall(file.read_text()):
            if place.get(included, len(rooms)) > place[room]:
                errors.append(f"{file}: '{room}' includes a header of '{included}', which comes after it")
    return errors


def documented_rooms(source: pathlib.Path) -> list[str]:
    """The rooms that the table of docs/architecture.md lists, from top to bottom."""
    page = (source / "docs/architecture.md").read_text()
    return re.findall(r"^\| `(\w+)/` \|", page, re.MULTILINE)


def main() -> int:
    source, rooms = pathlib.Path(sys.argv[1]), sys.argv[2:]
    errors = wrong_includes(source, rooms)
    if documented_rooms(source) != rooms:
        errors.append(
            "docs/architecture.md: its table lists the rooms\n  " + " ".join(documented_rooms(source))
            + "\nCMakeLists.txt lists\n  " + " ".join(rooms))
    print("\n".join(errors) if errors else f"{len(rooms)} rooms in order")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
