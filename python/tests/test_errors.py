"""What is wrong is told by exceptions with the engine's words."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

import outrider
from outrider import LLM, SamplingParams
from conftest import MODEL, wait_until


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("max_model_length", "; did you mean max_model_len?"),
        ("kv_cache_type", "; did you mean kv_cache_dtype?"),
        ("blocksize", "; did you mean block_size?"),
        ("port", ""),
    ],
)
def test_an_unknown_option_is_a_type_error_with_the_nearest_name(name: str, hint: str) -> None:
    with pytest.raises(TypeError) as raised:
        LLM(MODEL, **{name: 1})
    assert str(raised.value).startswith(f"LLM() got an unexpected keyword argument '{name}'")
    if hint:
        assert str(raised.value).endswith(hint)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "float8"}, "dtype: "),
        ({"max_num_seqs": 0}, "max_num_seqs: "),
        ({"speculative_config": {"metod": "mtp"}}, "speculative_config"),
        ({"max_model_len": [1, 2]}, "max_model_len: takes one value, not a list of 2"),
        ({"device": "cuda"}, "cuda"),
    ],
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(outrider.OutriderError, match=words):
        LLM(MODEL, **options)


def test_values_without_a_text_are_type_errors() -> None:
    with pytest.raises(TypeError, match="max_model_len must be a str, a number"):
        LLM(MODEL, max_model_len=object())


def test_a_missing_model(tmp_path: pathlib.Path) -> None:
    with pytest.raises(outrider.OutriderError, match="nowhere"):
        LLM(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temperature": -1}, "temperature: "),
        ({"top_p": 0}, "top_p: 0 is out of range"),
        ({"logprobs": 1000}, "logprobs: "),
        ({"stop": [""]}, "stop: "),
        ({"max_tokens": 10**6}, "max_tokens: "),
        ({"allowed_token_ids": [10**6]}, "allowed_token_ids"),
        ({"num_speculative_tokens": 30}, "speculation.num_speculative_tokens"),
    ],
)
def test_bad_sampling_fields(llm: LLM, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(outrider.InvalidArgumentError, match=words) as raised:
        llm.generate("Ada", SamplingParams(**fields))
    assert isinstance(raised.value, ValueError)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("prompt", "error", "words"),
    [
        (np.array([], dtype=np.int32), outrider.InvalidArgumentError, "prompt: is empty"),
        ([10**6], outrider.InvalidArgumentError, "token id 1000000"),
        ([-1], outrider.InvalidArgumentError, "token id -1"),
        (np.array([[1, 2]]), TypeError, "one-dimensional"),
        (np.array([1.0, 2.0]), TypeError, "int32 or int64"),
        (np.array([2**40]), outrider.InvalidArgumentError, "1099511627776 is no token id"),
        ({"text": "a"}, TypeError, "'prompt_token_ids', not 'text'"),
        (7, TypeError, "prompts must be a str"),
        ([1] * 100000, outrider.InvalidArgumentError, "context"),
    ],
)
def test_bad_prompts(llm: LLM, prompt: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        llm.generate([prompt] if isinstance(prompt, np.ndarray) else prompt)


def test_one_bad_prompt_ends_all_and_the_engine_goes_on(llm: LLM) -> None:
    with pytest.raises(outrider.InvalidArgumentError):
        llm.generate(["Ada has", [10**6]], SamplingParams(max_tokens=200, ignore_eos=True))
    (answer,) = llm.generate("Ada", SamplingParams(max_tokens=2))
    assert answer.finished
    # An abort is seen to between steps.
    assert wait_until(lambda: llm.get_metrics()["num_requests_running"] == 0)


def test_a_template_that_takes_too_long_or_is_wrong(llm: LLM, tmp_path: pathlib.Path) -> None:
    endless = tmp_path / "endless.jinja"
    endless.write_text("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}")
    broken = tmp_path / "broken.jinja"
    broken.write_text("{% if %}")
    escaping = tmp_path / "escaping.jinja"
    escaping.write_text("{{ messages.__class__.__mro__ }}")
    for template, words in [
        (endless, "longer than 2000 ms"),
        (broken, "line 1: "),
        (escaping, "access to attribute '__class__'"),
    ]:
        with LLM(MODEL, num_threads=1, chat_template=template, spec_tokens=0) as other:
            with pytest.raises(outrider.InvalidArgumentError, match=words):
                other.chat([{"role": "user", "content": "Hello"}])
