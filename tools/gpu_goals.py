#!/usr/bin/env python3
"""Measures the rows of the table of one GPU in bench/results/one_gpu.md but the last, and prints them.

Shapes of DeepSeek-V2-Lite and GLM-4.7-Flash run with dummy weights, so nothing is downloaded; the
bundled model answers problems. `outrider bench serve --device cuda` times problems, steps and
prompts, and `outrider serve` the start. The last row is of `bench/network_step_bench --relaxed`.
Takes two minutes. Goals are for an H200. The limit is the time of what a step reads at 4.3 TB/s:
weights, of experts those that have rows, and cache. Exit status 0: measured; 2: a run failed.

  python3 tools/gpu_goals.py --outrider build/release/outrider

Needs the Python standard library only. bench/results/hopper_network_step.md has more.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from evaluate import EVAL_SEED, MAX_TOKENS, request_of
import fuzz_corpus
from serve_process import Server, ServerError
import textgen

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUNDLED = ROOT / "models/tiny-v3-mtp3"
SHAPES = {"V2-Lite": "deepseekv2lite", "GLM-4.7-Flash": "glm47flash"}
BATCHES = (1, 8, 32, 128)
RUN_SECONDS = 600  # the most that a run of the program may take
NO_DRAFTS = ["--spec-tokens", "0"]
THREE_TOKENS_A_STEP = ["--spec-tokens", "3", "--speculative-config", json.dumps(
    dict(method="mtp", num_speculative_tokens=3, rejection_sample_method="synthetic",
         synthetic_acceptance_length=3.0))]


class Bench:
    """Runs `outrider bench`; models of `SHAPES` lie in `directory`."""

    def __init__(self, outrider, directory):
        self.outrider, self.directory = outrider, pathlib.Path(directory)
        configs = fuzz_corpus.read(fuzz_corpus.archive_of("model_config_fuzz"))
        for shape, config in SHAPES.items():
            (self.directory / shape).mkdir()
            (self.directory / shape / "config.json").write_bytes(configs[f"{config}.json"])

    def shape(self, shape):
        """A model and the flags that a shape without weights needs."""
        return [self.directory / shape, "--load-format", "dummy", "--tokenizer", BUNDLED]

    def rows(self, kind, model, *flags):
        command = [self.outrider, "bench", kind, *model, "--device", "cuda", "--json", "-", *flags]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                              timeout=RUN_SECONDS)
        if done.returncode != 0:
            raise ServerError(f"{' '.join(map(str, command))}:\n{done.stderr.strip()}")
        return json.loads(done.stdout)["rows"]

    def row(self, *arguments):
        [row] = self.rows(*arguments)
        return row


def step_milliseconds(bench, shape, batch, flags):
    """(milliseconds of a decode step, share of it in which the GPU was idle): a run of many tokens
    less one of few, so that prompts and the start do not count."""
    few, many = (bench.row("serve", bench.shape(shape), *flags, "--num-prompts", batch,
                           "--batch-size", batch, "--input-len", 1024, "--output-len", length)
                 for length in (16, 272 if batch == 1 else 144))
    steps = many["num_steps"] - few["num_steps"]
    idle = many["gpu"]["idle_seconds"] - few["gpu"]["idle_seconds"]
    seconds = many["seconds"] - few["seconds"]
    return 1e3 * seconds / steps, idle / seconds


def problems_per_second(bench):
    """Medians of three runs: ([problems/s without drafts and with three], their idle shares, tokens
    a verify step)."""
    prompts = bench.directory / "problems.jsonl"
    with prompts.open("w", encoding="utf-8") as file:
        for problem in textgen.eval_set(EVAL_SEED, 1319):
            _, body = request_of("five-shot", problem["question"])
            print(json.dumps(dict(prompt=body["prompt"])), file=file)
    runs = [bench.rows("serve", [BUNDLED], "--prompts-file", prompts, "--output-len", MAX_TOKENS,
                       "--batch-size", 128, "--spec-tokens", "0,3") for _ in range(3)]
    by_drafts = list(zip(*runs, strict=True))
    return ([statistics.median(row["requests_per_second"] for row in rows) for rows in by_drafts],
            [statistics.median(row["gpu"]["idle_share"] for row in rows) for rows in by_drafts],
            runs[0][1]["mean_acceptance_length"])


def prompt_tokens_per_second(bench, shape):
    """Of 8 prompts of 2048 tokens: a run of nine less a run of one, because over HTTP the first
    prompt is in a step of its own. The better of two runs."""
    one, nine = (min(bench.row("serve", bench.shape(shape), *NO_DRAFTS, "--num-prompts", prompts,
                               "--batch-size", prompts, "--input-len", 2048, "--output-len", 1,
                               "--max-num-batched-tokens", 8 * 2048)["seconds"] for _ in range(2))
                 for prompts in (1, 9))
    return 8 * 2048 / (nine - one)


def seconds_to_ready(bench, shape):
    """From the command to the first answer of /health."""
    model, *flags = bench.shape(shape)
    begin = time.monotonic()
    with Server(bench.outrider, model, [*map(str, flags), "--device", "cuda"]):
        return time.monotonic() - begin


def print_row(what, measured, goals, form, at_least=False, limit=""):
    """Prints a line of the table."""
    one_goal = len(set(goals)) == 1
    missed = []  # as the figures are shown; the goals, or where all have the same, the figures
    for value, goal in zip(measured, goals, strict=True):
        value = float(form(value).replace(",", ""))
        if (value < goal) if at_least else (value > goal):
            missed.append(f"{value if one_goal else goal:,g}")
    verdict = ("" if not missed else " (missed)" if len(missed) == len(goals) else
               f" (missed: {', '.join(missed)})")
    shown = goals[:1] if one_goal else goals
    print(f"| {what} | {'; '.join(map(form, measured))} | {'≥' if at_least else '≤'} "
          f"{'; '.join(f'{goal:,g}' for goal in shown)}{verdict} | {limit} |", flush=True)


def measure(bench):
    print("| one GPU | Outrider | goal | limit |\n|---|---|---|---|")
    problems, problems_idle, acceptance = problems_per_second(bench)
    print_row("1,319 five-shot problems, bundled model, 128 at a time: problems/s without drafts; with "
              f"3 ({acceptance:.2f} tokens a step)", problems, (1200, 2000),
              lambda value: f"{value:,.0f}", at_least=True)
    idle = []
    for what, shape, flags, goals, limit in (
            ("V2-Lite", "V2-Lite", NO_DRAFTS, (1.65, 5.3, 8.5, 9.7), "1.15; 4.2; 7.2; 8.2"),
            ("GLM-4.7-Flash", "GLM-4.7-Flash", NO_DRAFTS, (2.4, 7.8, 14.8, 18.1),
             "1.68; 6.2; 12.6; 15.4"),
            ("GLM-4.7-Flash, k = 3, 3.0 tokens a step", "GLM-4.7-Flash", THREE_TOKENS_A_STEP,
             (6.5, 16, 18.5, 22), "4.4; 13.0; 15.4; 17.9")):
        steps = [step_milliseconds(bench, shape, batch, flags) for batch in BATCHES]
        print_row(f"{what}: ms a step of 1; 8; 32; 128 requests", [ms for ms, _ in steps], goals,
                  lambda value: f"{value:.3g}", limit=limit)
        idle.append(steps[-1][1])
    print_row("8 prompts of 2048: tokens/s of V2-Lite; GLM-4.7-Flash",
              [prompt_tokens_per_second(bench, shape) for shape in SHAPES], (100_000, 60_000),
              lambda value: f"{value:,.0f}", at_least=True)
    print_row("start to ready with random weights: V2-Lite; GLM-4.7-Flash with its module, s",
              [seconds_to_ready(bench, shape) for shape in SHAPES], (10, 10),
              lambda value: f"{value:.1f}")
    print_row("GPU idle between steps, 128 requests: the bundled model's two, the shapes' three, %",
              [100 * share for share in (*problems_idle, *idle)], (3,) * 5,
              lambda value: f"{value:.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outrider", default=ROOT / "build/release/outrider", metavar="FILE",
                        help="the program (default: build/release/outrider)")
    args = parser.parse_args()
    if not os.access(args.outrider, os.X_OK):
        parser.error(f"{args.outrider}: no such program; build it or name it with --outrider")
    try:
        with tempfile.TemporaryDirectory() as directory:
            measure(Bench(args.outrider, directory))
    except (ServerError, OSError, subprocess.TimeoutExpired) as error:
        print(f"gpu_goals.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("gpu_goals.py: interrupted", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
