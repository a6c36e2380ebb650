#!/usr/bin/env python3
"""Tests and times a model on several GPUs of one host beside one, in 13 minutes at most on two, 15 on
four, 17 on eight.

Runs these parts, each with a time limit of its own, and prints what each came to:
  tests     ranks with a GPU each, and what they exchange
  fuzz      random requests on the ranks against each of them alone: DeepSeek-V3, V4, V3.2, Step and
            hybrid models, with stalls on each GPU, and with a cache for each rank; none of a model, or
            fewer than --least-requests in all, are a fault
  shapes    random requests over the layers of published models, as tools/fuzz_shapes.py runs them
  exchange  microseconds of an exchange among 2, 4 and 8 ranks, over the GPUs' own memory and over NCCL,
            and what exchanges add to the products beside them
  times     GLM-4.7-Flash with random weights on 1, 2, 4 and 8 GPUs: a decode step of 1, 8, 32 and 128
            requests without drafts and with three, and prompts of 8 x 2048. Its 20 heads are divided
            among 2 and 4; on 8 GPUs requests are (--data-parallel-attention)
  large     models that one GPU does not hold, with heads and with requests divided: DeepSeek-V4-Flash
            whole, and DeepSeek-V3 cut to 16 layers, in their published formats, random weights
  killed    a server of which one rank stands still: seconds until its requests are told, /health
            answers 503 and the process has ended, and its exit status
What goes on several GPUs goes on all of --ranks, `exchange` and `times` on each of 2, 4, 8 up to it.
Exit status 0: all went well; 1: a test, the fuzz or the killed server found a fault; 2: something did
not run, or not in time.

  cmake --preset cuda -DOUTRIDER_BUILD_TESTS=ON && cmake --build build/cuda -j
  python3 tools/several_gpus.py --build build/cuda --ranks 4

Needs as many Hopper GPUs as ranks, and the Python standard library. Longer than most tools, as each part
needs what the others set up. With --device cpu ranks are threads of the processor and models tiny: that
checks this script, and times nothing.
"""
import argparse
import http.client
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import frozen_thread
import fuzz_shapes
import model_configs
from gpu_goals import BATCHES, BUNDLED, NO_DRAFTS, ROOT, THREE_TOKENS_A_STEP
from serve_process import Client, Server, ServerError

# Seconds of each part on two GPUs, 765 together.
PARTS = {"tests": 110, "fuzz": 75, "shapes": 140, "exchange": 30, "times": 185, "large": 200, "killed": 25}
FUZZ = (("DeepSeek-V3", 3, ()), ("DeepSeek-V4", 1, ("--v4", "1")),
        ("DeepSeek-V3.2 and GLM-5", 1, ("--sparse", "1")), ("Step-3.5", 1, ("--step", "1")),
        ("Kimi-Linear and Ling-3.0", 1, ("--hybrid", "1")),
        ("a cache for each rank", 1, ("--divided", "1")))  # models, shares of the time, arguments
FUZZ_START_SECONDS = 5  # of a run, beside its requests
LEAST_REQUESTS = 3000  # in the part's own time
SHAPE_PROCESSES = 4
SHAPES_TO_SPARE = 0.35  # of the part's time: what models take to start, and the last requests
# Of a step, of prompts: two GPUs beside one.
STEP_GOALS = {1: 0.95, 8: 0.75, 32: 0.65, 128: 0.62}
PROMPT_GOAL = 1.6
# What one GPU must read for a step of BATCHES requests at 4.3 TB/s, ms (gpu_goals.py); of that the
# latent cache of a request of 1,100 tokens, which every rank reads whole where heads are divided.
LIMITS = {0: dict(zip(BATCHES, (1.68, 6.2, 12.6, 15.4))), 3: dict(zip(BATCHES, (4.4, 13.0, 15.4, 17.9)))}
CACHE_LIMIT = 0.0139
READ_RATE = 4.3e12  # bytes a second
V3_LAYERS = 16  # 150 GB
MOST_STEP_ROWS = 16384  # that a GPU takes
DIVIDED = "--data-parallel-attention"


