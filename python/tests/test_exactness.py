"""Random mixes of requests through LLM, together and with everything on, equal those of the program,
one after the other without drafts: texts, tokens, and bits of log-probabilities.

`pytest python/tests/test_exactness.py --mixes 300 --first-mix 1000` runs as many as one likes.
"""

from __future__ import annotations

import json
import re
import struct
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from outrider import LLM, CompletionOutput, RequestOutput, SamplingParams
from conftest import program
from mixes import Asked, Mix, random_mix

NUM_REQUESTS = 24
LEAST_LOGPROB = -9999.0  # what the program writes for a token that cannot come


@contextmanager
def plain_server(model: Any) -> Iterator[str]:
    """The program's server: one request at a time, no drafts, no prefix cache."""
    command = [program(), "serve", str(model), "--port", "0", "--num-threads", "1"]
    command += ["--spec-tokens", "0", "--max-num-seqs", "1", "--no-enable-prefix-caching"]
    command += ["--tool-call-parser", "none", "--reasoning-parser", "none"]  # answers as they are written
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


@pytest.fixture(scope="module")
def url_of() -> Iterator[Callable[[Any], str]]:
    """By model: where its plain server is, which starts when it is needed."""
    urls: dict[Any, str] = {}
    with ExitStack() as stack:

        def find(model: Any) -> str:
            if model not in urls:
                urls[model] = stack.enter_context(plain_server(model))
            return urls[model]

        yield find


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "mix_number" in metafunc.fixturenames:
        first = metafunc.config.getoption("first_mix")
        metafunc.parametrize("mix_number", range(first, first + metafunc.config.getoption("mixes")))


