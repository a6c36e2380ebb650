#!/usr/bin/env python3
"""Makes the table of models in docs/models.md from what `outrider explain` says of published configs.

    python3 tools/model_table.py --outrider build/release/outrider            compares the page; status 1 if it differs
    python3 tools/model_table.py --outrider build/release/outrider --write    writes it

The configs are in tools/model_configs.py. Needs the Python standard library only.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from model_configs import CONFIGS

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "models.md"
BEGIN = "<!-- models: made by tools/model_table.py -->\n"
END = "<!-- end of models -->"

# Of a card's GB, --gpu-memory-utilization leaves 0.9; explain takes 4 GiB as the work space of the largest step.
CARDS = {"H100": 80, "H200": 141}
UTILIZATION = 0.9
WORK_SPACE_GB = 4 * 2**30 / 1e9

COLUMNS = ["model", "`model_type`", "weights as published", "billion parameters", "of them per token",
           "GB in memory", "GB of draft modules", "cache, MB per 1,000 tokens", "MB a request beside it",
           "one Hopper GPU"]


def explain(outrider: str, config: dict) -> dict:
    """The report about a model of this config, on a processor and whatever its instruction set."""
    with tempfile.TemporaryDirectory() as directory:
        pathlib.Path(directory, "config.json").write_text(json.dumps(config))
        run = subprocess.run(
            [outrider, "explain", directory, "--load-format", "dummy", "--device", "cpu", "--json"],
            env=os.environ | {"OUTRIDER_ISA": "reference"}, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"model_table: {config['model_type']}: {run.stderr.strip()}")
    return json.loads(run.stdout)


def rounded(value: float) -> str:
    """Three digits, and no more behind the point than two."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def stored_as(memory: dict) -> str:
    """The formats of the experts and of the rest, by what the published files hold."""
    names = {"bfloat16": "BF16", "float8_e4m3": "FP8", "int4": "INT4", "float4_e2m1": "FP4"}
    groups = sorted(memory["weight_groups"], key=lambda group: -group["weights"])
    experts = next(group for group in groups if group["name"] == "routed experts")
    others = next(group for group in groups if group["name"] == "attention")
    kinds = [names[group["stored"].split(",")[0]] for group in (experts, others)]
    return kinds[0] if kinds[0] == kinds[1] else f"{kinds[0]} experts, {kinds[1]}"


def on_a_gpu(report: dict, gigabytes: float) -> str:
    verdict = next(line for line in report["decisions"] if line["what"] == "on a Hopper GPU")
    if verdict["value"] != "runs":
        return "no: " + verdict["why"].removeprefix("it lacks ").split(" (")[0]
    cards = [name for name, size in CARDS.items() if gigabytes + WORK_SPACE_GB <= UTILIZATION * size]
    return "yes: " + " or ".join(cards) if cards else "its layers run, the whole does not fit"


def row(name: str, config: dict, report: dict) -> str:
    memory, parameters = report["memory"], report["parameters"]
    growing, fixed = memory["kv_bytes_per_token"], memory["request"]["generating_bytes"]
    weights, modules = memory["weight_bytes"] / 1e9, memory["mtp_bytes"] / 1e9
    cells = [name, f"`{config['model_type']}`", stored_as(memory), rounded(parameters["target"] / 1e9),
             rounded(parameters["target_active"] / 1e9), rounded(weights), rounded(modules) if modules else "",
             rounded(growing * 1000 / 1e6), rounded(fixed / 1e6) if fixed else "",
             on_a_gpu(report, weights + modules)]
    return "| " + " | ".join(cells) + " |\n"


def table(outrider: str) -> str:
    lines = ["\n| " + " | ".join(COLUMNS) + " |\n", "|" + "---|" * len(COLUMNS) + "\n"]
    lines += [row(name, config, explain(outrider, config)) for name, config in CONFIGS.items()]
    return "".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outrider", required=True, help="the program")
    parser.add_argument("--write", action="store_true", help="write the page instead of comparing it")
    arguments = parser.parse_args()
    page = PAGE.read_text()
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        sys.exit(f"model_table: {PAGE} must have one line {BEGIN.strip()} and one {END}")
    start, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    made = table(arguments.outrider)
    if arguments.write:
        PAGE.write_text(page[:start] + made + page[end:])
        return 0
    if page[start:end] == made:
        print(f"{len(CONFIGS)} models, as docs/models.md says")
        return 0
    for line in made.splitlines():
        if line not in page[start:end].splitlines():
            print("explain says: " + line)
    print("docs/models.md is out of date; run: python3 tools/model_table.py --outrider OUTRIDER --write")
    return 1


if __name__ == "__main__":
    sys.exit(main())