def numbers_up_to(ranks):
    """Of ranks, from two."""
    return [n for n in (2, 4, 8) if n <= ranks]


def seconds_of(part, ranks):
    """What runs on each of 2, 4 and 8 GPUs has time for each; `times` runs on one GPU, too."""
    numbers = len(numbers_up_to(ranks))
    return PARTS[part] * {"exchange": numbers, "times": (1 + numbers) / 2}.get(part, 1)


class Failed(Exception):
    """A program found a fault."""


class Late(Exception):
    """A part's time is over."""


class Deadline:
    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def left(self):
        left = self.end - time.monotonic()
        if left <= 0:
            raise Late
        return left


class Run:
    """What all parts share."""

    def __init__(self, args, directory):
        self.build, self.ranks, self.on_gpus = args.build, args.ranks, args.device == "cuda"
        self.device, self.directory = args.device, pathlib.Path(directory)
        self.least_requests = args.least_requests
        self.outrider = args.build / "outrider"
        self.deadline = None  # of the part that runs

    def program(self, program, *arguments):
        """Its output; throws Failed with its end if it fails, Late if it takes too long."""
        command = [str(program), *map(str, arguments)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT,
                                  timeout=self.deadline.left())
        except subprocess.TimeoutExpired:
            raise Late from None
        if done.returncode != 0:
            end = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
            raise Failed(f"{' '.join(command)}: status {done.returncode}\n{end}")
        return done.stdout

    def bench_rows(self, model, ranks, *flags):
        """Of `outrider bench serve`, by numbers of drafts."""
        output = self.program(self.outrider, "bench", "serve", *model, "--device", self.device,
                              *self.rank_flags(ranks), *flags, "--json", "-")
        return {row["spec_tokens"]: row for row in json.loads(output)["rows"]}

    def rank_flags(self, ranks):
        threads = () if self.on_gpus else ("--num-threads", max(2, ranks))
        return ("--tensor-parallel-size", ranks, *threads)

    def model(self, name, config):
        """A model with random weights, and the flags that it needs."""
        folder = self.directory / name
        if not folder.exists():
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return (folder, "--load-format", "dummy", "--tokenizer", BUNDLED)

    def small_config(self, **changes):
        """The bundled model's, with sizes that eight ranks can share."""
        config = json.loads((BUNDLED / "config.json").read_text(encoding="utf-8"))
        return config | {"intermediate_size": 1024} | changes

    def glm(self):
        return self.model("GLM-4.7-Flash",
                          model_configs.GLM47_FLASH if self.on_gpus else self.small_config())


def run_tests(run):
    if run.on_gpus:
        programs = [("tests/ops/cuda/peer_communicator_test", f"Gpus/*/{run.ranks}"),
                    ("tests/engine/cuda/gpu_ranks_test", f"Gpus/*/{run.ranks}")]
    else:
        programs = [("tests/parallel/parallel_test", "*"), ("tests/engine/engine_test", "*UpToEight")]
    for name, tests in programs:
        output = run.program(run.build / name, f"--gtest_filter={tests}")
        passed = re.search(r"\[  PASSED  \] (\d+) test", output)
        skipped = re.search(r"\[  SKIPPED \] (\d+) test", output)
        print(f"{pathlib.Path(name).name} {tests}: {passed[1] if passed else 0} passed, "
              f"{skipped[1] if skipped else 0} skipped", flush=True)


def run_fuzz(run):
    print(f"| random requests on {run.ranks} ranks, equal to each alone on one | |\n|---|---|")
    shares = sum(share for _, share, _ in FUZZ)
    seconds = run.deadline.left() - FUZZ_START_SECONDS * len(FUZZ)
    total = 0
    for models, share, arguments in FUZZ:
        output = run.program(run.build / "tests/engine/outrider_exactness_fuzz", "--device",
                             run.device, "--ranks", run.ranks, "--seconds",
                             max(1, int(seconds * share / shares)), "--engines", 4, "--servings", 4,
                             *arguments)
        requests = int(re.match(r"(\d+) requests", output.splitlines()[-1])[1])
        total += requests
        print(f"| {models} | {requests:,} |", flush=True)
        if requests == 0:
            raise Failed(f"fuzz of {models}: no model that {run.ranks} ranks can share")
    print(f"| all | {total:,} |", flush=True)
    if total < run.least_requests:
        raise Failed(f"fuzz: {total:,} requests, fewer than {run.least_requests:,} (--least-requests)")


