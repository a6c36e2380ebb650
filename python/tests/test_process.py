"""An engine as a part of a Python process: threads, signals, forks, logs, its end."""

from __future__ import annotations

import logging
import threading
import time

import pytest

import outrider
from outrider import LLM, SamplingParams
from conftest import MODEL, run_python

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
    start = time.monotonic()
    llm.generate(["Ada", "Ben"], LONG)
    seconds = time.monotonic() - start
    done.set()
    counter.join()
    # Without the interpreter's lock it would have counted none or once.
    assert seconds > 0.05 and counted > 20 * seconds


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
    with LLM(MODEL, num_threads=2, tensor_parallel_size=2) as ranks:
        (two,) = ranks.generate("Ada has", params)
    assert one.outputs[0].token_ids == two.outputs[0].token_ids
    assert one.outputs[0].logprobs == two.outputs[0].logprobs


def test_control_c_ends_a_long_generate_and_the_engine_goes_on() -> None:
    done = run_python(
        """
import os, signal, threading, time
from outrider import LLM, SamplingParams
llm = LLM(MODEL, num_threads=1)
threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT)).start()
start = time.monotonic()
try:
    llm.generate(["Ada"] * 64, SamplingParams(max_tokens=1900, ignore_eos=True))
    print("it ended before the signal")
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - start < 5)
answer, = llm.generate("Ada", SamplingParams(max_tokens=3, ignore_eos=True))
print(len(answer.outputs[0].token_ids))
time.sleep(0.2)
print(llm.get_metrics()["num_requests_running"], llm.get_metrics()["finished_abort"])
"""
    )
    assert done.stdout.split("\n")[:3] == ["interrupted True", "3", "0 64"]


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
