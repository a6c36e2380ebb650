#!/usr/bin/env python3
"""The tools that need the standard library only can be started: what they import is there.

    tools_start_test.py SOURCE_DIRECTORY
"""
import pathlib
import subprocess
import sys

CLAIM = "standard library only"
LIBRARIES = {"serve_process.py"}  # without a command line


def main():
    tools = pathlib.Path(sys.argv[1]) / "tools"
    found = [tool for tool in sorted(tools.glob("*.py")) if CLAIM in tool.read_text(encoding="utf-8")]
    if len(found) < 5:
        sys.exit(f"{tools}: only {len(found)} tools say '{CLAIM}'")
    failed = False
    for tool in found:
        # -S: packages that happen to be installed are not found.
        command = [sys.executable, "-S", tool, *([] if tool.name in LIBRARIES else ["--help"])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            failed = True
            print(f"{tool.name}: {done.stderr.strip()}")
    if failed:
        sys.exit(1)
    print(f"{len(found)} tools start")


if __name__ == "__main__":
    main()