def run_shapes(run):
    if not run.on_gpus:
        return print("(needs GPUs)", flush=True)
    seconds = (1 - SHAPES_TO_SPARE) * run.deadline.left() * SHAPE_PROCESSES / len(fuzz_shapes.BY_DEFAULT)
    print(run.program(sys.executable, ROOT / "tools/fuzz_shapes.py", "--build", run.build, "--ranks", run.ranks,
                      "--processes", SHAPE_PROCESSES, "--seconds", max(2, int(seconds))), flush=True)


def run_exchange(run):
    if not run.on_gpus:
        return print("(needs GPUs)", flush=True)
    for ranks in numbers_up_to(run.ranks):
        for carrier in ((), ("--nccl",)):
            try:
                print(run.program(run.build / "bench/rank_exchange_bench", "--ranks", ranks, *carrier),
                      flush=True)
            except Failed as failure:
                if not carrier:
                    raise
                print(failure, flush=True)  # NCCL is needed only where GPUs do not reach each other
    for ranks in numbers_up_to(run.ranks):
        print(run.program(run.build / "bench/rank_overlap_bench", "--ranks", ranks), flush=True)


def divides_heads(ranks):
    return model_configs.GLM47_FLASH["num_attention_heads"] % ranks == 0


def step_milliseconds(run, ranks, batch):
    """Of a decode step, by numbers of drafts: a run of many tokens less one of few, so that prompts
    and the start do not count."""
    many = {1: 272, 8: 144}.get(batch, 96)
    prompt, few, many = (1024, 16, many) if run.on_gpus else (32, 4, 12)
    flags = [*THREE_TOKENS_A_STEP, "--spec-tokens", "0,3", "--num-prompts", batch, "--batch-size",
             batch, "--input-len", prompt]
    if not divides_heads(ranks):
        flags.append(DIVIDED)
    short, long = (run.bench_rows(run.glm(), ranks, *flags, "--output-len", tokens)
                   for tokens in (few, many))
    return {k: 1e3 * (long[k]["seconds"] - short[k]["seconds"])
               / (long[k]["num_steps"] - short[k]["num_steps"]) for k in (0, 3)}


def limit_milliseconds(ranks, batch, k):
    """What a rank must read takes so long at 4.3 TB/s, without exchanges."""
    cache = CACHE_LIMIT * batch
    return (LIMITS[k][batch] - cache) / ranks + cache / (1 if divides_heads(ranks) else ranks)


def prompt_tokens_per_second(run, ranks):
    """Of 8 prompts of 2048 tokens: a run of nine less a run of one, because over HTTP the first prompt
    is in a step of its own."""
    length = 2048 if run.on_gpus else 64
    flags = [*NO_DRAFTS, "--input-len", length, "--output-len", 1, "--max-num-batched-tokens",
             8 * length]
    if not divides_heads(ranks):
        flags.append(DIVIDED)
    one, nine = (min(run.bench_rows(run.glm(), ranks, *flags, "--num-prompts", prompts, "--batch-size",
                                    prompts)[0]["seconds"] for _ in range(2)) for prompts in (1, 9))
    return 8 * length / (nine - one)


