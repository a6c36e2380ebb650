"""LLM: an engine in this process, asked for whole answers."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from outrider import _core, _logging
from outrider._options import option_texts
from outrider._requests import Conversation, Request, params_list, prompt_list
from outrider.outputs import RequestOutput, Speculation
from outrider.sampling_params import SamplingParams
from outrider.tokenizer import Tokenizer

# How long a wait for the engine lasts before Python looks at its signals.
_WAIT_SECONDS = 0.2

_running: weakref.WeakSet[LLM] = weakref.WeakSet()


def _progress_bar(total: int, unit: str, shown: bool) -> Any:
    """tqdm's, where it is installed and standard error is a terminal; else None."""
    if not shown:
        return None
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm(total=total, unit=unit, disable=None, dynamic_ncols=True)


class LLM:
    """A model in this process.

    Keyword arguments are the options of `outrider serve` that are about the engine, with underscores
    (docs/configuration.md): dtype, quantization, kv_cache_dtype, max_model_len, max_num_seqs,
    gpu_memory_utilization, device, speculative_config, seed, ... An unknown one is a TypeError.
    Errors are OutriderErrors with the engine's words.
    """

    def __init__(self, model: str | os.PathLike[str], *, use_tqdm: bool = True, **options: Any) -> None:
        texts = option_texts("LLM", {"model": model, **options}, with_server=False)
        bar = None

        def progress(done: int, total: int) -> None:
            nonlocal bar
            if bar is None:
                bar = _progress_bar(total, "B", use_tqdm)
            if bar is not None:
                bar.update(done - bar.n)

        try:
            self._engine = _core.Engine(texts, progress)
        finally:
            if bar is not None:
                bar.close()
            _logging.drain()
        self._owner = os.getpid()
        self._tokenizer = Tokenizer(self._engine)
        self._open = True
        _running.add(self)

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """Ends the engine and frees its memory. Calls that wait for it end with an error."""
        if self._open and os.getpid() == self._owner:
            self._open = False
            self._engine.stop()
            _logging.drain()

    @property
    def max_model_len(self) -> int:
        """Prompt and answer together, in tokens."""
        return self._engine.max_model_len

    @property
    def num_speculative_tokens(self) -> int:
        """Most drafts of a step; 0 without speculation."""
        return self._engine.num_speculative_tokens

    def get_tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """With what the model's generation_config.json says."""
        return SamplingParams(**self._engine.sampling_defaults)

    def get_metrics(self) -> dict[str, Any]:
        """The engine's counters and gauges by name; `speculation` is a Speculation. They count all
        that was answered before the call, which waits for the step that runs.
        """
        counters = self._engine.counters()
        return {**counters, "speculation": Speculation(**counters["speculation"])}

    def reset_prefix_cache(self) -> bool:
        """No later request reuses what earlier ones have cached. True."""
        self._engine.reset_prefix_cache()
        return True

    def generate(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Continues each prompt: a text, token ids (a sequence, an array of int32 or int64), or a
        dict with "prompt" or "prompt_token_ids"; one of these, or several. The answers are in the
        order of the prompts. Ctrl-C ends the requests and raises KeyboardInterrupt.
        """
        wanted, _ = prompt_list(prompts)
        return self._run(wanted, params_list(sampling_params, len(wanted)), use_tqdm)

    def chat(
        self,
        messages: Sequence[Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        extra_body: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation (a list of messages) or several (a list of such lists), through
        the model's chat template. `extra_body` has further fields of /v1/chat/completions, such as
        tool_choice. The text is what the model wrote, reasoning and tool calls as it spells them.
        """
        several = len(messages) > 0 and not isinstance(messages[0], Mapping)
        conversations = [
            Conversation.make(
                one,
                tools,
                add_generation_prompt,
                continue_final_message,
                chat_template_kwargs,
                extra_body,
            )
            for one in (messages if several else [messages])
        ]
        return self._run(conversations, params_list(sampling_params, len(conversations)), use_tqdm)

    def score(
        self, prompts: Any, answers: Any, *, logprobs: int = 0, use_tqdm: bool = False
    ) -> list[RequestOutput]:
        """The log-probabilities of given answers (texts or token ids; one for each prompt), as if
        the model had written them: bit for bit those that generation gives for the same tokens.
        `logprobs`: alternatives beside each.
        """
        wanted, _ = prompt_list(prompts)
        given, _ = prompt_list(answers)
        if len(wanted) != len(given):
            raise ValueError(f"there are {len(wanted)} prompts and {len(given)} answers")
        params = SamplingParams(temperature=0, logprobs=logprobs)
        return self._run(wanted, [params] * len(wanted), use_tqdm, answers=given)

    def _run(
        self,
        prompts: Sequence[Any],
        params: Sequence[SamplingParams],
        use_tqdm: bool,
        answers: Sequence[Any] | None = None,
    ) -> list[RequestOutput]:
        events = _core.EventQueue()
        requests: list[Request] = []
        num_open = len(prompts)
        bar = _progress_bar(num_open, "prompt", use_tqdm)
        try:
            for number, prompt in enumerate(prompts):
                requests.append(
                    Request(
                        self._engine,
                        events,
                        self._tokenizer,
                        number,
                        prompt,
                        params[number],
                        whole=True,
                        answer=None if answers is None else answers[number],
                    )
                )
            while num_open > 0:
                for event in events.take(_WAIT_SECONDS):
                    request = requests[event.request]
                    request.add(event)
                    if request.output.finished:
                        num_open -= 1
                        if bar is not None:
                            bar.update()
                if not self._open:
                    raise _core.UnavailableError("the engine was shut down while requests ran")
        finally:
            if num_open > 0:
                self._engine.abort(events)
            if bar is not None:
                bar.close()
            _logging.drain()
        return [request.output for request in requests]


def _shut_down_all() -> None:
    for llm in list(_running):
        llm.shutdown()


atexit.register(_shut_down_all)
