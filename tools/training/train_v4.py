"""Trains a small DeepSeek-V4 with one MTP module (v4_model.py) in two steps, on one GPU.

  python3 train_v4.py --tokenizer ../../models/tiny-v3-mtp3/tokenizer.json --corpus IDS.npy --out PLAIN --seq 512 --batch 64 --seconds 130
      in bfloat16; the dimensions are arguments (--help)
  python3 train_v4.py --fp8 --weights PLAIN --corpus IDS.npy --out DIR --seq 1024 --batch 24 --lr 1e-3 --seconds 70
      on with rounded weights, in the published format (FP8 linear layers, FP4 experts); measures, writes golden files
  python3 train_v4.py --fp8 --weights DIR --corpus DRILLS.npy --drills 0.35 --results 6 --o_lora 64 --out MORE --graph --lr 1.5e-3 --seconds 250
      on with a third of the documents drills, six times the weight on digits of results, and outputs of a higher rank
  python3 train_v4.py --weights DIR --out DIR
      measures and writes the golden files again
  python3 train_v4.py --weights DIR --out DIR --check
      compares logits with transformers, in float32
"""
import argparse
import dataclasses
import os
import tempfile

import torch
from tokenizers import Tokenizer

from common import DEVICE, arguments, corpus, dump, fit_language, list_files, loss_terms, measure, result_weights, write_configs
from v4_goldens import golden_cases, greedy_goldens, trunk_goldens
from v4_model import Dimensions, Model, compiled_blocks, config_dict, dimensions_of
from v4_published import (export, load, published_config, read_folder, round_all, rounding, same_weights, write_file, write_index)

TRUNK_FILES = ["model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"]
MTP_FILE = "model-00003-of-00003.safetensors"


def write_model(m, tok, a):
    """Exports the weights as they stand (the trunk in two files, the MTP module in one) with config and tokenizer."""
    files = {f: {} for f in TRUNK_FILES + [MTP_FILE]}
    for k, v in m.published_tensors().items():
        files[MTP_FILE if k.startswith("mtp.") else TRUNK_FILES[k.startswith(("layers.2.", "layers.3.", "head."))]][k] = v
    write_index(a.out, *export(a.out, files))
    tok.save(os.path.join(a.out, "tokenizer.json"))
    write_configs(a, published_config(config_dict(m.d)))


def write_plain(folder, m):
    """The float32 weights under the published names, to train on from, and for transformers to read."""
    entries = {k: ("F32", v.detach().float().cpu()) if v.is_floating_point() else ("I64", v.cpu()) for k, v in m.published_tensors().items()}
    write_file(os.path.join(folder, "model.safetensors"), entries)
    write_index(folder, {k: "model.safetensors" for k in entries}, sum(t.numel() * t.element_size() for _, t in entries.values()))


@torch.no_grad()
def compare_with_transformers(m, tok):
    """Prints the largest logit difference per golden case."""
    from transformers import DeepseekV4ForCausalLM
    with tempfile.TemporaryDirectory() as folder:
        write_plain(folder, m)
        dump(argparse.Namespace(out=folder), "config.json", config_dict(m.d))
        hf = DeepseekV4ForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").to(DEVICE).eval()
    for c in golden_cases(m, tok, 1):
        x = torch.tensor([c], device=DEVICE)
        mine, ref = m.lm_head(m.trunk(x)[0]), hf(x, use_cache=False).logits
        print(f"{len(c)} tokens: max |mine - transformers| {(mine - ref).abs().max().item():.2e} of {ref.abs().max().item():.1f}", flush=True)


def parse_arguments():
    ap = argparse.ArgumentParser()
    for field in dataclasses.fields(Dimensions):
        ap.add_argument("--" + field.name, type=int, help=f"without --weights; {field.default} if not given")
    ap.add_argument("--candidates", type=int, default=10, help="contexts to choose each long golden case from")
    ap.add_argument("--results", type=float, default=1.0, metavar="WEIGHT", help="of digits of computed results in the loss, others have 1")
    ap.add_argument("--check", action="store_true", help="only compare the weights with transformers")
    a = arguments(ap)
    chosen = {f.name: getattr(a, f.name) for f in dataclasses.fields(Dimensions) if getattr(a, f.name) is not None}
    if a.weights and set(chosen) - {"o_lora"}:
        ap.error(f"the dimensions are those of --weights, but for a larger --o_lora; leave out {', '.join('--' + n for n in chosen)}")
    if not a.weights and (a.fp8 or a.check or not a.tokenizer):
        ap.error("without --weights, --tokenizer is needed, and --fp8 and --check are of no use")
    a.dimensions = dataclasses.replace(dimensions_of(a.weights), **chosen) if a.weights else Dimensions(**chosen)
    if a.weights:
        a.tokenizer = os.path.join(a.weights, "tokenizer.json")
    return a


def main():
    a = parse_arguments()
    os.makedirs(a.out, exist_ok=True)
    torch.manual_seed(0)
    m = Model(a.dimensions).to(DEVICE)
    if a.weights:
        load(m.published_tensors(), read_folder(a.weights), a.dimensions.o_groups)
    tok = Tokenizer.from_file(a.tokenizer)
    if a.check:
        torch.set_float32_matmul_precision("highest")
        return compare_with_transformers(m, tok)
    if a.fp8 or not a.weights:
        _, data = corpus(a)
        print(f"tokens {data.numel() / 1e6:.0f}M vocab {tok.get_vocab_size()} params {sum(p.numel() for p in m.parameters()) / 1e6:.2f}M", flush=True)
        weights = result_weights(tok, a.results) if a.results != 1 else None
        run, round_weights = lambda s: loss_terms(m, s, weights), rounding(m) if a.fp8 else None
        if a.no_compile or a.graph:
            fit_language(m, a, data, run, round_weights)
        else:
            with compiled_blocks():
                fit_language(m, a, data, run, round_weights)
    if not a.weights:
        write_plain(a.out, m)
        tok.save(os.path.join(a.out, "tokenizer.json"))
        write_configs(a, config_dict(m.d))
        return list_files(a)
    round_all(m)
    write_model(m, tok, a)
    same_weights(m.published_tensors(), read_folder(a.out))
    if a.train_only:
        return list_files(a)
    m.eval()
    torch.set_float32_matmul_precision("highest")
    gaps = trunk_goldens(m, golden_cases(m, tok, a.candidates), a.out)
    print("indexer gaps", gaps, flush=True)
    greedy_goldens(m, tok, a)
    torch.set_float32_matmul_precision("high")
    report, _, _ = measure(m, tok, a)
    dump(a, "training_report.json", report | dict(indexer_selection_gap=gaps), indent=1)
    list_files(a)


if __name__ == "__main__":
    main()
