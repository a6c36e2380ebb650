"""outrider.serve: the HTTP API from this process."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

import outrider
from outrider import LLM, SamplingParams
from conftest import MODEL, QUESTION


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        result: dict[str, Any] = json.load(answer)
        return result


def test_a_server_answers_until_it_is_left(llm: LLM) -> None:
    with outrider.serve(MODEL, num_threads=1, served_model_name="tiny") as server:
        assert server.base_url == f"http://127.0.0.1:{server.port}/v1"
        body = {"model": "tiny", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
        chat = post(server.base_url + "/chat/completions", body)
        (ours,) = llm.chat(body["messages"], SamplingParams(temperature=0, max_tokens=None))
        assert chat["choices"][0]["message"]["content"] == ours.outputs[0].text
        url = server.base_url
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url + "/models", timeout=60)


def test_two_servers_and_their_errors() -> None:
    with outrider.serve(MODEL, num_threads=1) as one:
        with pytest.raises(outrider.OutriderError, match=str(one.port)):
            outrider.serve(MODEL, num_threads=1, port=one.port)
        with outrider.serve(MODEL, num_threads=1) as two:
            assert one.port != two.port
            for server in (one, two):
                with urllib.request.urlopen(server.url + "/health", timeout=60) as answer:
                    assert answer.status == 200
    with pytest.raises(TypeError, match="serve.. got an unexpected keyword argument 'prot'; did you mean port?"):
        outrider.serve(MODEL, prot=1)
