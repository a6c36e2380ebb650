#!/usr/bin/env python3
"""Runs lm_eval (EleutherAI's lm-evaluation-harness) against `outrider serve`, over HTTP alone.

    python3 -m venv build/lm_eval && build/lm_eval/bin/pip install "lm-eval[api]"
    build/lm_eval/bin/python tools/run_lm_eval.py

The tasks are made here, of problems that the bundled model was not trained on, so that no data set
is downloaded: which of four numbers is likeliest behind an answer's steps (multiple_choice),
whether the right one is what the model would say (loglikelihood), how likely whole texts are
(loglikelihood_rolling), five-shot problems as completions and problems as chats (generate_until).
The first three read echoed log-probabilities by token ids from /tokenize; lm_eval takes a token for
the model's own choice when its log-probability equals the highest of top_logprobs to the last bit.

Each is run without drafts and with three. Prints a table. Ends with 0 when every score is as good
as it should be and the same number for both runs; 1 when not; 2 when it could not be run.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import textgen
from serve_process import Client, Server, ServerError

ROOT = pathlib.Path(__file__).resolve().parent.parent
EVAL_SEED, SHOTS_SEED, NUM_SHOTS = 20261120, 7, 5

# Task: (lm_eval's model, its metrics with the least or, for perplexities, the highest good value).
TASKS = {
    "outrider_choice": ("local-completions", {"acc": (">=", 0.98)}),
    "outrider_last_number": ("local-completions", {"acc": (">=", 0.98), "perplexity": ("<=", 1.1)}),
    "outrider_text": ("local-completions", {"bits_per_byte": ("<=", 1.0)}),
    "outrider_five_shot": ("local-completions", {"exact_match": (">=", 0.98)}),
    "outrider_chat": ("local-chat-completions", {"exact_match": (">=", 0.98)}),
}
GENERATION = {
    "output_type": "generate_until",
    "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 128, "temperature": 0.0,
                          "do_sample": False},
    "filter_list": [{"name": "number", "filter": [
        {"function": "regex", "regex_pattern": "#### (-?[0-9]+)"}, {"function": "take_first"}]}],
    "metric_list": [{"metric": "exact_match"}],
    "doc_to_text": "{{prompt}}", "doc_to_target": "{{number}}",
}
FORMS = {
    "outrider_choice": {
        "output_type": "multiple_choice", "doc_to_text": "{{steps}}",
        "doc_to_choice": "{{choices}}", "doc_to_target": "{{right}}",
        "metric_list": [{"metric": "acc"}]},
    "outrider_last_number": {
        "output_type": "loglikelihood", "doc_to_text": "{{steps}}", "doc_to_target": " {{number}}",
        "target_delimiter": "", "metric_list": [{"metric": "acc"}, {"metric": "perplexity"}]},
    "outrider_text": {
        "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "bits_per_byte"}]},
    "outrider_five_shot": GENERATION,
    "outrider_chat": GENERATION,
}


def documents(count):
    """{task: its documents}."""
    problems = textgen.eval_set(EVAL_SEED, count)
    shots = "".join(f"Question: {shot['question']}\nAnswer: {shot['answer']}\n\n"
                    for shot in textgen.eval_set(SHOTS_SEED, NUM_SHOTS))
    draw, docs = random.Random(EVAL_SEED), {name: [] for name in TASKS}
    for problem in problems:
        question, number = problem["question"], problem["number"]
        text = f"Question: {question}\nAnswer: {problem['answer']}"
        steps = text[:text.rindex("####") + 4]
        numbers = [number] + draw.sample([number + d for d in (-10, -2, -1, 1, 2, 10)], 3)
        draw.shuffle(numbers)
        number_docs = dict(steps=steps, number=str(number), choices=[str(n) for n in numbers],
                           right=numbers.index(number))
        docs["outrider_choice"].append(number_docs)
        docs["outrider_last_number"].append(number_docs)
        docs["outrider_text"].append(dict(text=text))
        docs["outrider_five_shot"].append(
            dict(prompt=f"{shots}Question: {question}\nAnswer:", number=str(number)))
        docs["outrider_chat"].append(dict(prompt=question, number=str(number)))
    return docs


def write_tasks(folder, count):
    for name, docs in documents(count).items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(doc) + "\n" for doc in docs))
        task = {"task": name, "dataset_path": "json", "test_split": "test", "num_fewshot": 0,
                "dataset_kwargs": {"data_files": {"test": str(data)}}, **FORMS[name]}
        (folder / f"{name}.yaml").write_text(json.dumps(task))  # JSON is YAML


def run_lm_eval(python, folder, address, model, tasks, output):
    """{task: {metric: value}}."""
    route = "chat/completions" if "chat" in model else "completions"
    arguments = dict(model="outrider", base_url=f"http://{address[0]}:{address[1]}/v1/{route}",
                     num_concurrent=4, max_retries=1, max_length=1024, timeout=600)
    if "chat" in model:
        arguments["eos_string"] = "<|none|>"  # it would guess one, which only a tokenizer knows
    command = [python, "-m", "lm_eval", "--model", model, "--tasks", ",".join(tasks),
               "--model_args", ",".join(f"{key}={value}" for key, value in arguments.items()),
               "--include_path", str(folder), "--output_path", str(output),
               "--batch_size", "1" if "chat" in model else "8"]
    if "chat" in model:
        command.append("--apply_chat_template")
    environment = dict(os.environ, HF_HOME=str(folder / "hf"), HF_HUB_OFFLINE="1",
                       HF_DATASETS_OFFLINE="1", OPENAI_API_KEY="none",
                       TOKENIZERS_PARALLELISM="false")
    done = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    reports = sorted(output.rglob("results_*.json"))
    if done.returncode or not reports:
        raise ServerError(f"lm_eval ended with status {done.returncode}:\n{done.stdout[-4000:]}")
    results = json.loads(reports[-1].read_text())["results"]
    return {task: {key.split(",")[0]: value for key, value in results[task].items()
                   if key.split(",")[0] in TASKS[task][1]} for task in tasks}


def measure(options, folder):
    """{task: [{metric: value} without drafts, the same with drafts]}."""
    scores = {}
    for drafts in (0, options.spec_tokens):
        flags = ["--served-model-name", "outrider", "--spec-tokens", str(drafts)]
        with Server(options.outrider, options.model, flags) as server:
            print(f"version {Client(server.address).call('GET', '/version')[1]}, {drafts} drafts",
                  file=sys.stderr)
            for model in ("local-completions", "local-chat-completions"):
                tasks = [name for name, (of, _) in TASKS.items() if of == model]
                output = folder / f"out_{drafts}_{model}"
                got = run_lm_eval(options.python, folder, server.address, model, tasks, output)
                for task in tasks:
                    scores.setdefault(task, []).append(got[task])
    return scores


def report(scores, options):
    good = True
    print(f"| task | lm_eval's model | metric | k = 0 | k = {options.spec_tokens} | wanted |\n"
          "|---|---|---|---|---|---|")
    for task, (model, metrics) in TASKS.items():
        for metric, (relation, limit) in metrics.items():
            values = [run.get(metric) for run in scores[task]]
            fine = values[0] == values[1] and values[0] is not None and (
                values[0] >= limit if relation == ">=" else values[0] <= limit)
            good = good and fine
            print(f"| {task} | {model} | {metric} | {values[0]!r} | {values[1]!r} | {relation} "
                  f"{limit}, equal{'' if fine else ': **WRONG**'} |")
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outrider", default=ROOT / "build/release/outrider", type=pathlib.Path)
    parser.add_argument("--model", default=ROOT / "models/tiny-v3-mtp3", type=pathlib.Path)
    parser.add_argument("--python", default=sys.executable, help="that has lm_eval")
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--spec-tokens", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="outrider_lm_eval_") as name:
        folder = pathlib.Path(name)
        write_tasks(folder, options.problems)
        try:
            scores = measure(options, folder)
        except (OSError, ServerError) as error:
            print(f"run_lm_eval: error: {error}", file=sys.stderr)
            return 2
    return 0 if report(scores, options) else 1


if __name__ == "__main__":
    sys.exit(main())
