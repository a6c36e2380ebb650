"""AsyncLLM: answers as they grow, and requests that are given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

import outrider
from outrider import AsyncLLM, LLM, RequestOutput, SamplingParams
from conftest import MODEL, QUESTION, wait_until

PARAMS = SamplingParams(temperature=0, max_tokens=40, logprobs=1)


async def until(holds: Callable[[], bool]) -> bool:
    return await asyncio.to_thread(wait_until, holds)


async def last(answers: AsyncIterator[RequestOutput]) -> RequestOutput:
    async for answer in answers:
        pass
    return answer


def test_answers_grow_to_those_of_llm(llm: LLM) -> None:
    async def run() -> None:
        async with AsyncLLM(MODEL, num_threads=1) as engine:
            lengths = []
            texts = []
            async for answer in engine.generate("Ada has", PARAMS):
                lengths.append(len(answer.outputs[0].token_ids))
                texts.append(answer.outputs[0].text)
            assert len(lengths) > 2 and lengths == sorted(lengths)
            assert all(texts[-1].startswith(text) for text in texts)
            whole = await asyncio.gather(
                *(last(engine.generate(prompt, PARAMS)) for prompt in ["Ada has", "Ben", "Cleo"]),
                last(engine.chat([{"role": "user", "content": QUESTION}], PARAMS)),
            )
        expected = llm.generate(["Ada has", "Ben", "Cleo"], PARAMS)
        expected += llm.chat([{"role": "user", "content": QUESTION}], PARAMS)
        for ours, theirs in zip(whole, expected):
            assert ours.finished
            assert ours.outputs[0].text == theirs.outputs[0].text
            assert ours.outputs[0].logprobs == theirs.outputs[0].logprobs

    asyncio.run(run())


def test_cancellation_and_leaving_early_abort() -> None:
    long = SamplingParams(n=16, max_tokens=1900, ignore_eos=True)

    async def run() -> None:
        async with AsyncLLM(MODEL, num_threads=1, max_num_seqs=16) as engine:
            task = asyncio.ensure_future(last(engine.generate("Ada", long)))
            assert await until(lambda: engine.get_metrics()["num_requests_running"] == 16)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            answers = engine.generate("Ben", long)
            async for _ in answers:
                break
            await answers.aclose()
            assert await until(lambda: engine.get_metrics()["finished_abort"] == 32)
            assert engine.get_metrics()["num_requests_running"] == 0

    asyncio.run(run())


def test_errors_are_raised_where_the_answer_is_awaited() -> None:
    async def run() -> None:
        async with AsyncLLM(MODEL, num_threads=1) as engine:
            with pytest.raises(outrider.InvalidArgumentError, match="top_p"):
                await last(engine.generate("Ada", SamplingParams(top_p=2)))

    asyncio.run(run())