def run_times(run):
    numbers = [1, *numbers_up_to(run.ranks)]
    print("| GLM-4.7-Flash, random weights, ms a step (share of what a rank must read at 4.3 TB/s) | "
          + " | ".join("1 GPU" if n == 1 else f"{n} GPUs" for n in numbers)
          + " | " + " | ".join(f"{n} / 1" for n in numbers[1:]) + " | goal of 2 |\n"
          + "|---" * (2 * len(numbers) + 1) + "|")
    steps = {}
    for batch in BATCHES if run.on_gpus else BATCHES[:2]:
        for n in numbers:
            steps[n] = step_milliseconds(run, n, batch)
        for k in (0, 3):
            shown = [f"{steps[n][k]:.3g} ({limit_milliseconds(n, batch, k) / steps[n][k]:.2f})"
                     for n in numbers]
            ratios = [f"{steps[n][k] / steps[1][k]:.2f}" for n in numbers[1:]]
            print(f"| {batch} requests, k = {k} | {' | '.join(shown + ratios)} | {STEP_GOALS[batch]} |",
                  flush=True)
    tokens = [prompt_tokens_per_second(run, n) for n in numbers]
    print("| 8 prompts of 2048, tokens/s | " + " | ".join(f"{t:,.0f}" for t in tokens) + " | "
          + " | ".join(f"{t / tokens[0]:.2f}" for t in tokens[1:]) + f" | {PROMPT_GOAL} |", flush=True)


def large_models(run):
    if run.on_gpus:
        v3 = model_configs.V3 | {"num_hidden_layers": V3_LAYERS, "num_nextn_predict_layers": 0}
        return {"DeepSeek-V4-Flash": model_configs.V4_FLASH, f"DeepSeek-V3, {V3_LAYERS} layers": v3}
    v4 = json.loads((ROOT / "models/tiny-v4-dspark/mtp1/config.json").read_text(encoding="utf-8"))
    v4 |= {"o_groups": 8, "num_attention_heads": 8}
    del v4["quantization_config"], v4["expert_dtype"]
    return {"small V4": v4, "small V3": run.small_config(num_hidden_layers=3)}


def read_milliseconds(run, model, flags, requests, context):
    """What the first rank must read for a step of a row of each request takes so long at 4.3 TB/s: its
    weights, of routed experts those that rows have if they are chosen evenly, and the entries of all
    tokens, without those of windows. A processor is asked, which keeps the same codes and starts at once."""
    explained = json.loads(run.program(
        run.outrider, "explain", *model, "--device", "cpu", "--num-threads", run.ranks,
        "--tensor-parallel-size", run.ranks, *flags, "--json"))
    shapes, memory = explained["shapes"], explained["memory"]
    chosen = 1 - (1 - shapes["num_experts_per_tok"] / shapes["n_routed_experts"]) ** requests
    of_group = {"routed experts": chosen, "embedding": 0}
    weights = sum(of_group.get(group["name"], 1) * sum(group["bytes_by_type"].values())
                  for group in memory["weight_groups"])
    entries = sum(group["bytes_per_token"] for group in memory["kv_groups"] if group["window"] == 0)
    return 1e3 * (weights + entries * context * requests / memory["cache_ranks"]) / READ_RATE