def of_program(url: str, asked: Asked) -> dict[str, Any]:
    body = {**asked.fields, "return_token_ids": True}
    for name in ("priority", "cache_salt", "num_speculative_tokens"):
        body.pop(name, None)  # which have no effect on an answer
    if asked.is_chat:
        body["messages"] = asked.what
        if "logprobs" in body:
            body.update(logprobs=True, top_logprobs=body["logprobs"])
    else:
        body["prompt"] = asked.what
    route = "/v1/chat/completions" if asked.is_chat else "/v1/completions"
    request = urllib.request.Request(
        url + route, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            told: dict[str, Any] = json.load(answer)
            return told
    except urllib.error.HTTPError as error:
        pytest.fail(f"{body}: {error.read().decode()}")


def bits(logprob: float) -> bytes:
    return struct.pack("f", max(logprob, LEAST_LOGPROB))


def spelled(output: CompletionOutput) -> list[tuple[bytes, dict[str, bytes]]]:
    """For each position the token's own bits, and those of the likeliest tokens by their spelling."""
    assert output.logprobs is not None
    result = []
    for token, position in zip(output.token_ids, output.logprobs, strict=True):
        likeliest: dict[str, float] = {}
        for entry in position.values():
            assert entry.decoded_token is not None
            before = likeliest.get(entry.decoded_token, -float("inf"))
            likeliest[entry.decoded_token] = max(before, entry.logprob)
        own = bits(position[token].logprob)
        result.append((own, {text: bits(value) for text, value in likeliest.items()}))
    return result


def told_logprobs(choice: dict[str, Any], is_chat: bool) -> list[tuple[bytes, dict[str, bytes]]]:
    """As `spelled`, of the program's answer."""
    result = []
    if is_chat:
        for entry in choice["logprobs"]["content"]:
            likeliest: dict[str, float] = {}
            for one in [entry, *entry["top_logprobs"]]:
                likeliest[one["token"]] = max(likeliest.get(one["token"], -float("inf")), one["logprob"])
            result.append((bits(entry["logprob"]), {text: bits(v) for text, v in likeliest.items()}))
        return result
    told = choice["logprobs"]
    for own, top in zip(told["token_logprobs"], told["top_logprobs"], strict=True):
        result.append((bits(own), {text: bits(value) for text, value in top.items()}))
    return result


def check(asked: Asked, told: dict[str, Any], ours: RequestOutput) -> None:
    choices = told["choices"]
    prompt_ids = told["prompt_token_ids"] if asked.is_chat else choices[0]["prompt_token_ids"]
    assert ours.prompt_token_ids == prompt_ids
    assert ours.finished and len(ours.outputs) == len(choices)
    for output, choice in zip(ours.outputs, choices):
        assert output.token_ids == choice["token_ids"]
        text = choice["message"]["content"] if asked.is_chat else choice["text"]
        # LLM leaves the marks of thinking in a chat's text, whose caller tells thinking from answer.
        ours_text = output.text
        for mark in ("<think>", "</think>") if asked.is_chat else ():
            ours_text = ours_text.replace(mark, "")
        assert ours_text == (text or "")
        assert output.finish_reason == choice["finish_reason"]
        assert output.stop_reason == choice["stop_reason"]
        if "logprobs" in asked.fields:
            assert spelled(output) == told_logprobs(choice, asked.is_chat)
        else:
            assert output.logprobs is None
    if "prompt_logprobs" not in asked.fields:
        return
    scores = told["prompt_logprobs"] if asked.is_chat else choices[0]["prompt_logprobs"]
    assert ours.prompt_logprobs is not None
    assert len(ours.prompt_logprobs) == len(scores)
    for position, score in zip(ours.prompt_logprobs, scores):
        if position is None:
            assert score is None
            continue
        assert {str(token): (bits(entry.logprob), entry.rank) for token, entry in position.items()} == {
            token: (bits(entry["logprob"]), entry["rank"]) for token, entry in score.items()
        }


def run_together(llm: LLM, mix: Mix, scored: list[tuple[list[int], list[int]]]) -> tuple[
    list[RequestOutput], list[RequestOutput]
]:
    """The answers, and scores of given ones: texts and ids in one call, chats and scores in calls
    from other threads at the same time."""
    answers: dict[int, RequestOutput] = {}
    scores: list[RequestOutput] = []
    failures: list[BaseException] = []

    def ask(is_chat: bool) -> None:
        places = [i for i, asked in enumerate(mix.requests) if asked.is_chat == is_chat]
        whats: list[Any] = [mix.requests[i].what for i in places]
        params = [SamplingParams(**mix.requests[i].fields) for i in places]
        call = llm.chat if is_chat else llm.generate
        answers.update(zip(places, call(whats, params, use_tqdm=False), strict=True))

    def score() -> None:
        scores.extend(llm.score([prompt for prompt, _ in scored], [answer for _, answer in scored]))

    def run(part: Callable[[], None]) -> None:
        try:
            part()
        except BaseException as error:  # of a thread, told by the test
            failures.append(error)

    parts = [lambda: ask(False), lambda: ask(True), score]
    threads = [threading.Thread(target=run, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [answers[i] for i in range(len(mix.requests))], scores


def test_a_mix_equals_that_of_the_program(url_of: Callable[[Any], str], mix_number: int) -> None:
    mix = random_mix(mix_number, size=NUM_REQUESTS)
    told = [of_program(url_of(mix.model), asked) for asked in mix.requests]
    # What was generated, to be scored: whatever the sampling fields, they are the model's own.
    scored = []
    expected = []
    for asked, answer in zip(mix.requests, told):
        if not asked.is_chat and "logprobs" in asked.fields:
            for choice in answer["choices"]:
                scored.append((choice["prompt_token_ids"], choice["token_ids"]))
                expected.append([bits(value) for value in choice["logprobs"]["token_logprobs"]])
    with LLM(mix.model, use_tqdm=False, **mix.options) as llm:
        answers, scores = run_together(llm, mix, scored)
        drafted = llm.get_metrics()["speculation"].num_draft_tokens
    for asked, one, ours in zip(mix.requests, told, answers):
        try:
            check(asked, one, ours)
        except AssertionError as error:
            raise AssertionError(f"mix {mix_number}, {mix.options}, {asked}: {error}") from error
    for ours, values in zip(scores, expected, strict=True):
        assert [own for own, _ in spelled(ours.outputs[0])] == values, mix.options
    if mix.num_drafts is not None:  # else the engine drafts as many as pay, which may be none
        assert (drafted > 0) == (mix.num_drafts > 0)
