#!/usr/bin/env python3
"""Random requests over the layers of published models, on one rank and on several: outrider_exactness_fuzz
with each config of tools/model_configs.py, cut to a few layers and experts. Hidden sizes, heads, latents,
inner columns and formats are as published, since what a rank gets of them depends on them; weights are
random. Requests together, with drafts, chunks, preemption and prefix hits, must equal each alone on one
rank, bit for bit.

  cmake --preset cuda -DOUTRIDER_BUILD_TESTS=ON && cmake --build build/cuda -j --target outrider_exactness_fuzz
  python3 tools/fuzz_shapes.py --ranks 1 4 8 --seconds 30 --processes 4
  python3 tools/fuzz_shapes.py --models GLM-5 "DeepSeek-V4-Flash" --ranks 8 --seconds 60

Ranks are spread over the GPUs that there are; several share one where these are fewer. With more than one
rank half of the time has heads divided, where the ranks can share them, and half requests
(--data-parallel-attention). Exit status 0: all equal; 1: a difference; 2: a run did not end, or compared
nothing. Needs the Python standard library only.
"""
import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile

from fuzz_gpus import ALONE, LAST_LINE, ROOT, program_in
from model_configs import CONFIGS

BY_DEFAULT = ("DeepSeek-V2-Lite", "DeepSeek-V3, R1", "DeepSeek-V3.2", "DeepSeek-V4-Flash", "DeepSeek-V4-Pro",
              "Kimi-K2.5", "GLM-4.7-Flash", "GLM-4.7-Flash in FP8", "GLM-5", "Step-3.5-Flash", "Kimi-Linear-48B",
              "Ling-3.0-flash", "Ling-3.0-flash in FP8", "Ling-3.0-flash in INT4", "Ling-3.0-flash in FP4")
VOCABULARY = 16384
EXPERTS = 32  # four in each of eight groups
INDEX_TOPK = 64  # of contexts up to 400
GRACE = 120  # seconds that a run may take for a model's start and the serving that it is in


def cut(config):
    """The config with few layers, of all kinds that it has, and few experts."""
    if "text_config" in config:
        return config | {"text_config": cut(config["text_config"])}
    of_one_kind = not any(key in config for key in ("compress_ratios", "linear_attn_config", "layer_group_size",
                                                    "layer_types"))
    few = dict(config, vocab_size=VOCABULARY, num_hidden_layers=2 if of_one_kind else 4, first_k_dense_replace=1)
    for key, value in (("n_routed_experts", EXPERTS), ("num_experts", EXPERTS), ("moe_num_experts", EXPERTS),
                       ("index_topk", INDEX_TOPK), ("layer_group_size", 2)):
        if key in config:
            few[key] = value
    if "compress_ratios" in config:
        few |= {"compress_ratios": [config["compress_ratios"][0], 4, 128, 4, 0], "num_hash_layers": 1}
    if "linear_attn_config" in config:
        few["linear_attn_config"] = config["linear_attn_config"] | {"kda_layers": [1, 2, 3], "full_attn_layers": [4]}
    if "layer_types" in config:  # a dense layer of either kind, two of experts, and the modules
        layers, kept = config["num_hidden_layers"], [0, 1]
        kept += [layers - 2, layers - 1, *range(layers, len(config["layer_types"]))]
        for key, value in config.items():
            if isinstance(value, list) and len(value) == len(config["layer_types"]):
                few[key] = [value[i] for i in kept]
        few["moe_layers_enum"] = "2,3"
    return few


def heads_of(config):
    return config.get("text_config", config)["num_attention_heads"]


def forms(config, ranks):
    """The flags of what is divided among ranks, one for each run."""
    if ranks == 1:
        return [()]
    heads = [()] if heads_of(config) % ranks == 0 else []
    return [*heads, ("--divided", "1")]


def run(args, directory, name, ranks, flags, seconds, seed):
    """Requests that were equal, and seconds in which engines were made, and served; throws
    subprocess.CalledProcessError or TimeoutExpired."""
    command = [args.program, "--device", args.device, "--model", directory / name, "--ranks", ranks, *flags,
               "--fp8-cache", int(args.fp8_cache), "--engines", 4, "--servings", 16, "--seconds", seconds,
               "--seed", seed]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=ROOT, timeout=seconds + GRACE,
                          check=True)
    making, serving = ALONE.search(done.stdout).groups()[:2]
    return int(LAST_LINE.search(done.stdout)[1]), float(making), float(serving)


def report(future, name, what):
    """Prints a run's line; its exit status and requests."""
    try:
        requests, making, serving = future.result()
    except subprocess.CalledProcessError as error:
        end = "\n".join((error.stdout + error.stderr).splitlines()[-20:])
        print(f"{name}, {what}: status {error.returncode}: {' '.join(error.cmd)}\n{end}", flush=True)
        return (1 if error.returncode == 1 else 2), 0
    except subprocess.TimeoutExpired as error:
        print(f"{name}, {what}: has not ended after {error.timeout:.0f} s: {' '.join(error.cmd)}", flush=True)
        return 2, 0
    print(f"{name}, {what}: {requests:,} requests equal ({making:.0f} s engines made, {serving:.0f} s served)",
          flush=True)
    return (0 if requests > 0 else 2), requests


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/cuda", metavar="FOLDER",
                        help="where the program is built (default: build/cuda)")
    parser.add_argument("--models", nargs="+", choices=CONFIGS, default=BY_DEFAULT, metavar="NAME",
                        help=f"of {'; '.join(CONFIGS)} (default: {'; '.join(BY_DEFAULT)})")
    parser.add_argument("--ranks", type=int, nargs="+", choices=(1, 2, 4, 8), default=[1], metavar="N",
                        help="numbers of ranks, of 1, 2, 4, 8 (default: 1)")
    parser.add_argument("--seconds", type=int, default=30, help="for each model on each number of ranks (default: 30)")
    parser.add_argument("--seed", type=int, default=1, help="of the first run; each next one has another")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="runs at once (default: 1)")
    parser.add_argument("--fp8-cache", action="store_true", help="over KV caches in FP8")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args()
    args.program = program_in(args.build, parser)
    status = total = 0
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(args.processes) as pool:
        runs = []
        for name in args.models:
            directory = pathlib.Path(folder, name)
            directory.mkdir()
            (directory / "config.json").write_text(json.dumps(cut(CONFIGS[name])), encoding="utf-8")
            for ranks in args.ranks:
                divisions = forms(CONFIGS[name], ranks)
                for flags in divisions:
                    what = f"{ranks} ranks, {'requests' if flags else 'heads'} divided" if ranks > 1 else "1 rank"
                    future = pool.submit(run, args, pathlib.Path(folder), name, ranks, flags,
                                         max(1, args.seconds // len(divisions)), args.seed + len(runs))
                    runs.append((future, name, what))
        for future in runs:
            ended, requests = report(*future)
            status, total = max(status, ended), total + requests
    print(f"{total:,} requests equal in {len(runs)} runs", flush=True)
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
