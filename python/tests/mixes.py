"""Random mixes: an engine's options, and requests that run in it together."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from conftest import ROOT

V3 = ROOT / "models/tiny-v3-mtp3"
V4 = ROOT / "models/tiny-v4-dspark"
EAGLE3 = ROOT / "models/tiny-v3-eagle3"

NAMES = ["Ada", "Ben", "Cleo", "Tariq", "Vera", "Noa"]
THINGS = ["apples", "stamps", "books", "pens"]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": {"enum": ["Oslo", "Lima", "Cairo"]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
STRUCTURES: list[dict[str, Any]] = [
    {"json": SCHEMA},
    {"json_object": True},
    {"regex": r"[0-9]{1,3} [a-z]{2,8}( and [a-z]+)?"},
    {"choice": ["yes", "no", "no, never", " apples", " 12 apples"]},
    {"grammar": 'root ::= name " has " [0-9]+ "."\nname ::= "Ada" | "Ben"'},
]


@dataclass
class Asked:
    """One request: what is asked, and sampling fields under the names of the HTTP API."""

    what: str | list[int] | list[dict[str, str]]
    """A text, token ids, or a conversation."""
    fields: dict[str, Any]

    @property
    def is_chat(self) -> bool:
        return isinstance(self.what, list) and isinstance(self.what[0], dict)


@dataclass
class Mix:
    model: Any
    options: dict[str, Any]
    requests: list[Asked]

    @property
    def num_drafts(self) -> int | None:
        """Where the options fix it."""
        speculation = self.options.get("speculative_config", {})
        if speculation.get("adaptive"):
            return None
        number: int | None = self.options.get("spec_tokens", speculation.get("num_speculative_tokens"))
        return number


def _sentence(rng: random.Random) -> str:
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    a, b = rng.randint(2, 60), rng.randint(2, 40)
    return rng.choice(
        [
            f"{name} has {a} {thing} and buys {b} more. How many {thing} does {name} have now?",
            f"{name} packs {a} boxes with {b} {thing} in each.",
            f"{name} is {a} years old and works as a baker in Oslo.",
            f"Ünïcödé 🙂 {name}: «{thing}»\n",
        ]
    )


def _text(rng: random.Random, shared: str) -> str:
    """Often with a beginning that other requests have too."""
    text = shared if rng.random() < 0.3 else ""
    text += " ".join(_sentence(rng) for _ in range(rng.randint(1, 4)))
    return text[: rng.randint(1, len(text))] if rng.random() < 0.3 else text


def _ids(rng: random.Random, vocab_size: int) -> list[int]:
    """A pattern that repeats: drafts are then sometimes right, sometimes wrong."""
    period = rng.randint(2, 12)
    ids: list[int] = []
    for position in range(rng.choice([1, 2, 5, 30, 60, 250])):
        repeated = position >= period and rng.random() < 0.9
        ids.append(ids[position - period] if repeated else rng.randrange(6, vocab_size))
    return ids


def _fields(rng: random.Random, vocab_size: int) -> dict[str, Any]:
    max_tokens = rng.randint(1, 40)
    fields: dict[str, Any] = {
        "max_tokens": max_tokens,
        "seed": rng.randrange(2**62),
        "temperature": rng.choice([0, 0, 0.6, 1, 1.5]),
        "ignore_eos": rng.random() < 0.4,
    }
    tokens = [rng.randrange(vocab_size) for _ in range(40)]
    choices: dict[str, Any] = {
        "n": rng.randint(2, 4),
        "logprobs": rng.randint(0, 4),
        "prompt_logprobs": rng.randint(0, 2),
        "top_k": rng.randint(1, 50),
        "top_p": rng.uniform(0.3, 1),
        "min_p": rng.uniform(0, 0.3),
        "repetition_penalty": rng.uniform(0.8, 1.5),
        "presence_penalty": rng.uniform(-1, 1),
        "frequency_penalty": rng.uniform(-1, 1),
        "min_tokens": rng.randint(0, max_tokens),
        "stop": rng.sample([" has", ".", "a", "\n", "1", " apples", "####", "e h"], rng.randint(1, 3)),
        "include_stop_str_in_output": True,
        "stop_token_ids": tokens[:5],
        "logit_bias": {str(token): rng.uniform(-30, 30) for token in tokens[:4]},
        "bad_words": rng.sample(["Ada", "has", "apples", "1", "12", "more"], 2),
        "allowed_token_ids": tokens,
        "skip_special_tokens": False,
        "truncate_prompt_tokens": rng.randint(1, 40),
        "structured_outputs": rng.choice(STRUCTURES),
        "priority": rng.randint(-2, 2),
        "cache_salt": rng.choice("ab"),
        "num_speculative_tokens": rng.randint(0, 1),
    }
    for name, value in choices.items():
        if rng.random() < (0.5 if name == "logprobs" else 0.15):
            fields[name] = value
    if "allowed_token_ids" in fields:  # the grammar may need others
        fields.pop("structured_outputs", None)
    return fields


def _options(rng: random.Random, model: Any) -> dict[str, Any]:
    speculation: list[dict[str, Any]] = [
        {},
        {"spec_tokens": 0},
        {"spec_tokens": 1},
        {"speculative_config": {"num_speculative_tokens": 2}},
        {"speculative_config": {"num_speculative_tokens": 3}},
        {"speculative_config": {"num_speculative_tokens": 3, "adaptive": True}},
        {"spec_method": "ngram"},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
    ]
    if model == V3:
        speculation.append({"speculative_config": {"method": "eagle3", "model": str(EAGLE3)}})
    options: dict[str, Any] = {"num_threads": rng.randint(1, 2), **rng.choice(speculation)}
    choices: dict[str, Any] = {
        "max_num_batched_tokens": rng.choice([64, 96, 200]),
        "max_num_seqs": rng.choice([1, 5, 12]),
        "enable_prefix_caching": False,
        "max_model_len": 512,
    }
    if model == V3:
        # So little memory that requests are preempted, and ranks.
        choices["kv_cache_memory_bytes"] = "10MiB"
        choices["block_size"] = rng.choice([8, 16, 32])
        choices["tensor_parallel_size"] = 2
    for name, value in choices.items():
        if rng.random() < 0.3:
            options[name] = value
    if options.get("tensor_parallel_size") == 2:
        options["num_threads"] = 2
        if rng.random() < 0.5:
            options["data_parallel_attention"] = True
    if "kv_cache_memory_bytes" in options:
        options["max_model_len"] = 512
    return options


def random_mix(number: int, *, size: int) -> Mix:
    """The mix of a number: the same whenever it is asked for."""
    rng = random.Random(number)
    model = V4 if rng.random() < 0.2 else V3
    options = _options(rng, model)
    vocab_size = 1500  # of ids that all of the models know
    shared = " ".join(_sentence(rng) for _ in range(12))
    requests = []
    for _ in range(size):
        what: Any
        kind = rng.random()
        if kind < 0.4:
            what = _text(rng, shared)
        elif kind < 0.7:
            what = _ids(rng, vocab_size)
        else:
            what = [{"role": "user", "content": _text(rng, "")}]
        fields = _fields(rng, vocab_size)
        if options.get("spec_tokens") == 0:
            fields.pop("num_speculative_tokens", None)
        requests.append(Asked(what, fields))
    return Mix(model, options, requests)
