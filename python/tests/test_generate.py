"""LLM: texts, tokens and log-probabilities, against those of the program."""

from __future__ import annotations

import struct

import numpy as np
import pytest

import outrider
from outrider import LLM, SamplingParams, StructuredOutputsParams
from conftest import MODEL, QUESTION, generate_json, run_program


def bits(values: list[float]) -> bytes:
    return struct.pack(f"{len(values)}f", *values)


def test_text_is_that_of_the_program(llm: LLM) -> None:
    (answer,) = llm.generate(["Ada has 12"], SamplingParams(temperature=0, max_tokens=24))
    printed = run_program(
        *("generate", str(MODEL), "--prompt", "Ada has 12", "--temperature", "0"),
        *("--max-tokens", "24", "--num-threads", "1"),
    )
    assert answer.outputs[0].text == printed.removesuffix("\n")
    assert answer.outputs[0].finish_reason == "length"
    assert answer.finished and answer.prompt == "Ada has 12"


def test_chat_is_that_of_the_program(llm: LLM) -> None:
    (answer,) = llm.chat(
        [{"role": "user", "content": QUESTION}], SamplingParams(temperature=0, max_tokens=None)
    )
    printed = run_program(
        *("generate", str(MODEL), "--chat", QUESTION, "--temperature", "0", "--num-threads", "1")
    )
    assert answer.outputs[0].text == printed.removesuffix("\n")
    assert answer.outputs[0].finish_reason == "stop"
    assert "#### 14" in answer.outputs[0].text


def test_logprobs_are_those_of_the_program_bit_for_bit(llm: LLM) -> None:
    tokens = llm.get_tokenizer().encode("Ada has 12")
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=20, logprobs=2, prompt_logprobs=1)
    (answer,) = llm.generate({"prompt_token_ids": tokens}, params)
    told = generate_json(
        *("--prompt-token-ids", ",".join(map(str, tokens)), "--temperature", "0.8", "--seed", "3"),
        *("--max-tokens", "20", "--logprobs", "2", "--prompt-logprobs", "1"),
    )
    output = answer.outputs[0]
    assert output.token_ids == told["token_ids"]
    assert output.logprobs is not None and answer.prompt_logprobs is not None
    ours = [position[token].logprob for token, position in zip(output.token_ids, output.logprobs)]
    assert bits(ours) == bits([entry["logprob"] for entry in told["logprobs"]])
    assert answer.prompt_logprobs[0] is None
    scored = [
        position[token].logprob
        for token, position in zip(tokens[1:], answer.prompt_logprobs[1:])
        if position is not None
    ]
    assert bits(scored) == bits([entry["logprob"] for entry in told["prompt_logprobs"]])
    assert output.cumulative_logprob == sum(ours)


def test_prompts_of_every_kind(llm: LLM) -> None:
    text = "Ben packs 3 boxes"
    ids = llm.get_tokenizer().encode(text)
    params = SamplingParams(temperature=0, max_tokens=8)
    kinds = [
        text,
        ids,
        tuple(ids),
        list(np.array(ids)),
        np.array(ids, dtype=np.int32),
        np.array(ids, dtype=np.int64),
        {"prompt": text},
        {"prompt_token_ids": ids},
    ]
    together = llm.generate(kinds, params)
    one = llm.generate([np.array(ids[:1])], params)
    assert one[0].prompt_token_ids == ids[:1]
    for kind, answer in zip(kinds, together):
        (alone,) = llm.generate(kind, params)
        assert alone.outputs[0].token_ids == answer.outputs[0].token_ids
        assert answer.prompt_token_ids == ids
        assert answer.outputs[0].token_ids == together[0].outputs[0].token_ids


def test_arrays_of_tokens_and_logprobs(llm: LLM) -> None:
    (answer,) = llm.generate("Ada", SamplingParams(temperature=0, max_tokens=6, logprobs=0))
    output = answer.outputs[0]
    tokens = np.from_dlpack(output.token_ids_array())
    logprobs = np.from_dlpack(output.logprobs_array())
    assert tokens.dtype == np.int32 and tokens.tolist() == output.token_ids
    assert logprobs.dtype == np.float32 and logprobs.shape == (6,)
    assert float(logprobs.sum()) == pytest.approx(output.cumulative_logprob, rel=1e-6)
    (plain,) = llm.generate("Ada", SamplingParams(max_tokens=1))
    with pytest.raises(ValueError, match="SamplingParams.logprobs"):
        plain.outputs[0].logprobs_array()


