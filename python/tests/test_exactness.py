"""Random mixes of requests through LLM, all together with everything on, equal those of the program,
one after the other without drafts: tokens, and bits of log-probabilities."""

from __future__ import annotations

import json
import random
import re
import struct
import subprocess
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from outrider import LLM, SamplingParams
from conftest import MODEL, program

NUM_REQUESTS = 60


@pytest.fixture(scope="module")
def plain_server() -> Iterator[str]:
    """The program's server: one request at a time, no drafts, no prefix cache."""
    command = [program(), "serve", str(MODEL), "--port", "0", "--num-threads", "1"]
    command += ["--spec-tokens", "0", "--max-num-seqs", "1", "--no-enable-prefix-caching"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if found := re.search(r"ready: .* on (http://[^ ]*)/v1 ", line):
                    break
            assert found is not None
            yield found[1]
        finally:
            process.terminate()
            process.stderr.read()


def random_request(rng: random.Random, vocab_size: int, shared: list[int]) -> tuple[list[int], dict[str, Any]]:
    """Token ids, and sampling fields under the names of the HTTP API."""
    prompt = shared[: rng.choice([0, 40, 130, len(shared)])]
    prompt = prompt + [rng.randrange(3, vocab_size) for _ in range(rng.randint(1, 60))]
    fields: dict[str, Any] = {
        "max_tokens": rng.randint(1, 40),
        "seed": rng.randrange(2**63),
        "temperature": rng.choice([0, 0.6, 1, 1.5]),
        "logprobs": rng.randint(0, 4),
        "ignore_eos": rng.random() < 0.5,
    }
    choices: dict[str, Any] = {
        "top_k": rng.randint(1, 50),
        "top_p": rng.uniform(0.3, 1),
        "min_p": rng.uniform(0, 0.3),
        "repetition_penalty": rng.uniform(0.8, 1.5),
        "presence_penalty": rng.uniform(-1, 1),
        "frequency_penalty": rng.uniform(-1, 1),
        "min_tokens": rng.randint(0, fields["max_tokens"]),
        "stop_token_ids": [rng.randrange(vocab_size) for _ in range(5)],
        "logit_bias": {rng.randrange(vocab_size): rng.uniform(-50, 50) for _ in range(4)},
        "allowed_token_ids": [rng.randrange(vocab_size) for _ in range(40)],
        "prompt_logprobs": rng.randint(0, 2),
        "structured_outputs": {"regex": "[a-z ]{3,30}"},
        "priority": rng.randint(-2, 2),
    }
    for name, value in choices.items():
        if rng.random() < 0.2:
            fields[name] = value
    return prompt, fields


def of_program(url: str, prompt: list[int], fields: dict[str, Any]) -> dict[str, Any]:
    body = {"token_ids": prompt, "sampling_params": {k: v for k, v in fields.items() if k != "priority"}}
    body = json.loads(json.dumps(body))  # keys of logit_bias are texts
    request = urllib.request.Request(
        url + "/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        choice: dict[str, Any] = json.load(answer)["choices"][0]
        return choice


def float_bits(value: float) -> bytes:
    return struct.pack("f", max(value, -9999.0))  # JSON has no infinity


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        (1, {"speculative_config": {"num_speculative_tokens": 3}}),
        (2, {"block_size": 16, "max_num_batched_tokens": 96, "max_num_seqs": 7}),
        (3, {"spec_method": "ngram", "kv_cache_memory_bytes": "8MiB", "max_model_len": 512}),
    ],
)
def test_mixes_equal_those_of_the_program(
    plain_server: str, seed: int, options: dict[str, Any]
) -> None:
    rng = random.Random(seed)
    with LLM(MODEL, num_threads=1, **options) as llm:
        vocab_size = llm.get_tokenizer().vocab_size
        shared = [rng.randrange(3, vocab_size) for _ in range(200)]
        mix = [random_request(rng, vocab_size, shared) for _ in range(NUM_REQUESTS)]
        answers = llm.generate(
            [prompt for prompt, _ in mix], [SamplingParams(**fields) for _, fields in mix]
        )
        drafted = llm.get_metrics()["speculation"].num_accepted_tokens
    assert drafted > 0
    for (prompt, fields), answer in zip(mix, answers):
        told = of_program(plain_server, prompt, fields)
        output = answer.outputs[0]
        assert output.token_ids == told["token_ids"], fields
        assert output.finish_reason == told["finish_reason"]
        assert output.logprobs is not None
        entries = told["logprobs"]["content"]
        assert len(output.logprobs) == len(entries)
        for token, position, entry in zip(output.token_ids, output.logprobs, entries):
            assert float_bits(position[token].logprob) == float_bits(entry["logprob"])
            for other in entry["top_logprobs"]:
                assert float_bits(position[other["token_id"]].logprob) == float_bits(other["logprob"])
