"""Fixtures of the package's tests: the package as installed, the bundled model, the program beside it."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from outrider import LLM

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models/tiny-v3-mtp3"
QUESTION = (
    "Ada has 12 apples. At the market, Ada buys 7 more apples and then gives 5 to a friend. "
    "How many apples does Ada have now?"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mixes", type=int, default=12, help="random mixes of test_exactness.py")
    parser.addoption("--first-mix", type=int, default=0, help="the number of the first of them")


def program() -> str:
    """A plain build's `outrider` where OUTRIDER_BINARY names one, else the installed command."""
    found = os.environ.get("OUTRIDER_BINARY") or shutil.which(
        "outrider", path=os.path.dirname(sys.executable)
    )
    assert found is not None
    return found


def run_program(*arguments: str) -> str:
    return subprocess.run(
        [program(), *arguments], check=True, capture_output=True, text=True
    ).stdout


def generate_json(*arguments: str) -> dict[str, Any]:
    """What `outrider generate --json` prints."""
    result: dict[str, Any] = json.loads(
        run_program("generate", str(MODEL), "--num-threads", "1", "--json", *arguments)
    )
    return result


def run_python(code: str, *, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs `code` in a process of its own, with MODEL and QUESTION."""
    head = f"MODEL = {str(MODEL)!r}\nQUESTION = {QUESTION!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", head + code], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def wait_until(holds: Callable[[], bool]) -> bool:
    """Whether it comes to hold, within a time that is long enough for any machine."""
    end = time.monotonic() + 60
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    with LLM(MODEL, num_threads=1, speculative_config={"num_speculative_tokens": 3}) as made:
        yield made