def test_choices_and_parameters_by_prompt(llm: LLM) -> None:
    params = [
        SamplingParams(n=3, seed=5, max_tokens=12),
        SamplingParams(temperature=0, max_tokens=30, stop="."),
        SamplingParams(temperature=0, max_tokens=4, ignore_eos=True),
    ]
    three, stopped, short = llm.generate(["Cleo"] * 3, params)
    assert len(three.outputs) == 3 and len({choice.text for choice in three.outputs}) > 1
    for index, choice in enumerate(three.outputs):
        (alone,) = llm.generate("Cleo", SamplingParams(seed=5 + index, max_tokens=12))
        assert alone.outputs[0].token_ids == choice.token_ids
    assert stopped.outputs[0].stop_reason == "." and "." not in stopped.outputs[0].text
    assert len(short.outputs[0].token_ids) == 4
    with pytest.raises(ValueError, match="3 prompts and 2 sampling_params"):
        llm.generate(["a", "b", "c"], params[:2])


def test_structured_output(llm: LLM) -> None:
    params = SamplingParams(
        temperature=0,
        max_tokens=20,
        structured_outputs=StructuredOutputsParams(choice=["yes", "no, never"]),
    )
    (answer,) = llm.generate("Is it?", params)
    assert answer.outputs[0].text in ("yes", "no, never")
    with pytest.raises(outrider.InvalidArgumentError, match="structured_outputs.regex"):
        llm.generate("a", SamplingParams(structured_outputs={"regex": "("}))


def test_scores_are_the_logprobs_of_generation_bit_for_bit(llm: LLM) -> None:
    prompts = ["Ada has 12 apples.", "Ben packs", QUESTION]
    answers = llm.generate(
        prompts, SamplingParams(temperature=0.9, seed=11, max_tokens=40, logprobs=3)
    )
    scores = llm.score(prompts, [answer.outputs[0].token_ids for answer in answers], logprobs=3)
    for answer, score in zip(answers, scores):
        assert score.outputs[0].token_ids == answer.outputs[0].token_ids
        assert score.outputs[0].logprobs == answer.outputs[0].logprobs
    (text,) = llm.score("Ada has", " 12 apples")
    assert text.outputs[0].text == " 12 apples"
    with pytest.raises(outrider.InvalidArgumentError, match="answer: is empty"):
        llm.score("Ada", [""])


def test_what_ends_a_model_can_be_scored_in_the_middle(llm: LLM) -> None:
    end = llm.get_tokenizer().eos_token_id
    assert end is not None
    (score,) = llm.score("Ada has", [[end, 40, end]])
    assert score.outputs[0].token_ids == [end, 40, end]


def test_tokenizer(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode("Ada has 12 apples.", add_special_tokens=False)
    assert tokenizer.decode(ids) == "Ada has 12 apples."
    assert tokenizer.decode(np.array(ids)) == "Ada has 12 apples."
    assert b"".join(map(tokenizer.token_bytes, ids)) == b"Ada has 12 apples."
    assert 0 < len(tokenizer) <= llm._engine.vocab_size
    messages = [{"role": "user", "content": "Hello"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert "Hello" in text
    assert tokenizer.encode(text, add_special_tokens=False) == tokenizer.apply_chat_template(messages)
    with pytest.raises(outrider.InvalidArgumentError, match="out of range: ids of this model are 0"):
        tokenizer.decode([10**6])


def test_metrics_and_the_prefix_cache(llm: LLM) -> None:
    before = llm.get_metrics()
    prompt = llm.get_tokenizer().encode(QUESTION * 6)
    for _ in range(2):
        (cached,) = llm.generate(prompt, SamplingParams(max_tokens=2))
    assert cached.num_cached_tokens > 0
    assert llm.reset_prefix_cache()
    (fresh,) = llm.generate(prompt, SamplingParams(max_tokens=2))
    assert fresh.num_cached_tokens == 0
    after = llm.get_metrics()
    assert after["generation_tokens"] - before["generation_tokens"] == 6
    assert after["num_requests_running"] == 0


def test_speculation_figures(llm: LLM) -> None:
    (answer,) = llm.chat(
        [{"role": "user", "content": QUESTION}], SamplingParams(temperature=0, max_tokens=None)
    )
    stats = answer.outputs[0].stats
    assert stats is not None
    assert stats.speculation.mean_acceptance_length > 3
    assert stats.speculation.num_accepted_tokens == answer.outputs[0].num_accepted_tokens > 0
    assert stats.completion_tokens == len(answer.outputs[0].token_ids)


def test_tools_reach_the_template_and_are_refused_where_it_has_none(llm: LLM) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    messages = [{"role": "user", "content": "Hello"}]
    with pytest.raises(outrider.InvalidArgumentError, match="template does not show tools"):
        llm.chat(messages, SamplingParams(max_tokens=1), tools=tools)
    template = MODEL / "unused.jinja"
    assert not template.exists()
    with pytest.raises(outrider.InvalidArgumentError, match="chat_template_kwargs must not set tools"):
        llm.chat(messages, SamplingParams(max_tokens=1), chat_template_kwargs={"tools": []})
