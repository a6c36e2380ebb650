#!/usr/bin/env python3
"""Runs every Python snippet of docs/clients.md against a server of the bundled model.

    client_snippets_test.py --outrider build/.../outrider

A snippet whose package is not installed here is named and passed over; openai is always needed.
"""

import argparse
import importlib.util
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import serve_process  # noqa: E402

# Heading: what a snippet must print.
WANTED = {
    "openai-python": r"#### 80",
    "Streaming": r"#### 80\s+\d+ tokens",
    "Seeds": r"^$",
    "Structured output": r"^\d{1,2}$",
    "Tools": r"tools",
    "Anthropic's package": r"#### 80",
    "Without a package": r"\w",
}


def snippets(page: str) -> dict[str, str]:
    found = {}
    for section in re.split(r"^## ", page, flags=re.M)[1:]:
        heading = section.partition("\n")[0]
        for code in re.findall(r"^```python\n(.*?)^```", section, flags=re.M | re.S):
            if heading in found:
                sys.exit(f"docs/clients.md: two snippets under '{heading}'")
            found[heading] = code
    return found


def fault(code: str, wanted: str, port: int) -> str:
    """What is wrong with a snippet's run; "" for nothing."""
    run = subprocess.run([sys.executable, "-c", code.replace("localhost:8000", f"127.0.0.1:{port}")],
                         capture_output=True, text=True, timeout=120, check=False)
    if run.returncode != 0:
        return run.stderr.strip()
    return "" if re.search(wanted, run.stdout.strip()) else f"printed {run.stdout!r}, not {wanted!r}"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--outrider", required=True)
    arguments = parser.parse_args()
    found = snippets((ROOT / "docs" / "clients.md").read_text())
    if found.keys() != WANTED.keys():
        sys.exit(f"docs/clients.md has snippets under {sorted(found)}; this test knows {sorted(WANTED)}")
    faults = []
    server = serve_process.Server(arguments.outrider, ROOT / "models" / "tiny-v3-mtp3", ["--served-model-name", "tiny"])
    with server:
        for heading, code in found.items():
            packages = [name for name in re.findall(r"^(?:from|import) (\w+)", code, re.M)
                        if importlib.util.find_spec(name) is None]
            if packages and "openai" not in packages:
                print(f"passed over: {heading} needs {packages[0]}")
            elif message := fault(code, WANTED[heading], server.address[1]):
                faults.append(f"{heading}: {message}")
    print("\n".join(faults) if faults else f"{len(found)} snippets")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
