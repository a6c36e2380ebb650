#!/usr/bin/env python3
"""Measures steps of Kimi-K2.5's text model, cut to 6 layers, on one GPU, and prints them.

Random weights in the published format: INT4 experts, all else bfloat16 (55 GB of weights). The
roof is the time in which an H100 reads at 3.07 TB/s what a step reads if the router spreads rows
evenly: of experts those that have rows. Then the same with an EAGLE-3 drafter of the model's shape,
three drafts and 2.5 tokens a step. Takes five minutes. Exit status 0: measured; 2: a run failed.

  python3 tools/kimi_goals.py --outrider build/release/outrider

Needs the Python standard library only. bench/results/hopper_4bit.md has results.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import fuzz_corpus
from gpu_goals import BATCHES, BUNDLED, NO_DRAFTS, ROOT, Bench, step_milliseconds
from serve_process import ServerError

LAYERS = 6
ROOFS = (1.91, 4.0, 9.3, 16.3)   # ms a step of so many rows at context 1024
SHARES = (0.6, 0.65, 0.7, 0.7)   # of the roof that are the goal
DRAFTS = 3
# Of the drafter's config; the rest is the target's text model's.
DRAFTER = dict(architectures=["Eagle3DeepseekV2ForCausalLM"], model_type="kimi_k2",
               num_hidden_layers=1, draft_vocab_size=32000, intermediate_size=18432,
               num_nextn_predict_layers=0, quantization_config=None,
               eagle_config=dict(eagle_aux_hidden_state_layer_ids=[2, 3, 5],
                                 use_aux_hidden_state=True))


class KimiBench(Bench):
    """Runs `outrider bench` with the cut model."""

    def __init__(self, outrider, directory):
        self.outrider, self.directory = outrider, pathlib.Path(directory)
        config = json.loads(fuzz_corpus.read(fuzz_corpus.archive_of("model_config_fuzz"))["kimik25.json"])
        text = config["text_config"]
        text["num_hidden_layers"] = LAYERS
        self.write("kimi", config)
        dense_keys = {key: value for key, value in text.items()
                      if "expert" not in key and "topk" not in key and not key.startswith("n_")}
        self.write("drafter", {**dense_keys, **DRAFTER})

    def write(self, name, config):
        (self.directory / name).mkdir()
        (self.directory / name / "config.json").write_text(json.dumps(config), encoding="utf-8")

    def shape(self, shape):
        return [self.directory / shape, "--load-format", "dummy", "--tokenizer", BUNDLED,
                "--max-model-len", "4096"]


def measure(bench, batches):
    drafter = ["--spec-tokens", str(DRAFTS), "--speculative-config", json.dumps(
        dict(method="eagle3", model=str(bench.directory / "drafter"),
             num_speculative_tokens=DRAFTS, rejection_sample_method="synthetic",
             synthetic_acceptance_length=2.5))]
    print("| requests | ms a step | roof | of it | goal | GPU idle | ms a step of 4 rows, with its "
          "drafts |\n|---|---|---|---|---|---|---|")
    for batch, roof, share in zip(BATCHES, ROOFS, SHARES, strict=True):
        if batch not in batches:
            continue
        ms, idle = step_milliseconds(bench, "kimi", batch, NO_DRAFTS)
        with_drafts, _ = step_milliseconds(bench, "kimi", batch, drafter)
        print(f"| {batch} | {ms:.2f} | {roof} | {roof / ms:.2f} | {share} | {100 * idle:.1f} % | "
              f"{with_drafts:.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outrider", default=ROOT / "build/release/outrider", metavar="FILE",
                        help="the program (default: build/release/outrider)")
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)), metavar="LIST",
                        help="numbers of requests (default: %(default)s)")
    args = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as directory:
            measure(KimiBench(args.outrider, directory), list(map(int, args.batches.split(","))))
    except (ServerError, OSError, subprocess.TimeoutExpired) as error:
        print(f"kimi_goals.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
