"""Holds the pages of the documentation to the repository and to the program.

    pages_test.py SOURCE_DIRECTORY OUTRIDER

Every relative link and every anchor of a page exists; every page of docs/ can be reached from README.md; commands that
pages show name options that the program has; README.md is short, and no cell of its tables has more than one number;
the code has the messages of troubleshooting.md and the files of add-a-family.md.
"""

import argparse
import functools
import pathlib
import re
import subprocess
import sys

COMMANDS = ("serve", "generate", "chat", "bench latency", "bench throughput", "bench serve", "bench kernels", "explain")
# Every option that these pages name is one of `outrider serve` or `outrider bench serve`.
SERVER_PAGES = ("docs/deploy.md", "docs/tuning.md")
MOST_README_LINES = 80


def pages(source: pathlib.Path) -> list[pathlib.Path]:
    found = [source / "README.md", source / "CONTRIBUTING.md", source / "CHANGELOG.md"]
    return found + sorted(source.glob("docs/*.md")) + sorted(source.glob("bench/results/*.md"))


def without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def prose(text: str) -> str:
    """Without blocks and spans of code."""
    return re.sub(r"`[^`\n]*`", "", without_blocks(text))


def links(text: str) -> list[str]:
    """Targets of links and pictures within the repository."""
    targets = re.findall(r"\]\(([^()\s]+)\)", prose(text))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


@functools.cache
def anchors(page: pathlib.Path) -> set[str]:
    """As GitHub makes them of headings: letters, digits, - and _, blanks as -, a number behind a repeated one."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.*)$", without_blocks(page.read_text()), re.M):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip())
        name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        repeated = 0
        while (f"{name}-{repeated}" if repeated else name) in found:
            repeated += 1
        found.add(f"{name}-{repeated}" if repeated else name)
    return found


def link_faults(source: pathlib.Path) -> list[str]:
    faults = []
    for page in pages(source):
        for target in links(page.read_text()):
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            where = f"{page.relative_to(source)}: the link {target}"
            if not file.exists():
                faults.append(f"{where} names no file")
            elif anchor and file.suffix == ".md" and anchor not in anchors(file):
                faults.append(f"{where} names no heading of {file.name}")
    return faults


def unreachable(source: pathlib.Path) -> list[str]:
    start = source / "README.md"
    seen, waiting = {start}, [start]
    while waiting:
        page = waiting.pop()
        for target in links(page.read_text()):
            file = (page.parent / target.partition("#")[0]).resolve()
            if file.suffix == ".md" and file.is_file() and file not in seen:
                seen.add(file)
                waiting.append(file)
    return [f"{page.relative_to(source)}: no link from README.md leads there"
            for page in sorted(source.glob("docs/*.md")) if page.resolve() not in seen]


class Program:
    def __init__(self, path: str) -> None:
        self._path = path

    @functools.cache
    def options(self, command: str) -> set[str]:
        run = subprocess.run([self._path, *command.split(), "--help"], capture_output=True, text=True, check=True)
        shown = set(re.findall(r"^  (--[a-z][\w.-]*)", run.stdout, re.M)) | {"--help"}
        # A switch that is on by default can be turned off.
        return shown | {"--no-" + option[2:] for option in shown}

    def check(self, command: str, option: str) -> str:
        """What is wrong with an option of a command; "" for nothing."""
        return "" if option in self.options(command) else f"`outrider {command}` has no option {option}"


def shown_commands(text: str) -> list[tuple[str, list[str]]]:
    """(command, options) of every `outrider COMMAND ...` in the page's code."""
    code = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.M | re.S)
    code += re.findall(r"`([^`\n]+)`", without_blocks(text))
    found = []
    for block in code:
        block = re.sub(r"\\\n\s*", " ", block)
        pattern = r"(?:^|[\s(/])outrider (%s)(?=\s|$)([^\n|&;]*)" % "|".join(sorted(COMMANDS, key=len, reverse=True))
        for command, rest in re.findall(pattern, block):
            rest = re.sub(r"'[^']*'|\"[^\"]*\"|#.*", "", rest)
            found.append((command, re.findall(r"(?<=\s)(--[a-z][\w.-]*)", rest)))
    return found


