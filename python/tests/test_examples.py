"""The examples run, and pass mypy --strict with the package's stubs."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from conftest import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SHOWN = {
    "batch_json_schema": "'name': ",
    "quick_start": "#### 40",
    "scoring": "equal to generation, bit for bit",
    "speculation": "the same tokens each time",
    "streaming": "the third was given up",
}


def test_there_is_an_expectation_for_each() -> None:
    assert [path.stem for path in EXAMPLES] == sorted(SHOWN)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs(path: pathlib.Path) -> None:
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert SHOWN[path.stem] in done.stdout


def test_types(tmp_path: pathlib.Path) -> None:
    # From another folder, so that the installed package is looked at, not its sources.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), *map(str, EXAMPLES)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout
