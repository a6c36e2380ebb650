"""How a request's tokens are drawn: the sampling fields of the HTTP API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any


@dataclass
class StructuredOutputsParams:
    """What the text must be; one of them is given."""

    json: str | dict[str, Any] | None = None
    """A JSON schema."""
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    """In EBNF."""
    json_object: bool | None = None
    """Any JSON object."""
    structural_tag: str | dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The members that are set, as the HTTP API has them."""
        return {
            field.name: value
            for field in fields(self)
            if (value := getattr(self, field.name)) is not None
        }


@dataclass
class SamplingParams:
    """The sampling fields of the HTTP API (docs/http-api.md), with its names and defaults.

    None means what a request without the field means: the model's generation_config.json, else
    OpenAI's default. Values are checked when a request is made: InvalidArgumentError names the
    field that is wrong.
    """

    n: int | None = None
    temperature: float | None = None
    """0 takes the likeliest token."""
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = 16
    """None: to the end of the context."""
    min_tokens: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    bad_words: Sequence[str] | None = None
    allowed_token_ids: Sequence[int] | None = None
    logprobs: int | None = None
    """Alternatives to give beside each token's log-probability; 0: the token's own alone."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens."""
    truncate_prompt_tokens: int | None = None
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None = None
    priority: int | None = None
    """Lower runs first."""
    cache_salt: str | None = None
    num_speculative_tokens: int | None = None
    """Most drafts of a step, at most the engine's number."""
    return_routed_experts: bool | None = None
    """False: the answer does not tell its tokens' experts, though the engine does."""
    routed_experts_prompt_start: int | None = None
    """The first of the prompt's tokens whose experts are told; those before it may be cached."""

    def to_body(self) -> dict[str, Any]:
        """The fields of a body of /v1/completions."""
        body: dict[str, Any] = {
            field.name: value
            for field in fields(self)
            if (value := getattr(self, field.name)) is not None
        }
        if isinstance(self.structured_outputs, StructuredOutputsParams):
            body["structured_outputs"] = self.structured_outputs.to_dict()
        if self.logit_bias is not None:
            body["logit_bias"] = {str(int(token)): bias for token, bias in self.logit_bias.items()}
        for name in ("stop_token_ids", "allowed_token_ids"):
            if name in body:
                body[name] = [int(token) for token in body[name]]
        if (drafts := body.pop("num_speculative_tokens", None)) is not None:
            body["speculation"] = {"num_speculative_tokens": drafts}
        return body


def to_json(body: Mapping[str, Any]) -> str:
    """As json.dumps, with sequences of other kinds as arrays."""

    def convert(value: Any) -> Any:
        if hasattr(value, "tolist"):  # numpy's numbers and arrays
            return value.tolist()
        if isinstance(value, Mapping):
            return dict(value)
        if isinstance(value, Sequence):
            return list(value)
        raise TypeError(f"{type(value).__name__} has no form in JSON")

    return json.dumps(body, default=convert)
