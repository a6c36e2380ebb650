"""AsyncLLM: an engine in this process, asked from an event loop."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from types import TracebackType
from typing import Any

from outrider import _core
from outrider._requests import Conversation, Request
from outrider.llm import LLM
from outrider.outputs import RequestOutput
from outrider.sampling_params import SamplingParams
from outrider.tokenizer import Tokenizer


def _snapshot(output: RequestOutput) -> RequestOutput:
    choices = [
        dataclasses.replace(
            choice,
            token_ids=list(choice.token_ids),
            logprobs=None if choice.logprobs is None else list(choice.logprobs),
        )
        for choice in output.outputs
    ]
    return dataclasses.replace(output, outputs=choices)


class AsyncLLM:
    """A model in this process, for asyncio. Takes LLM's arguments."""

    def __init__(self, model: str | os.PathLike[str], *, use_tqdm: bool = False, **options: Any) -> None:
        self._llm = LLM(model, use_tqdm=use_tqdm, **options)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.shutdown)

    def shutdown(self) -> None:
        self._llm.shutdown()

    def get_tokenizer(self) -> Tokenizer:
        return self._llm.get_tokenizer()

    def get_metrics(self) -> dict[str, Any]:
        return self._llm.get_metrics()

    def generate(
        self, prompt: Any, sampling_params: SamplingParams | None = None
    ) -> AsyncGenerator[RequestOutput, None]:
        """The answer to one prompt so far, each time that it grows; the last has `finished`. Where
        the iteration ends early or its task is cancelled, the request is aborted.
        """
        return self._stream(prompt, sampling_params or SamplingParams())

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        extra_body: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """As generate, for one conversation; see LLM.chat."""
        conversation = Conversation.make(
            messages,
            tools,
            add_generation_prompt,
            continue_final_message,
            chat_template_kwargs,
            extra_body,
        )
        return self._stream(conversation, sampling_params or SamplingParams())

    async def _stream(self, what: Any, params: SamplingParams) -> AsyncGenerator[RequestOutput, None]:
        engine = self._llm._engine
        events = _core.EventQueue()
        ready = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(events.descriptor(), ready.set)
        request: Request | None = None
        try:
            # Templates and tokenizing take time that the loop should not wait for. A submission
            # that is under way cannot be taken back: it is waited for, then aborted.
            submission = asyncio.ensure_future(
                asyncio.to_thread(
                    Request, engine, events, self.get_tokenizer(), 0, what, params, whole=False
                )
            )
            try:
                request = await asyncio.shield(submission)
            except asyncio.CancelledError:
                request = await submission
                raise
            while not request.output.finished:
                await ready.wait()
                ready.clear()
                for event in events.take(0):
                    request.add(event)
                yield _snapshot(request.output)
        finally:
            loop.remove_reader(events.descriptor())
            if request is None or not request.output.finished:
                engine.abort(events)
