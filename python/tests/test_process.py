"""An engine as a part of a Python process: threads, signals, forks, logs, its end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import pytest

import outrider
from outrider import LLM, SamplingParams
from conftest import MODEL, run_python, wait_until

LONG = SamplingParams(temperature=0, max_tokens=1500, ignore_eos=True)


def test_other_threads_run_while_the_engine_works(llm: LLM) -> None:
    counted = 0
    done = threading.Event()

    def count() -> None:
        nonlocal counted
        while not done.is_set():
            counted += 1
            time.sleep(0.001)

    counter = threading.Thread(target=count)
    counter.start()
    for _ in range(20):  # on a busy machine the counter may have to wait
        before, start = counted, time.monotonic()
        llm.generate(["Ada", "Ben"], LONG)
        while_asking, seconds = counted - before, time.monotonic() - start
        if while_asking > 20 * seconds:
            break
    done.set()
    counter.join()
    # Without the interpreter's lock it would have counted none or once.
    assert seconds > 0.05 and while_asking > 20 * seconds


def test_threads_may_ask_at_the_same_time(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=40)
    expected = [answer.outputs[0].text for answer in llm.generate(["Ada", "Ben", "Cleo"], params)]
    texts: dict[str, str] = {}

    def ask(name: str) -> None:
        texts[name] = llm.generate(name, params)[0].outputs[0].text

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("Ada", "Ben", "Cleo")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [texts[name] for name in ("Ada", "Ben", "Cleo")] == expected


def test_two_engines_in_one_process(llm: LLM) -> None:
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=30, logprobs=0)
    (one,) = llm.generate("Ada has", params)
    with LLM(MODEL, num_threads=1, spec_tokens=0, block_size=16) as other:
        (two,) = other.generate("Ada has", params)
    assert one.outputs[0].token_ids == two.outputs[0].token_ids
    assert one.outputs[0].logprobs == two.outputs[0].logprobs
    (again,) = llm.generate("Ada has", params)  # the end of one engine leaves the other alone
    assert again.outputs[0].token_ids == one.outputs[0].token_ids


def test_two_ranks_give_the_bits_of_one(llm: LLM) -> None:
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=30, logprobs=0)
    (one,) = llm.generate("Ada has", params)
    for divides_requests in (False, True):
        with LLM(
            MODEL, num_threads=2, tensor_parallel_size=2, data_parallel_attention=divides_requests
        ) as ranks:
            (two,) = ranks.generate("Ada has", params)
        assert one.outputs[0].token_ids == two.outputs[0].token_ids
        assert one.outputs[0].logprobs == two.outputs[0].logprobs


def test_control_c_ends_a_long_generate_and_the_engine_goes_on() -> None:
    done = run_python(
        """
import os, signal, threading, time
from outrider import LLM, SamplingParams
llm = LLM(MODEL, num_threads=1, max_num_seqs=64)
def interrupt():
    while llm.get_metrics()["num_requests_running"] < 64:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
try:
    threading.Thread(target=interrupt).start()
    llm.generate(["Ada"] * 64, SamplingParams(max_tokens=1900, ignore_eos=True))
    print("it ended before the signal")
except KeyboardInterrupt:
    print("interrupted")
answer, = llm.generate("Ada", SamplingParams(max_tokens=3, ignore_eos=True))
print(len(answer.outputs[0].token_ids))
metrics = llm.get_metrics()
print(metrics["num_requests_running"], metrics["finished_abort"])
"""
    )
    assert done.stdout.split("\n")[:3] == ["interrupted", "3", "0 64"]


def test_control_c_while_requests_are_submitted_leaves_none() -> None:
    done = run_python(
        """
import os, signal, threading, time
from outrider import LLM, SamplingParams
llm = LLM(MODEL, num_threads=1)
for sooner in range(20):
    def interrupt():
        time.sleep(0.0005 * sooner)
        os.kill(os.getpid(), signal.SIGINT)
    try:
        thread = threading.Thread(target=interrupt)
        thread.start()
        llm.generate(["Ada"] * 200, SamplingParams(max_tokens=1900, ignore_eos=True))
        print("it ended before the signal")
    except KeyboardInterrupt:
        pass
    thread.join()
end = time.monotonic() + 60
while (metrics := llm.get_metrics())["num_requests_running"] + metrics["num_requests_waiting"] > 0:
    if time.monotonic() > end:
        break
print(metrics["num_requests_running"], metrics["finished_length"])
"""
    )
    assert done.stdout == "0 0\n"


def test_a_forked_process_is_refused() -> None:
    done = run_python(
        """
import os
import outrider
llm = outrider.LLM(MODEL, num_threads=1)
child = os.fork()
if child == 0:
    try:
        llm.generate("Ada")
    except outrider.UnavailableError as error:
        print(error, flush=True)
        del llm
        os._exit(7)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
answer, = llm.generate("Ada", outrider.SamplingParams(max_tokens=1))
print(answer.finished)
"""
    )
    message, status, finished = done.stdout.splitlines()
    assert message.startswith("this engine belongs to process") and "'spawn'" in message
    assert (status, finished) == ("7", "True")


def test_a_process_may_end_without_shutting_down() -> None:
    done = run_python(
        """
from outrider import LLM, SamplingParams
llm = LLM(MODEL, num_threads=1)
llm.generate("Ada", SamplingParams(max_tokens=2))
"""
    )
    assert done.stderr == ""


def test_after_the_end_calls_fail() -> None:
    ended = LLM(MODEL, num_threads=1, spec_tokens=0)
    ended.shutdown()
    ended.shutdown()
    with pytest.raises(outrider.UnavailableError, match="was shut down"):
        ended.generate("Ada")


def test_the_log_is_pythons(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    with caplog.at_level(logging.INFO, logger="outrider"):
        outrider._logging.drain()  # a level that was set a moment ago holds from here on
        LLM(MODEL, num_threads=1).shutdown()
    assert any(record.levelno == logging.INFO for record in caplog.records)
    assert {record.name for record in caplog.records} == {"outrider"}
    caplog.clear()
    LLM(MODEL, num_threads=1, attention_backend="single").shutdown()
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "output can depend on batching" in warnings[0].getMessage()
    assert capfd.readouterr().err == ""


def test_an_engine_may_be_shut_down_while_threads_ask_it() -> None:
    asked = []
    failures = []
    stopping = LLM(MODEL, num_threads=1, use_tqdm=False)
    tokenizer = stopping.get_tokenizer()
    messages = [{"role": "user", "content": "Hello"}]
    calls = [
        lambda: stopping.generate("Ada has", SamplingParams(max_tokens=4), use_tqdm=False),
        lambda: stopping.score("Ada has", " 12 apples"),
        lambda: tokenizer.decode(tokenizer.encode("Ada has 12 apples. " * 50)),
        lambda: tokenizer.apply_chat_template(messages),
        stopping.get_metrics,
        stopping.reset_prefix_cache,
    ]

    def ask(call: Callable[[], object]) -> None:
        try:
            while True:
                call()
                asked.append(call)
        except outrider.UnavailableError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=ask, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    assert wait_until(lambda: set(asked) == set(calls))
    stopping.shutdown()
    for thread in threads:
        thread.join()
    assert len(failures) == len(calls)
    assert all("was shut down" in words for words in failures)
