"""What requests give, with vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outrider import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.tokenizer import Tokenizer


@dataclass(frozen=True)
class Logprob:
    """Of one token at one position."""

    logprob: float
    """Natural logarithm of the probability, a float32."""
    rank: int | None = None
    """In the order of likelihood, from 1."""
    decoded_token: str | None = None


PositionLogprobs = dict[int, Logprob]
"""By token: the one that stands there first, then the likeliest."""


@dataclass(frozen=True)
class Speculation:
    """What became of drafts. One draft is one verify step that had draft tokens."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    mean_acceptance_length: float = 1.0
    """Tokens per verify step."""


@dataclass(frozen=True)
class RequestStats:
    """Times are seconds from the request's submission."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    num_preemptions: int = 0
    queue_seconds: float = 0.0
    first_token_seconds: float = 0.0
    total_seconds: float = 0.0
    speculation: Speculation = field(default_factory=Speculation)


@dataclass
class CompletionOutput:
    """One answer."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    """"stop", "length" or "abort"; None while it goes on."""
    stop_reason: int | str | None = None
    """The token or text that ended it; None for the model's own end."""
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    """Drafts of its tokens that were right."""
    stats: RequestStats | None = None
    """Once it has finished."""
    routed_experts: Any = None
    """With the option enable_return_routed_experts, once it has finished: the experts of the tokens of
    prompt and answer but the last in every layer, int16 [tokens, layers, k], for numpy.asarray and
    what takes DLPack.
    """

    @property
    def cumulative_logprob(self) -> float | None:
        """The sum of the tokens' log-probabilities; None where none were asked for."""
        if self.logprobs is None:
            return None
        return sum(
            position[token].logprob
            for token, position in zip(self.token_ids, self.logprobs, strict=True)
        )

    def finished(self) -> bool:
        return self.finish_reason is not None

    def token_ids_array(self) -> Any:
        """The tokens as int32, for numpy.asarray and what takes DLPack."""
        return _core.int32_array(self.token_ids)

    def logprobs_array(self) -> Any:
        """The tokens' own log-probabilities as float32, for numpy.asarray and what takes DLPack."""
        if self.logprobs is None:
            raise ValueError("no log-probabilities were asked for: set SamplingParams.logprobs")
        return _core.float32_array(
            [
                position[token].logprob
                for token, position in zip(self.token_ids, self.logprobs, strict=True)
            ]
        )


@dataclass
class RequestOutput:
    """A prompt and its answers."""

    request_id: str
    prompt: str | None
    """As it was given; of a conversation, as the chat template wrote it; None for token ids."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    finished: bool = False

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that the prefix cache had."""
        stats = self.outputs[0].stats
        return 0 if stats is None else stats.cached_tokens


def positions(raw: Sequence[Any], tokenizer: Tokenizer) -> list[PositionLogprobs]:
    """The module's positions as dictionaries."""
    result: list[PositionLogprobs] = []
    for token, logprob, rank, top in raw:
        position = {token: Logprob(logprob, rank, tokenizer.token_text(token))}
        for index, (other, other_logprob) in enumerate(top):
            if other not in position:
                position[other] = Logprob(other_logprob, index + 1, tokenizer.token_text(other))
        result.append(position)
    return result


def request_stats(raw: dict[str, Any]) -> RequestStats:
    return RequestStats(**{**raw, "speculation": Speculation(**raw["speculation"])})
