"""ranks_process_test.py OUTRIDER [NAME ...]: `outrider serve` and `outrider bench` on ranks that
share a model: answers are those of one rank, and a rank that stands still ends the server. NAME:
these tests only."""

import concurrent.futures
import http.client
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from serve_process_test import MODEL, OUTRIDER, Server, run_tests

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from frozen_thread import FrozenThread, thread_named  # noqa: E402

RANKS = ["--num-threads", "2", "--tensor-parallel-size"]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
                                           "count": {"type": "integer"}},
          "required": ["name", "count"], "additionalProperties": False}
TESTS = []


def test(function):
    TESTS.append(function)
    return function


def requests():
    """Paths and bodies: streams, logprobs, grammars, penalties, several choices."""
    chat, text = "/v1/chat/completions", "/v1/completions"
    messages = [{"role": "user", "content": "Tell me about the two ranks of one model."}]
    sampled = {"max_tokens": 24, "temperature": 0.9, "seed": 5}
    greedy = {"max_tokens": 24, "temperature": 0}
    answer = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    bodies = [
        (chat, {"messages": messages, **greedy, "logprobs": True, "top_logprobs": 5}),
        (chat, {"messages": messages, **sampled, "top_p": 0.8, "top_k": 40}),
        (chat, {"messages": messages, **sampled, "n": 3, "logprobs": True, "top_logprobs": 2}),
        (chat, {"messages": messages, **greedy, "max_tokens": 60, "response_format": answer}),
        (chat, {"messages": messages, **sampled, "max_tokens": 60, "response_format": answer}),
        (text, {"prompt": "Once upon a time", **greedy, "logprobs": 3, "echo": True}),
        (text, {"prompt": "Once upon a time", **sampled, "logprobs": 1, "min_p": 0.02}),
        (text, {"prompt": "1 2 3 1 2 3 1 2", **greedy, "presence_penalty": 0.5,
                "frequency_penalty": 0.3, "repetition_penalty": 1.1}),
        (text, {"prompt": "one two three " * 40, **sampled, "prompt_logprobs": 2}),
        (text, {"prompt": "yes or no?", **sampled, "structured_outputs": {"choice": ["yes", "no"]}}),
    ]
    return [(path, {**body, "stream": stream}) for path, body in bodies for stream in (False, True)
            if not (stream and "prompt_logprobs" in body)]