def run_large(run):
    print(f"| {run.ranks} ranks, 32 requests of 1024 tokens, no drafts | ms a step (share of what a rank must read "
          "at 4.3 TB/s) | tokens/s | first token, ms |\n|---|---|---|---|")
    prompt, tokens = (1024, 65) if run.on_gpus else (32, 5)
    for name, config in large_models(run).items():
        model = run.model(name.replace(" ", "-"), config)
        for divided, flags in (("heads divided", ()), ("requests divided", (DIVIDED,))):
            row = run.bench_rows(model, run.ranks, *flags, *NO_DRAFTS, "--num-prompts", 32, "--batch-size",
                                 32, "--input-len", prompt, "--output-len", tokens,
                                 "--max-num-batched-tokens", min(32 * prompt, MOST_STEP_ROWS))[0]
            step = row["mean_milliseconds_per_token"]
            limit = read_milliseconds(run, model, (*flags, *NO_DRAFTS), 32, prompt + tokens // 2)
            print(f"| {name}, {divided} | {step:.3g} ({limit / step:.2g}) | {row['tokens_per_second']:,.0f} | "
                  f"{row['mean_first_token_milliseconds']:,.0f} |", flush=True)


def ask(address, path):
    """The status of GET; None: nobody answers."""
    try:
        return Client(address, timeout=1).call("GET", path)[0]
    except (OSError, http.client.HTTPException):
        return None


def run_killed(run):
    model, *flags = run.glm()
    flags += ["--device", run.device, *run.rank_flags(run.ranks), *NO_DRAFTS]
    if not divides_heads(run.ranks):
        flags.append(DIVIDED)
    last = f"rank {run.ranks - 1}"
    with Server(run.outrider, model, [*map(str, flags)], start_timeout=run.deadline.left()) as server:
        events = Client(server.address).events("/v1/completions", {
            "prompt": "a", "max_tokens": 4000, "ignore_eos": True, "stream": True})
        next(events)
        with frozen_thread.FrozenThread(frozen_thread.thread_named(server.pid, last)) as frozen:
            start = time.monotonic()
            rest = json.dumps(list(events))
            told = time.monotonic() - start
            health = unhealthy = None
            while not frozen.take_end():
                run.deadline.left()
                if health != 503:
                    health = ask(server.address, "/health")
                    unhealthy = time.monotonic() - start
                time.sleep(0.02)
            ended = time.monotonic() - start
        server.wait_for_end(run.deadline.left())
        status = server.status
    print(f"{last} of {run.ranks} stands still: requests told after {told:.1f} s, /health {health} after "
          f"{unhealthy or ended:.1f} s, ended after {ended:.1f} s with status {status}", flush=True)
    if f"{last} of {run.ranks} has ended" not in rest or health != 503 or status != 1 or ended > 10:
        raise Failed(f"expected: requests told which rank has ended, 503, status 1, all within 10 s\n"
                     f"{rest[-500:]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/cuda", metavar="FOLDER",
                        help="where tests, bench and program are built (default: build/cuda)")
    parser.add_argument("--ranks", type=int, choices=(2, 4, 8), default=2, help="GPUs (default: 2)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda",
                        help="cpu: threads of the processor, tiny models (default: cuda)")
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part only")
    parser.add_argument("--part-seconds", type=float, metavar="S",
                        help="the limit of each part, in place of its own")
    parser.add_argument("--least-requests", type=int, metavar="N",
                        help="that `fuzz` compares, all models together: fewer are a fault (default: "
                             f"{LEAST_REQUESTS} on GPUs with its own time, else 0; two GPUs compared about "
                             "8,500)")
    args = parser.parse_args()
    if args.least_requests is None:
        full = args.device == "cuda" and not args.part_seconds
        args.least_requests = LEAST_REQUESTS if full else 0
    args.build = args.build.resolve()
    if not os.access(args.build / "outrider", os.X_OK):
        parser.error(f"{args.build / 'outrider'}: no such program; build it or name its folder with "
                     "--build")
    runs = dict(tests=run_tests, fuzz=run_fuzz, shapes=run_shapes, exchange=run_exchange, times=run_times,
                large=run_large, killed=run_killed)
    if args.device == "cpu":
        print("Threads of the processor, tiny models in the place of those named: no time tells anything.\n")
    status = 0
    with tempfile.TemporaryDirectory() as directory:
        run = Run(args, directory)
        for part in args.only or PARTS:
            begin, limit = time.monotonic(), args.part_seconds or seconds_of(part, args.ranks)
            run.deadline = Deadline(limit)
            print(f"## {part}\n", flush=True)
            try:
                runs[part](run)
            except Failed as failure:
                print(failure, flush=True)
                status = max(status, 1)
            except Late:
                print(f"(not all of it within {limit:.0f} s)", flush=True)
                status = 2
            except PermissionError as error:
                print(f"(this system lets no process stop a thread of its child: {error})", flush=True)
                status = 2
            except (ServerError, OSError, subprocess.TimeoutExpired) as error:
                print(f"several_gpus.py: {error}", file=sys.stderr)
                status = 2
            print(f"\n({part}: {time.monotonic() - begin:.0f} s)\n", flush=True)
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("several_gpus.py: interrupted", file=sys.stderr)
        sys.exit(2)
