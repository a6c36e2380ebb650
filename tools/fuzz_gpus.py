#!/usr/bin/env python3
"""Random requests on all GPUs of a host, as many as there is time for: outrider_exactness_fuzz for each
family of models, a process or more for each GPU, sums of what they compared.

A round's requests are served by eight random engines, four times each, and run alone once
(--engines 8 --servings 4): a request counts once for each serving, under another schedule. The first
difference ends everything; its line names the round, and the command printed begins with it.

  cmake --preset cuda -DOUTRIDER_BUILD_TESTS=ON && cmake --build build/cuda -j --target outrider_exactness_fuzz
  python3 tools/fuzz_gpus.py --seconds 600 --seed 71
  python3 tools/fuzz_gpus.py --seconds 120 --families v4 step --processes 2

Exit status 0: all equal; 1: a difference; 2: a process did not run to its end. Needs the Python standard library only.
With --device cpu everything runs on the processor.
"""
import argparse
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
FAMILIES = {  # flags, share of the time
    "v4": (("--v4", "1"), 5),
    "v3": ((), 2),
    "sparse": (("--sparse", "1"), 2),
    "step": (("--step", "1"), 2),
    "int4": (("--int4", "1"), 1),
    "hybrid": (("--hybrid", "1"), 1),
}
BY_DEFAULT = ("v4", "v3", "sparse", "step")
SPREAD = ("--engines", "8", "--servings", "4")
GRACE = 20  # seconds that a process may take for the serving that it is in
LAST_LINE = re.compile(r"(\d+) requests in (\d+) rounds equal \(seed \d+, \d+ s; (\d+) with grammars, "
                       r"(\d+) preemptions, (\d+) cached tokens, (\d+) that came back, (\d+) drafts accepted\)")
ALONE = re.compile(r"([\d.]+) s to make engines, ([\d.]+) s for (\d+) steps of them, ([\d.]+) s for (\d+) steps "
                   r"of (\d+) requests alone")


class Different(Exception):
    """What a process found."""


class DidNotRun(Exception):
    """Why a process came to no end."""


@dataclasses.dataclass
class Process:
    command: list
    running: subprocess.Popen
    output: object


def gpus_of_host():
    """Numbers for CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        return visible.split(",")
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    return [str(i) for i, line in enumerate(listed.splitlines()) if line.startswith("GPU ")]


def program_in(build, parser):
    """The fuzz; ends the tool if it is not built."""
    program = build.resolve() / "tests/engine/outrider_exactness_fuzz"
    if not os.access(program, os.X_OK):
        parser.error(f"{program}: no such program; build it or name its folder with --build")
    return program


def begin(args, flags, places, seconds, first_seed):
    processes = []
    for i, place in enumerate(places):
        command = [str(args.program), "--device", args.device, *flags, *SPREAD, "--seconds", str(seconds),
                   "--seed", str(first_seed + i)]
        output = tempfile.TemporaryFile("w+")
        environment = dict(os.environ, CUDA_VISIBLE_DEVICES=place) if args.device == "cuda" else None
        running = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=ROOT)
        processes.append(Process(command, running, output))
    return processes


def printed(process):
    process.output.seek(0)
    return process.output.read()


def check(process, status):
    """Throws if it ended otherwise than with all equal."""
    if status == 0:
        return
    text = printed(process)
    command = " ".join(process.command)
    found = re.search(r"DIFFERENT: round (\d+).*", text)
    if status == 1 and found:
        raise Different(f"{found[0]}\nbegin with it: {command} --round {found[1]}")
    end = "\n".join(text.splitlines()[-30:])
    raise DidNotRun(f"{command}: status {status}\n{end}")


def wait(processes, deadline):
    """Until all have ended well; ends them all at the first that has not."""
    try:
        left = list(processes)
        while left:
            for process in list(left):
                status = process.running.poll()
                if status is not None:
                    check(process, status)
                    left.remove(process)
            if left and time.monotonic() > deadline:
                raise DidNotRun(f"{' '.join(left[0].command)}: has not ended in time")
            time.sleep(0.05)
    finally:
        for process in processes:
            process.running.kill()
            process.running.wait()


def run_family(args, family, places, seconds, first_seed):
    """Runs it and prints its line; returns the requests."""
    start = time.monotonic()
    processes = begin(args, FAMILIES[family][0], places, seconds, first_seed)
    wait(processes, start + seconds + GRACE)
    sums = [0] * 7
    parts = [0.0] * 6
    for process in processes:
        text = printed(process)
        last, alone = LAST_LINE.search(text), ALONE.search(text)
        if not last or not alone:
            raise DidNotRun(f"{' '.join(process.command)}: no last line\n{text[-2000:]}")
        sums = [a + int(b) for a, b in zip(sums, last.groups())]
        parts = [a + float(b) for a, b in zip(parts, alone.groups())]
    requests, rounds, grammars, preemptions, cached, _, accepted = sums
    making, serving, steps, single, single_steps, single_requests = parts
    took = time.monotonic() - start
    print(f"{family}: {requests:,} requests equal, {requests / took:.0f} a second, of {single_requests:,.0f} different "
          f"ones in {rounds} rounds; {grammars:,} with grammars, {preemptions:,} preemptions, {cached:,} cached tokens, "
          f"{accepted:,} drafts accepted; seeds {first_seed} to {first_seed + len(places) - 1}, {took:.0f} s of "
          f"{len(places)} processes ({making:.0f} s engines made, {serving:.0f} s {steps:,.0f} steps, {single:.0f} s "
          f"{single_steps:,.0f} steps alone)", flush=True)
    return requests


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/cuda", metavar="FOLDER",
                        help="where the program is built (default: build/cuda)")
    parser.add_argument("--seconds", type=int, required=True, help="for all families together")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=BY_DEFAULT, metavar="FAMILY",
                        help=f"of {', '.join(FAMILIES)}, in this order (default: {' '.join(BY_DEFAULT)})")
    parser.add_argument("--seed", type=int, default=1, help="of the first process; another one for each run")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="for each GPU (default: 1)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args()
    args.program = program_in(args.build, parser)
    start = time.monotonic()
    total = 0
    try:
        places = (gpus_of_host() if args.device == "cuda" else [""]) * args.processes
        if not places:
            raise DidNotRun("nvidia-smi lists no GPU")
        for i, family in enumerate(args.families):
            shares = sum(FAMILIES[name][1] for name in args.families[i:])
            # What is left, less what the last serving takes.
            left = args.seconds - (time.monotonic() - start)
            seconds = max(1, int(left * FAMILIES[family][1] / shares - 2))
            total += run_family(args, family, places, seconds, args.seed + i * len(places))
    except Different as difference:
        print(difference, flush=True)
        return 1
    except (DidNotRun, OSError, subprocess.CalledProcessError) as error:
        print(f"fuzz_gpus.py: {error}", file=sys.stderr)
        return 2
    print(f"{total:,} requests equal, none different, {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
