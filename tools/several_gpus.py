#!/usr/bin/env python3
"""Tests and times a model on several GPUs of one host beside one, in about nine minutes.

Runs, each with a time limit of its own, and prints what each came to:
  tests     ranks and what they exchange (the GPUs that there are take part in some tests)
  fuzz      random requests on the ranks against each of them alone: DeepSeek-V3, V4, V3.2 and Step
            models, with stalls on each GPU, and with a cache for each rank
  exchange  microseconds of an exchange among the ranks, over the GPUs' own memory and over NCCL
  times     GLM-4.7-Flash with random weights: a decode step of 1, 8, 32 and 128 requests without drafts
            and with three, and prompts of 8 x 2048; ranks beside one GPU
Exit status 0: all went well; 1: a test or the fuzz found a fault; 2: something did not run.

  cmake --preset cuda -DOUTRIDER_BUILD_TESTS=ON && cmake --build build/cuda -j
  python3 tools/several_gpus.py --build build/cuda --ranks 2

Needs as many Hopper GPUs as ranks, and the Python standard library.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from gpu_goals import BATCHES, NO_DRAFTS, ROOT, THREE_TOKENS_A_STEP, Bench, prompt_tokens_per_second
from gpu_goals import step_milliseconds
from serve_process import ServerError

PARTS = ("tests", "fuzz", "exchange", "times")
TESTS = ("tests/ops/cuda/peer_communicator_test", "tests/engine/cuda/gpu_ranks_test")
TEST_SECONDS = 150  # of one program
FUZZ = ((70, ()), (25, ("--v4", "1")), (25, ("--sparse", "1")), (25, ("--step", "1")),
        (25, ("--divided", "1")))  # seconds, models
# Of a step, of prompts: ranks beside one GPU, two of them.
STEP_GOALS = {1: 0.95, 8: 0.75, 32: 0.65, 128: 0.62}
PROMPT_GOAL = 1.6


class Failed(Exception):
    """A program found a fault."""


class RankBench(Bench):
    """Bench on so many GPUs."""

    def __init__(self, outrider, directory, ranks):
        super().__init__(outrider, directory)
        self.ranks = ranks

    def on(self, ranks):
        self.ranks = ranks
        return self

    def rows(self, kind, model, *flags):
        return super().rows(kind, model, *flags, "--tensor-parallel-size", self.ranks)


def run(program, *arguments, seconds):
    """Its output; throws Failed with its end if it fails."""
    command = [str(program), *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, cwd=ROOT)
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(command)}: has not ended within {seconds} s") from None
    if done.returncode != 0:
        end = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        raise Failed(f"{' '.join(command)}: status {done.returncode}\n{end}")
    return done.stdout


def run_tests(args):
    for name in TESTS:
        output = run(args.build / name, seconds=TEST_SECONDS)
        passed = re.search(r"\[  PASSED  \] (\d+) test", output)
        skipped = re.search(r"\[  SKIPPED \] (\d+) test", output)
        print(f"{pathlib.Path(name).name}: {passed[1] if passed else 0} passed, "
              f"{skipped[1] if skipped else 0} skipped", flush=True)


def run_fuzz(args):
    for seconds, models in FUZZ:
        output = run(args.build / "tests/engine/outrider_exactness_fuzz", "--device", "cuda",
                     "--ranks", args.ranks, "--seconds", seconds, "--engines", 4, "--servings", 4, *models,
                     seconds=seconds + 60)
        print(f"fuzz {' '.join(models)}: {output.splitlines()[-1]}", flush=True)


def run_exchange(args):
    for carrier in ((), ("--nccl",)):
        try:
            print(run(args.build / "bench/rank_exchange_bench", "--ranks", args.ranks, *carrier,
                      seconds=30), flush=True)
        except Failed as failure:
            if not carrier:
                raise
            print(failure, flush=True)  # NCCL is needed only where GPUs do not reach each other


def run_times(args):
    print(f"| GLM-4.7-Flash, random weights | one GPU | {args.ranks} GPUs | {args.ranks} / 1 | goal of "
          "two |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        bench = RankBench(args.outrider, directory, 1)
        for what, flags in (("no drafts", NO_DRAFTS), ("k = 3", THREE_TOKENS_A_STEP)):
            for batch in BATCHES:
                one, several = (step_milliseconds(bench.on(ranks), "GLM-4.7-Flash", batch, flags)[0]
                                for ranks in (1, args.ranks))
                print(f"| ms a step of {batch} requests, {what} | {one:.3g} | {several:.3g} | "
                      f"{several / one:.2f} | {STEP_GOALS[batch]} |", flush=True)
        one, several = (prompt_tokens_per_second(bench.on(ranks), "GLM-4.7-Flash")
                        for ranks in (1, args.ranks))
        print(f"| 8 prompts of 2048, tokens/s | {one:,.0f} | {several:,.0f} | {several / one:.2f} | "
              f"{PROMPT_GOAL} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/cuda", metavar="FOLDER",
                        help="where tests, bench and program are built (default: build/cuda)")
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="GPUs (default: 2)")
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part only")
    args = parser.parse_args()
    args.build = args.build.resolve()
    args.outrider = args.build / "outrider"
    if not os.access(args.outrider, os.X_OK):
        parser.error(f"{args.outrider}: no such program; build it or name its folder with --build")
    runs = dict(tests=run_tests, fuzz=run_fuzz, exchange=run_exchange, times=run_times)
    status = 0
    for part in args.only or PARTS:
        begin = time.monotonic()
        print(f"## {part}", flush=True)
        try:
            runs[part](args)
        except Failed as failure:
            print(failure, flush=True)
            status = max(status, 1)
        except (ServerError, OSError, subprocess.TimeoutExpired) as error:
            print(f"several_gpus.py: {error}", file=sys.stderr)
            status = 2
        print(f"({part}: {time.monotonic() - begin:.0f} s)\n", flush=True)
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("several_gpus.py: interrupted", file=sys.stderr)
        sys.exit(2)
