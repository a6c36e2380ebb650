#!/usr/bin/env python3
"""Measures DeepSeek-V4's trained model on a GPU: answers with its drafters beside those without.

  texts       tools/evaluate.py: 200 problems, without drafts, with the MTP module's 1, 2 and 3 and with
              DSpark's 5: accuracy, the same texts, and how many of them are a processor's
  problems    1,319 five-shot problems, 128 at a time, by `outrider bench serve`: problems a second
              without drafts and with DSpark's, and how many times as many (goal: 1.8)
Exit status 0: all of that holds; 1: something does not; 2: a run failed. Takes about two minutes.

  python3 tools/v4_goals.py --outrider build/cuda/outrider

Needs the Python standard library only. bench/results/hopper_v4.md keeps a run.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from evaluate import EVAL_SEED, MAX_TOKENS, ROOT, request_of
from gpu_goals import Bench
from serve_process import ServerError
import textgen

MODEL = ROOT / "models/tiny-v4-dspark"
PARTS = ("texts", "problems")
PROBLEMS, AT_ONCE, RUNS = 1319, 128, 3
BLOCK = 5  # drafts
SPEED_GOAL = 1.8
SAME_AS_PROCESSOR = 195  # of 200 texts


def texts(outrider, more):
    """Whether evaluate.py found nothing amiss."""
    fine = True
    for model, drafts, least in ((MODEL / "mtp1", "0,1,2,3", (1, 1.9)), (MODEL, f"0,{BLOCK}", (BLOCK, 5.0))):
        command = [sys.executable, ROOT / "tools/evaluate.py", "--outrider", outrider, "--model", model,
                   "--spec-tokens", drafts, "--acceptance-k", least[0], "--min-acceptance-length", least[1],
                   "--concurrency", "32", "--equal-on-processor", SAME_AS_PROCESSOR, "--", "--device", "cuda",
                   *more]
        done = subprocess.run([str(part) for part in command], check=False)
        if done.returncode > 1:
            raise ServerError(f"evaluate.py ended with {done.returncode}")
        fine &= done.returncode == 0
    return fine


def problems(outrider, more):
    """Whether drafts are as fast as they should be."""
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(outrider, directory)
        prompts = bench.directory / "problems.jsonl"
        with prompts.open("w", encoding="utf-8") as file:
            for problem in textgen.eval_set(EVAL_SEED, PROBLEMS):
                _, body = request_of("five-shot", problem["question"])
                print(json.dumps(dict(prompt=body["prompt"])), file=file)
        runs = [bench.rows("serve", [MODEL], "--prompts-file", prompts, "--output-len", MAX_TOKENS,
                           "--batch-size", AT_ONCE, "--spec-tokens", f"0,{BLOCK}", *more)
                for _ in range(RUNS)]
    rates = [statistics.median(row["requests_per_second"] for row in rows)
             for rows in zip(*runs, strict=True)]
    ratio = rates[1] / rates[0]
    print(f"{PROBLEMS} problems, {AT_ONCE} at a time: {rates[0]:,.0f} a second without drafts, "
          f"{rates[1]:,.0f} with DSpark's ({runs[0][1]['mean_acceptance_length']:.2f} tokens a step), "
          f"{ratio:.2f} times as many (goal: {SPEED_GOAL}); GPU idle "
          f"{runs[0][0]['gpu']['idle_share']:.2f} and {runs[0][1]['gpu']['idle_share']:.2f}", flush=True)
    return ratio >= SPEED_GOAL


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--outrider", default=ROOT / "build/cuda/outrider", type=pathlib.Path)
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated (default: all)")
    parser.add_argument("flags", nargs="*", metavar="-- FLAG ...", help="flags of the program")
    args = parser.parse_args()
    parts = args.parts.split(",")
    if not set(parts) <= set(PARTS):
        parser.error(f"--parts: some of {', '.join(PARTS)}")
    try:
        fine = [dict(texts=texts, problems=problems)[part](args.outrider, args.flags) for part in parts]
    except (ServerError, OSError, subprocess.TimeoutExpired) as error:
        print(f"v4_goals.py: {error}", file=sys.stderr)
        return 2
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
