"""Requests on their way to the engine, and what comes back, for LLM and AsyncLLM."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider import _core, outputs
from outrider.outputs import CompletionOutput, RequestOutput
from outrider.sampling_params import SamplingParams, to_json
from outrider.tokenizer import Tokenizer, chat_fields

_numbers = itertools.count()


def _is_integer(value: Any) -> bool:
    # An array of one number can be an index too.
    return hasattr(value, "__index__") and not hasattr(value, "__len__")


def is_token_ids(value: Any) -> bool:
    """Whether it is one prompt's token ids: ints, or an array of one dimension."""
    if isinstance(value, (str, Mapping)):
        return False
    if hasattr(value, "ndim"):
        return bool(value.ndim == 1)
    if isinstance(value, Sequence):
        return len(value) > 0 and all(_is_integer(element) for element in value)
    return False


def prompt_list(prompts: Any) -> tuple[list[Any], bool]:
    """The prompts, and whether there are several: a text, ids or a dictionary are one."""
    if isinstance(prompts, (str, Mapping)) or is_token_ids(prompts):
        return [prompts], False
    if isinstance(prompts, Iterable):
        return list(prompts), True
    raise TypeError(
        "prompts must be a str, token ids, a dict with 'prompt' or 'prompt_token_ids', or a "
        f"sequence of these, not {type(prompts).__name__}"
    )


def prompt_content(prompt: Any) -> Any:
    """The text or the token ids of a prompt."""
    if not isinstance(prompt, Mapping):
        return prompt
    unknown = set(prompt) - {"prompt", "prompt_token_ids"}
    if unknown:
        raise TypeError(f"a prompt's dict has 'prompt' or 'prompt_token_ids', not {unknown.pop()!r}")
    if prompt.get("prompt_token_ids") is not None:
        return prompt["prompt_token_ids"]
    if "prompt" not in prompt:
        raise TypeError("a prompt's dict needs 'prompt' or 'prompt_token_ids'")
    return prompt["prompt"]


def params_list(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    """One for each prompt."""
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise ValueError(f"there are {count} prompts and {len(params)} sampling_params")
    return list(params)


@dataclass
class Conversation:
    """A chat to be answered."""

    messages: Sequence[Mapping[str, Any]]
    fields: dict[str, Any]

    @staticmethod
    def make(
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        chat_template_kwargs: Mapping[str, Any] | None,
        extra_body: Mapping[str, Any] | None,
    ) -> Conversation:
        fields = chat_fields(
            messages, tools, add_generation_prompt, continue_final_message, chat_template_kwargs
        )
        return Conversation(messages, {**fields, **(extra_body or {})})


class Request:
    """One request in the engine, and its answers so far."""

    def __init__(
        self,
        engine: _core.Engine,
        events: _core.EventQueue,
        tokenizer: Tokenizer,
        number: int,
        what: Any,
        params: SamplingParams,
        *,
        whole: bool,
        answer: Any = None,
    ) -> None:
        body = params.to_body()
        prompt_text: str | None = None
        if isinstance(what, Conversation):
            count = body.pop("logprobs", None)
            if count is not None:
                body.update(logprobs=True, top_logprobs=count)
            body.update(what.fields)
            started = engine.submit(events, number, to_json(body), True, None, whole)
        else:
            content = prompt_content(what)
            prompt_text = content if isinstance(content, str) else None
            body["prompt"] = "-"
            if answer is None:
                started = engine.submit(events, number, to_json(body), False, content, whole)
            else:
                started = engine.score(events, number, to_json(body), content, answer)
        self._tokenizer = tokenizer
        self._wants_logprobs = params.logprobs is not None
        self._wants_prompt_logprobs = params.prompt_logprobs is not None
        self._unfinished = set(range(started.n))
        prompt_ids = started.prompts[0]
        if isinstance(what, Conversation):
            prompt_text = tokenizer.decode(prompt_ids)
        self.output = RequestOutput(
            request_id=str(next(_numbers)),
            prompt=prompt_text,
            prompt_token_ids=prompt_ids,
            outputs=[
                CompletionOutput(index, logprobs=[] if self._wants_logprobs else None)
                for index in range(started.n)
            ],
        )

    def add(self, event: _core.Event) -> None:
        """Takes an answer's news. OutriderError where the engine failed the request."""
        choice = self.output.outputs[event.choice]
        choice.text += event.text
        choice.token_ids += event.token_ids
        choice.num_draft_tokens += event.num_draft_tokens
        choice.num_accepted_tokens += event.num_accepted_tokens
        if choice.logprobs is not None:
            choice.logprobs += outputs.positions(event.logprobs, self._tokenizer)
        if self._wants_prompt_logprobs and event.choice == 0 and self.output.prompt_logprobs is None:
            scores = outputs.positions(event.prompt_logprobs, self._tokenizer)
            if scores or len(self.output.prompt_token_ids) == 1:
                self.output.prompt_logprobs = [None, *scores]
        if event.finish_reason is None:
            return
        self._unfinished.discard(event.choice)
        if event.finish_reason == "error":
            raise _core.UnavailableError(f"the request failed: {event.stop_reason}")
        choice.finish_reason = event.finish_reason
        choice.stop_reason = event.stop_reason
        choice.stats = outputs.request_stats(event.stats)
        choice.routed_experts = event.routed_experts
        self.output.finished = not self._unfinished