def plain(value):
    """Without what differs from answer to answer."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()
                if key not in ("id", "created", "system_fingerprint", "prompt_tokens_details")}
    return [plain(item) for item in value] if isinstance(value, list) else value


def answers(body, text):
    """What a client gets: an answer, or by choice all that a stream says of it. Which tokens come
    in one event is a matter of time."""
    if not body["stream"]:
        return plain(json.loads(text))
    events = [line[len("data: "):] for line in text.split("\n") if line.startswith("data: ")]
    assert events[-1] == "[DONE]", text
    choices = {}
    for event in events[:-1]:
        for choice in json.loads(event)["choices"]:
            said = choices.setdefault(choice["index"], {"text": "", "logprobs": []})
            said["text"] += choice.get("delta", {}).get("content") or choice.get("text") or ""
            logprobs = choice.get("logprobs") or {}
            for key in ("content", "tokens", "token_logprobs", "top_logprobs"):
                said["logprobs"] += logprobs.get(key) or []
            said["finish_reason"] = choice.get("finish_reason")
    return choices


@test
def answers_of_two_ranks_are_those_of_one():
    def run(number, *more):
        with Server(*RANKS, number, *more, "--max-logprobs", "5") as server:
            def ask(request):
                path, body = request
                status, text = server.ask("POST", path, body)
                assert status == 200, (body, text)
                return answers(body, text)
            with concurrent.futures.ThreadPoolExecutor(4) as clients:
                got = list(clients.map(ask, requests()))
            assert server.ask("GET", "/health")[0] == 200
            status, lines = server.end()
            assert status == 0, (status, lines)
            return got
    of_one = run("1")
    for more in ([], ["--data-parallel-attention"]):
        for request, one, two in zip(requests(), of_one, run("2", *more)):
            assert one == two, (more, request, one, two)


@test
def generate_explain_and_the_start_tell_of_ranks():
    def run(command, ranks, *more):
        return subprocess.run(
            [OUTRIDER, command, MODEL, *RANKS, ranks, "--spec-tokens", "3", "--kv-cache-memory-bytes", "64M",
             *more], capture_output=True, text=True, timeout=240, check=True).stdout
    answers_of = []
    for ranks in ("1", "2"):
        answer = json.loads(run("generate", ranks, "--prompt", "Once upon a time", "--max-tokens", "12",
                                "--temperature", "0", "--ignore-eos", "--logprobs", "2",
                                "--prompt-logprobs", "1"))
        del answer["timings"]
        answers_of.append(answer)
    assert answers_of[0] == answers_of[1], answers_of
    assert len(answers_of[0]["logprobs"]) == 12 and answers_of[0]["prompt_logprobs"], answers_of[0]
    explained = run("explain", "2")
    memory = json.loads(run("explain", "2", "--json"))["memory"]
    assert len(memory["ranks"]) == 2 and memory["ranks"][1]["weight_bytes"] > 0, memory["ranks"]
    with Server(*RANKS, "2") as server:
        start = "\n".join(server.lines)
    for text in (explained, start):
        for line in ("rank 0 .* weights .*, cache .*: the lines above are its", "rank 1 .* weights .*, cache",
                     "all ranks "):
            assert re.search(line, text), (line, text)
    assert "Loading safetensors checkpoint shards: 100%" in start, start


@test
def bench_runs_ranks_and_says_so():
    with tempfile.TemporaryDirectory() as directory:
        report = os.path.join(directory, "report.json")
        for arguments in (["latency"], ["throughput"], ["serve", "--spec-tokens", "1"]):
            run = subprocess.run(
                [OUTRIDER, "bench", *arguments, MODEL, *RANKS, "2", "--num-prompts", "2", "--input-len",
                 "8", "--output-len", "8", "--kv-cache-memory-bytes", "64M", "--json", report],
                capture_output=True, text=True, timeout=240, check=True)
            assert "of 2 ranks" in run.stdout, run.stdout
            with open(report, encoding="utf-8") as file:
                assert json.load(file)["ranks"] == 2


def end_with_a_rank_that_stands_still(*more):
    with Server(*RANKS, "2", *more) as server:
        assert server.chat()[0] == 200
        stream = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        stream.request("POST", "/v1/completions", json.dumps(
            {"prompt": "a", "max_tokens": 3800, "ignore_eos": True, "stream": True,
             "temperature": 0}), {"Content-Type": "application/json"})
        response = stream.getresponse()
        assert response.readline().startswith(b"data: ")
        assert server.ask("GET", "/health")[0] == 200
        try:
            rank = FrozenThread(thread_named(server.process.pid, "rank 1"))
        except PermissionError as error:
            print("  skipped: this system lets no process stop a thread of its child:", error)
            return
        with rank:
            started = time.monotonic()
            rest = response.read().decode()
            told = time.monotonic() - started
            health = server.ask("GET", "/health")[0]
            while not rank.take_end() and time.monotonic() < started + 60:
                time.sleep(0.02)
            ended = time.monotonic() - started
        server.process.wait(60)
        print(f"  requests told after {told:.1f} s, process ended after {ended:.1f} s")
        assert "rank 1 of 2 has ended, and the server's log says why" in rest, rest[-500:]
        assert health == 503, health
        assert server.process.returncode == 1, server.process.returncode
        log = server.process.stderr.read()
        assert "The engine has failed" in log and "rank 1 of 2 has ended: it has not answered" in log, log
        assert ended < 10 or os.getloadavg()[0] > os.cpu_count(), ended


@test
def a_rank_that_stands_still_ends_the_server_within_ten_seconds():
    end_with_a_rank_that_stands_still()


@test
def a_rank_that_stands_still_ends_a_server_whose_ranks_have_own_requests():
    end_with_a_rank_that_stands_still("--data-parallel-attention")


if __name__ == "__main__":
    run_tests(TESTS)
