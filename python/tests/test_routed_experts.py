"""The experts of tokens: those that the server tells, whatever is cached, drafted or scored."""

from __future__ import annotations

import base64
import io
import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import outrider
from outrider import LLM, SamplingParams
from conftest import MODEL

PROMPTS = ["Ada has 12 apples and buys", "Ben packs 3 boxes with 5 pens each"]


@pytest.fixture(scope="module")
def telling() -> Iterator[LLM]:
    with LLM(
        MODEL,
        num_threads=1,
        speculative_config={"num_speculative_tokens": 3},
        enable_return_routed_experts=True,
    ) as made:
        yield made


def experts(output: Any) -> np.ndarray[Any, Any]:
    array = np.from_dlpack(output.routed_experts)
    assert array.dtype == np.int16
    return array


def test_are_those_of_the_server(telling: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=20)
    answers = telling.generate(PROMPTS, params)
    with outrider.serve(MODEL, num_threads=1, enable_return_routed_experts=True) as server:
        for prompt, answer in zip(PROMPTS, answers):
            body = {"prompt": prompt, "temperature": 0, "max_tokens": 20}
            request = urllib.request.Request(
                server.base_url + "/completions",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request) as response:
                choice = json.load(response)["choices"][0]
            told = np.load(io.BytesIO(base64.b64decode(choice["routed_experts"])))
            output = answer.outputs[0]
            assert told.shape[0] == len(answer.prompt_token_ids) + len(output.token_ids) - 1
            assert np.array_equal(experts(output), told)
            assert len(np.unique(told)) > told.shape[2]


def test_are_told_of_scores_and_from_a_token_on(telling: LLM) -> None:
    (answer,) = telling.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=20))
    whole = experts(answer.outputs[0])
    (score,) = telling.score(PROMPTS[0], [answer.outputs[0].token_ids])
    assert np.array_equal(experts(score.outputs[0]), whole)
    (some,) = telling.generate(
        PROMPTS[0], SamplingParams(temperature=0, max_tokens=20, routed_experts_prompt_start=3)
    )
    assert np.array_equal(experts(some.outputs[0]), whole[3:])
    (none,) = telling.generate(PROMPTS[0], SamplingParams(return_routed_experts=False))
    assert none.outputs[0].routed_experts is None
    (chat,) = telling.chat([{"role": "user", "content": "1 + 1"}], SamplingParams(n=2, max_tokens=3))
    for output in chat.outputs:
        rows = len(chat.prompt_token_ids) + len(output.token_ids) - 1
        assert experts(output).shape == (rows, *whole.shape[1:])


def test_outlive_the_answer(telling: LLM) -> None:
    (answer,) = telling.generate(PROMPTS[1], SamplingParams(temperature=0, max_tokens=8))
    array = experts(answer.outputs[0])
    copy = array.copy()
    del answer
    telling.generate(PROMPTS, SamplingParams(max_tokens=8))
    assert np.array_equal(array, copy)


def test_an_engine_without_the_option_tells_none(llm: LLM) -> None:
    (answer,) = llm.generate("Ada", SamplingParams(max_tokens=2))
    assert answer.outputs[0].routed_experts is None
    with pytest.raises(outrider.InvalidArgumentError, match="return_routed_experts: is off"):
        llm.generate("Ada", SamplingParams(max_tokens=2, return_routed_experts=True))