def option_faults(source: pathlib.Path, program: Program) -> tuple[list[str], int]:
    faults, checked = [], 0
    for page in pages(source):
        name = str(page.relative_to(source))
        if name == "CHANGELOG.md":  # tells of what was, too
            continue
        text = page.read_text()
        for command, options in shown_commands(text):
            checked += len(options)
            faults += [f"{name}: {fault}" for fault in (program.check(command, option) for option in options) if fault]
        if name in SERVER_PAGES:
            for option in re.findall(r"(?<![\w-])(--[a-z][\w.-]*)", text):
                checked += 1
                if program.check("serve", option) and program.check("bench serve", option):
                    faults.append(f"{name}: neither serve nor bench serve has an option {option}")
    return faults, checked


def readme_faults(source: pathlib.Path) -> list[str]:
    lines = (source / "README.md").read_text().splitlines()
    faults = []
    if len(lines) > MOST_README_LINES:
        faults.append(f"README.md: {len(lines)} lines, more than {MOST_README_LINES}")
    for number, line in enumerate(lines, 1):
        for cell in line.strip("|").split("|") if line.startswith("|") else []:
            # What has letters is a name: H100, V2-Lite, int8.
            text = re.sub(r"\]\([^)]*\)|`[^`]*`", "", cell)
            words = [word for word in text.split() if not re.search("[A-Za-z]", word)]
            if sum(bool(re.search(r"\d", word)) for word in words) > 1:
                faults.append(f"README.md, line {number}: more than one number in the cell '{cell.strip()}'")
    return faults


def sources_text(source: pathlib.Path) -> str:
    """The product's code with the pieces of every literal joined, and its quotation marks as they are printed."""
    files = [file for file in (source / "src").rglob("*") if file.suffix in (".cc", ".h", ".cu", ".cuh")]
    return re.sub(r'"\s*\n\s*"', "", "\n".join(file.read_text() for file in files)).replace('\\"', '"')


def message_faults(source: pathlib.Path) -> list[str]:
    """Messages of the first column of troubleshooting.md that the code does not have, apart from what … stands for."""
    code, faults, checked = sources_text(source), [], 0
    for line in (source / "docs/troubleshooting.md").read_text().splitlines():
        for message in re.findall(r"`([^`]+)`", line.split(" | ")[0]) if line.startswith("| ") else []:
            for part in re.split(r"…\S*|ORG/NAME", message):
                part = part.strip(" .,:;()[]?\"")
                checked += len(part) >= 6
                if len(part) >= 6 and part not in code:
                    faults.append(f"docs/troubleshooting.md: no source says '{part}' of '{message}'")
    if checked < 20:
        faults.append(f"docs/troubleshooting.md: only {checked} messages were found: the test does not read them")
    return faults


def path_faults(source: pathlib.Path) -> list[str]:
    """Files that the page about new families names and that are not there."""
    names = re.findall(r"`([^`\s]*/[^`\s]*)`", (source / "docs/add-a-family.md").read_text())
    return [f"docs/add-a-family.md: there is no {name}" for name in names
            if not any(any(folder.glob(name.rstrip("/"))) for folder in (source, source / "src/outrider"))]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("outrider")
    arguments = parser.parse_args()
    source = arguments.source.resolve()
    faults, checked = option_faults(source, Program(arguments.outrider))
    faults += link_faults(source) + unreachable(source) + readme_faults(source)
    faults += message_faults(source) + path_faults(source)
    if checked < 100:
        faults.append(f"only {checked} options were found in the pages: the test does not read them")
    print("\n".join(faults) if faults else f"{len(pages(source))} pages, {checked} options that exist")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
