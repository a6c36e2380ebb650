"""The bundled Ling-3.0 (models/tiny-ling) through the program: log-probabilities, greedy answers and
what its MTP module drafts are those of tests/golden/tiny-ling, in float32; of held-out problems at
least 0.95 are answered rightly, with the same texts without drafts, with the module's and with
prompt lookup; a tensor of another size is refused. Needs the Python standard library only.

  trained_hybrid_test.py PROGRAM
"""
import array
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from serve_process import Client, Server  # noqa: E402

MODEL = ROOT / "models" / "tiny-ling"
GOLDEN = ROOT / "tests" / "golden" / "tiny-ling"
TOLERANCE = 1e-3
EXACT = ["--dtype", "float32", "--num-threads", "1"]
LOOKUP = json.dumps({"method": "ngram"})
MIN_ACCURACY = "0.95"
MIN_ACCEPTANCE_LENGTH = "2.2"  # of 4 at most; the training report's probabilities give 2.4


def read_tensors(path):
    """{name: (numbers, shape)} of a safetensors file of int32 and float32."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    tensors = {}
    for name, entry in json.loads(raw[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        kind = {"I32": "i", "F32": "f"}[entry["dtype"]]
        tensors[name] = (array.array(kind, raw[begin:end]), entry["shape"])
    if reads := os.environ.get("OUTRIDER_GOLDEN_READS"):  # for tools/trim_goldens.py
        with open(reads, "a", encoding="utf-8") as file:
            file.writelines(f"{path} {name}\n" for name in tensors)
    return tensors


def largest_difference(program, ids, best, logprobs, following, options):
    """Of the log-probabilities that the program tells, to the golden rows, which are the last: of each
    the likeliest tokens, and what the next token of the prompt has."""
    output = subprocess.run(
        [program, "generate", str(MODEL), "--prompt-token-ids", ",".join(map(str, ids)),
         "--max-tokens", "1", "--temperature", "0", "--ignore-eos", "--prompt-logprobs", "5",
         "--logprobs", "5", *EXACT, *options], check=True, capture_output=True, text=True)
    answer = json.loads(output.stdout)
    positions = answer["prompt_logprobs"] + answer["logprobs"]
    assert len(positions) == len(ids), len(positions)
    values, (rows, width) = logprobs
    worst = 0
    for row in range(rows):
        position = positions[len(ids) - rows + row]
        of_row = slice(row * width, (row + 1) * width)
        known = dict(zip(best[0][of_row], values[of_row]))
        if row + 1 < rows:
            known[ids[len(ids) - rows + row + 1]] = following[0][row]
        for one in [position, *position["top"]]:  # a KeyError: no likely token in the golden file
            worst = max(worst, abs(one["logprob"] - known[one["token_id"]]))
    return worst


def check_logprobs(program):
    tensors = read_tensors(GOLDEN / "golden.safetensors")
    cases, wrong = sum(name.endswith(".ids") for name in tensors), 0
    assert cases >= 3, cases
    for i in range(cases):
        ids = list(tensors[f"case{i}.ids"][0])
        for options in (["--kv-cache-form", "latent"],
                        ["--kv-cache-form", "heads", "--max-num-batched-tokens", "23"]):
            golden = (tensors[f"case{i}.{part}"] for part in ("best", "logprobs", "next"))
            difference = largest_difference(program, ids, *golden, options)
            print(f"case {i}, {' '.join(options)}: {difference:.1e}", flush=True)
            wrong += not difference < TOLERANCE
    return wrong


def check_greedy(program):
    """Answers that are not the golden ones, and steps whose drafts are not."""
    golden = json.loads((GOLDEN / "golden_greedy.json").read_text())
    flags = [*EXACT, "--spec-tokens", "3", "--speculative-config.adaptive", "false"]
    wrong = compared = 0
    with Server(program, MODEL, flags) as server:
        client = Client(server.address)
        for number, case in enumerate(golden):
            reply = client.post("/v1/completions", {
                "prompt": case["prompt_ids"], "max_tokens": len(case["greedy_ids"]),
                "temperature": 0, "ignore_eos": True,
                "per_request_spec_decode_metrics": "detailed"})
            answered = []
            for step in reply["choices"][0]["speculative_steps"]:
                want = case["draft_ids"][len(answered) - 1] if answered else []
                drafts = [draft["id"] for draft in step["drafts"]]
                for draft, expected in zip(drafts, want):
                    if expected < 0:  # behind a near tie
                        break
                    compared += 1
                    if draft != expected:
                        print(f"answer {number}, after {len(answered)} tokens: {drafts}, not {want}")
                        wrong += 1
                        break
                answered += [token["id"] for token in step["tokens"]]
            if answered != case["greedy_ids"]:
                print(f"answer {number}: {answered}, not {case['greedy_ids']}")
                wrong += 1
    print(f"{len(golden)} answers and {compared} drafts compared", flush=True)
    return wrong + (compared < 500)


def check_accuracy(program):
    def evaluate(*arguments):
        command = [sys.executable, ROOT / "tools" / "evaluate.py", "--outrider", program, "--model",
                   MODEL, "--concurrency", "16", "--min-accuracy", MIN_ACCURACY, *arguments]
        return subprocess.run([str(part) for part in command]).returncode

    module = evaluate("--problems", "100", "--spec-tokens", "0,3", "--min-acceptance-length",
                      MIN_ACCEPTANCE_LENGTH)
    lookup = evaluate("--problems", "40", "--spec-tokens", "0,4", "--min-acceptance-length", "0",
                      "--", "--speculative-config", LOOKUP)
    return (module != 0) + (lookup != 0)


def check_sizes(program):
    """Decays of a head for those of its channels: other engines spread them over the channels."""
    raw = (MODEL / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header, data, name = {}, bytearray(), "model.layers.1.attention.dt_bias"
    tensors = {key: entry for key, entry in json.loads(raw[8:8 + size]).items() if key != "__metadata__"}
    for key, entry in sorted(tensors.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        if key == name:
            assert entry["shape"] == [256], entry
            entry["shape"], end = [2], begin + 2 * 4
        header[key] = {**entry, "data_offsets": [len(data), len(data) + end - begin]}
        data += raw[begin:end]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with tempfile.TemporaryDirectory() as folder:
        for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            shutil.copy(MODEL / file, folder)
        pathlib.Path(folder, "model.safetensors").write_bytes(
            len(text).to_bytes(8, "little") + text + data)
        result = subprocess.run([program, "generate", folder, "--prompt", "x", "--max-tokens", "1"],
                                capture_output=True, text=True)
    print(result.stderr.strip(), flush=True)
    return not (result.returncode != 0 and name in result.stderr and "[256]" in result.stderr)


def main():
    program = sys.argv[1]
    checks = (check_sizes, check_logprobs, check_greedy, check_accuracy)
    return 1 if sum(check(program) for check in checks) else 0


if __name__ == "__main__":
    sys.exit(main())
