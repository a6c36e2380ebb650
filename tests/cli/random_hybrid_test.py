"""Random small Kimi-Linear and Ling-3.0 checkpoints, written by tools/random_hybrids.py and computed
by tools/hybrid_reference.py, through the program in float32: the greedy answer is the same, and the
log-probabilities of the tokens of prompt and answer and of the likeliest ones differ by less than
1e-3, for both forms of the cache, in chunks, with and without drafts. What MTP modules draft are
the reference's drafts. Needs numpy.

  random_hybrid_test.py --outrider PROGRAM [--count N] [--seed N]
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from serve_process import Client, Server  # noqa: E402

WRITER = ROOT / "tools" / "random_hybrids.py"
TOKENIZER = ["--tokenizer", str(ROOT / "models" / "tiny-v3-mtp3")]
TOLERANCE = 1e-3
NGRAM = json.dumps({"method": "ngram", "num_speculative_tokens": 4})
RUNS = (["--kv-cache-form", "latent", "--max-num-batched-tokens", "512"],
        ["--kv-cache-form", "heads", "--max-num-batched-tokens", "23",
         "--speculative-config", NGRAM])


def largest_difference(program, directory, options):
    """Of a log-probability, over prompt and answer; infinity for another answer."""
    expected = json.loads((directory / "prompt.json").read_text())
    output = subprocess.run(
        [program, "generate", str(directory), *TOKENIZER, "--prompt-token-ids",
         ",".join(map(str, expected["ids"])), "--max-tokens", str(len(expected["answer"])),
         "--temperature", "0", "--ignore-eos", "--dtype", "float32", "--num-threads", "1",
         "--prompt-logprobs", "5", "--logprobs", "5", *options],
        check=True, capture_output=True, text=True)
    answer = json.loads(output.stdout)
    if answer["token_ids"] != expected["answer"]:
        return float("inf")
    positions = answer["prompt_logprobs"] + answer["logprobs"]
    assert len(positions) == len(expected["logprobs"]), len(positions)
    worst = 0
    for i, entry in enumerate(positions):
        for token, logprob in tokens_of(entry):
            worst = max(worst, abs(logprob - expected["logprobs"][i][token]))
    return worst


def tokens_of(entry):
    """(token, log-probability) of all that a position tells."""
    found = []
    for one in [entry, *entry["top"]]:
        found.append((one["token_id"], one["logprob"]))
    return found


def wrong_drafts(program, directory):
    """Steps whose drafts are not the reference's, and how many drafts were compared."""
    expected = json.loads((directory / "prompt.json").read_text())
    config = json.loads((directory / "config.json").read_text())
    if not config["num_nextn_predict_layers"]:
        return [], 0
    flags = [*TOKENIZER, "--dtype", "float32", "--num-threads", "1", "--spec-tokens", "3",
             "--speculative-config.adaptive", "false"]
    with Server(program, directory, flags) as server:
        answer = Client(server.address).post("/v1/completions", {
            "prompt": expected["ids"], "max_tokens": len(expected["answer"]), "temperature": 0,
            "ignore_eos": True, "per_request_spec_decode_metrics": "detailed"})
    wrong, compared, answered = [], 0, 0
    for step in answer["choices"][0]["speculative_steps"]:
        drafts = [draft["id"] for draft in step["drafts"]]
        want = expected["drafts"][answered - 1] if answered else []
        # Near the answer's end fewer are drafted; the reference ends at a near tie.
        shorter = min(len(drafts), len(want))
        compared += shorter
        if drafts[:shorter] != want[:shorter]:
            wrong.append((answered, drafts, want))
        answered += len(step["tokens"])
    assert answered == len(expected["answer"]), answered
    return wrong, compared


def refuses_wrong_sizes(program, directory):
    """Whether a decay bias for each head, where one for each channel is needed, is refused by
    name."""
    raw = (directory / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8:8 + size]), raw[8 + size:]
    name = next(name for name in header if name.endswith("dt_bias"))
    begin, end = header[name]["data_offsets"]
    header[name]["shape"], removed = [2], end - begin - 8
    header[name]["data_offsets"] = [begin, begin + 8]
    for other, entry in header.items():
        if other != name and entry["data_offsets"][0] >= end:
            entry["data_offsets"] = [offset - removed for offset in entry["data_offsets"]]
    text = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + data[:begin + 8] + data[end:])
    output = subprocess.run([program, "generate", str(directory), *TOKENIZER, "--prompt-token-ids",
                             "2,3"], capture_output=True, text=True)
    return output.returncode != 0 and f"{name} is [2], not [" in output.stderr


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--outrider", required=True)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    status = compared = 0
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        subprocess.run([sys.executable, WRITER, name, "--count", str(args.count),
                        "--seed", str(args.seed)], check=True)
        for i in range(args.count):
            differences = [largest_difference(args.outrider, root / str(i), run) for run in RUNS]
            print(f"{i}: " + ", ".join(f"{d:.1e}" for d in differences))
            wrong, count = wrong_drafts(args.outrider, root / str(i))
            compared += count
            for answered, drafts, want in wrong:
                print(f"  after {answered} tokens {drafts} are drafted, not {want}")
            if max(differences) >= TOLERANCE or wrong:
                print((root / str(i) / "config.json").read_text())
                status = 1
        if not refuses_wrong_sizes(args.outrider, root / "0"):
            print("a decay bias of another size is not refused")
            status = 1
    print(f"{compared} drafts compared")
    return status if compared > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
