"""lm_eval with `--model outrider`, on the tasks of lm_eval_tasks/. Where lm_eval is installed, as
`scripts/test.sh --full` does it (requirements_lm_eval.txt)."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from outrider import LLM, SamplingParams
from conftest import MODEL, ROOT

pytest.importorskip("lm_eval")

TASKS = ROOT / "python/tests/lm_eval_tasks"
QUESTIONS = [json.loads(line) for line in (TASKS / "questions.jsonl").read_text().splitlines()]


def evaluate(folder: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command, in the folder that data files are named from."""
    return subprocess.run(
        [sys.executable, "-m", "outrider.lm_eval", "run", "--model", "outrider"]
        + ["--include_path", ".", "--output_path", str(folder / "out"), "--log_samples", *arguments],
        capture_output=True,
        text=True,
        cwd=TASKS,
        env={**os.environ, "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"},
        timeout=600,
    )


def results_of(folder: pathlib.Path) -> dict[str, Any]:
    (path,) = folder.glob("out/**/results_*.json")
    results: dict[str, Any] = json.loads(path.read_text())["results"]
    return results


def samples_of(folder: pathlib.Path, task: str) -> list[dict[str, Any]]:
    """In the order of the questions."""
    (path,) = folder.glob(f"out/**/samples_{task}_*.jsonl")
    samples = [json.loads(line) for line in path.read_text().splitlines()]
    return sorted(samples, key=lambda sample: int(sample["doc_id"]))


def test_log_probabilities_of_choices_and_texts(llm: LLM, tmp_path: pathlib.Path) -> None:
    # The context is shorter than a text, which is therefore cut.
    done = evaluate(
        tmp_path,
        *("--model_args", f"pretrained={MODEL},num_threads=1,max_model_len=40,spec_tokens=2"),
        *("--tasks", "outrider_choices,outrider_perplexity"),
    )
    assert done.returncode == 0, done.stderr
    tokenizer = llm.get_tokenizer()
    right = 0
    for question, sample in zip(QUESTIONS, samples_of(tmp_path, "outrider_choices"), strict=True):
        prompt = tokenizer.encode(question["question"] + "\nAnswer:")
        sums = []
        for choice, (told,) in zip(question["choices"], sample["resps"], strict=True):
            whole = tokenizer.encode(question["question"] + "\nAnswer: " + choice)
            answer = whole[len(prompt) :]
            (score,) = llm.score([prompt], [answer])
            greedy = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=len(answer)))
            sums.append(score.outputs[0].cumulative_logprob)
            assert told[0] == str(sums[-1])
            assert told[1] == str(greedy[0].outputs[0].token_ids == answer)
        right += sums.index(max(sums)) == question["label"]
    results = results_of(tmp_path)
    assert results["outrider_choices"]["acc,none"] == right / len(QUESTIONS)

    for question, sample in zip(QUESTIONS, samples_of(tmp_path, "outrider_perplexity"), strict=True):
        ids = tokenizer.encode(question["text"], add_special_tokens=False)
        expected = 0.0
        assert len(ids) > 40
        for begin in range(0, len(ids), 38):
            # 38 tokens before the piece's last one and that; one place is left for what is generated.
            end = min(begin + 38, len(ids))
            first = max(0, end - 39)
            piece = ([0] if begin == 0 else []) + ids[first:end]
            params = SamplingParams(max_tokens=1, prompt_logprobs=0)
            (output,) = llm.generate(piece, params)
            assert output.prompt_logprobs is not None
            for position in output.prompt_logprobs[-(end - begin) :]:
                assert position is not None
                (entry,) = position.values()
                expected += entry.logprob
        assert float(sample["resps"][0][0]) == pytest.approx(expected, rel=1e-6)
    assert results["outrider_perplexity"]["bits_per_byte,none"] > 0


def test_answers_through_the_chat_template(llm: LLM, tmp_path: pathlib.Path) -> None:
    done = evaluate(
        tmp_path,
        *("--model_args", f"pretrained={MODEL},num_threads=1"),
        *("--tasks", "outrider_answers", "--apply_chat_template"),
    )
    assert done.returncode == 0, done.stderr
    chats = [[{"role": "user", "content": question["question"]}] for question in QUESTIONS]
    answers = llm.chat(chats, SamplingParams(temperature=0, max_tokens=80, stop=["<|", "\n\n"]))
    right = 0
    for question, sample, answer in zip(
        QUESTIONS, samples_of(tmp_path, "outrider_answers"), answers, strict=True
    ):
        assert sample["resps"] == [[answer.outputs[0].text]]
        right += f"#### {question['answer']}" in answer.outputs[0].text
    assert right >= 1
    assert results_of(tmp_path)["outrider_answers"]["exact_match,number"] == right / len(QUESTIONS)


def test_an_argument_that_nobody_knows(tmp_path: pathlib.Path) -> None:
    done = evaluate(
        tmp_path,
        *("--model_args", f"pretrained={MODEL},max_model_length=48", "--tasks", "outrider_choices"),
    )
    assert done.returncode != 0
    assert "'max_model_length'; did you mean max_model_len?" in done.stderr
