#!/usr/bin/env python3
"""Loads a server with many streams, well-behaved and not, and checks that nothing is lost or left.

    load_server.py --stub build/release/tests/server/stub_server
    load_server.py --outrider build/release/outrider --model models/tiny-v3-mtp3

First `--streams` clients stream for `--seconds`, each a request after the other. Then half as many
again do what clients do: stream, wait for whole answers, disconnect, read slowly, send bodies that
are too large or no JSON; the server's limit of requests is the number of streams, so that some are
refused. Every answer must be complete and right: equal prompts get equal texts. Afterwards nothing
may run or wait, and open files and resident memory must be back at their level.

Prints a table in Markdown; ends with 1 when something was wrong. Python standard library only.
"""
import argparse
import asyncio
import collections
import json
import os
import pathlib
import random
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import serve_process  # noqa: E402

PROMPTS = ["abcdefgh", "Three friends share 12 apples", "x", "0123456789" * 8]
PATIENCE = 120  # seconds that any answer may take
OVERSIZED = 40 << 20
LEVEL_SHARE, LEVEL_BYTES = 0.10, 24 << 20  # resident memory may differ by this much


class Wrong(Exception):
    """What a server did and should not have done."""


class StubServer:
    """The server with the stub engine: steps of given length, at most `limit` requests."""

    def __init__(self, binary, step_microseconds, limit):
        self._command = [binary, "0", "3", str(step_microseconds), "0", str(limit)]

    def __enter__(self):
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=self._log,
                                         text=True)
        self.pid = self._process.pid
        self.address = ("127.0.0.1", int(self._process.stdout.readline()))
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait(timeout=60)
        self._process.stdout.close()

    def ending(self):
        """What was wrong with its end, and what it said then; "" for nothing."""
        if self._process.returncode == 0:
            return ""
        self._log.seek(0)
        return (f"the server ended with status {self._process.returncode}:\n"
                f"{self._log.read().decode(errors='replace')[-8000:]}")


class Answer:
    """What came back for one request, read piece by piece."""

    def __init__(self, reader):
        self._reader = reader
        self.status, self.headers = 0, {}

    async def read_head(self):
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.status = int(head[0].split()[1])
        self.headers = {name.lower(): value.strip() for name, _, value in
                        (line.partition(":") for line in head[1:] if line)}

    async def read_body(self):
        return await self._reader.readexactly(int(self.headers["content-length"]))

    async def read_chunk(self):
        """Empty at the end of the body."""
        size = int(await self._reader.readuntil(b"\r\n"), 16)
        return (await self._reader.readexactly(size + 2))[:-2]


class Load:
    def __init__(self, address, max_tokens, seed):
        self.address, self.max_tokens = address, max_tokens
        self.random = random.Random(seed)
        self.counts = collections.Counter()  # (kind, outcome)
        self.wrong = []
        self.gaps = []  # seconds between two chunks of a stream
        self.num_events = 0
        self._texts = {}  # by (prompt, max_tokens)

    async def connect(self, receive_buffer=0):
        plain = socket.socket()
        if receive_buffer:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        plain.setblocking(False)
        await asyncio.get_running_loop().sock_connect(plain, self.address)
        return await asyncio.open_connection(sock=plain, limit=1 << 16)

    def body_of(self, prompt, stream, max_tokens):
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
                "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        return json.dumps(body).encode()

    @staticmethod
    def request_of(body, length=None):
        return (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" %
                (len(body) if length is None else length)) + body

    def check_text(self, prompt, max_tokens, text, usage, reason):
        if reason != "length" or usage["completion_tokens"] != max_tokens:
            raise Wrong(f"ended with {reason} after {usage['completion_tokens']} tokens of "
                        f"{max_tokens}")
        expected = self._texts.setdefault((prompt, max_tokens), text)
        if text != expected:
            raise Wrong(f"another text than before for the same prompt: {text!r}, {expected!r}")

    async def read_stream(self, answer, prompt, max_tokens, pause=0.0, gaps=True):
        text, usage, reason, done, last = "", None, None, False, None
        buffered = b""
        while chunk := await answer.read_chunk():
            now = time.monotonic()
            if gaps and last is not None:
                self.gaps.append(now - last)
            last = now
            buffered += chunk
            *events, buffered = buffered.split(b"\n\n")
            for event in events:
                if not event.startswith(b"data: "):
                    continue  # a ping
                if event == b"data: [DONE]":
                    done = True
                    continue
                self.num_events += 1
                part = json.loads(event[6:])
                if "error" in part:
                    raise Wrong(f"an error in a stream: {event!r}")
                usage = part.get("usage") or usage
                for choice in part["choices"]:
                    text += choice["text"]
                    reason = choice["finish_reason"] or reason
            if pause:
                await asyncio.sleep(pause)
        if not done:
            raise Wrong("a stream ended without [DONE]")
        self.check_text(prompt, max_tokens, text, usage, reason)

    async def ask(self, kind):
        """One request of this kind; what became of it."""
        prompt = self.random.choice(PROMPTS)
        max_tokens = self.max_tokens if kind != "slow" else 4 * self.max_tokens
        stream = kind != "whole" and (kind != "leave at once" or self.random.random() < 0.5)
        reader, writer = await self.connect(receive_buffer=4096 if kind == "slow" else 0)
        try:
            answer = Answer(reader)
            if kind == "oversized":
                writer.write(self.request_of(b"x" * 65536, OVERSIZED))
            elif kind == "no JSON":
                writer.write(self.request_of(b'{"prompt": '))
            else:
                writer.write(self.request_of(self.body_of(prompt, stream, max_tokens)))
            if kind == "leave at once":
                await writer.drain()
                return "left"
            if kind == "slow":
                await asyncio.sleep(1)
            await answer.read_head()
            expected = {"oversized": 413, "no JSON": 400}.get(kind, 200)
            if answer.status == 503 and "retry-after" in answer.headers:
                json.loads(await answer.read_body())["error"]
                return "refused"
            if answer.status != expected:
                raise Wrong(f"status {answer.status}, not {expected}")
            if kind == "leave later":
                for _ in range(self.random.randint(1, 4)):
                    await answer.read_chunk()
                return "left"
            if stream and expected == 200:
                pause = 0.05 if kind == "slow" else 0
                await self.read_stream(answer, prompt, max_tokens, pause, gaps=kind == "stream")
                return "complete"
            body = json.loads(await answer.read_body())
            if expected == 200:
                choice = body["choices"][0]
                self.check_text(prompt, max_tokens, choice["text"], body["usage"],
                                choice["finish_reason"])
                return "complete"
            body["error"]["message"]
            return f"status {expected}"
        finally:
            writer.close()

    async def client(self, kinds, deadline):
        await asyncio.sleep(self.random.random() * 0.5)
        while time.monotonic() < deadline:
            kind = self.random.choices(list(kinds), list(kinds.values()))[0]
            try:
                outcome = await asyncio.wait_for(self.ask(kind), PATIENCE)
            except (Wrong, OSError, ValueError, KeyError, asyncio.IncompleteReadError,
                    asyncio.TimeoutError) as error:
                outcome = "WRONG"
                self.wrong.append(f"{kind}: {type(error).__name__}: {error}")
            self.counts[kind, outcome] += 1
            if outcome == "refused":
                await asyncio.sleep(0.1 + 0.2 * self.random.random())

    async def run(self, num_clients, kinds, seconds):
        deadline = time.monotonic() + seconds
        await asyncio.gather(*(self.client(kinds, deadline) for _ in range(num_clients)))


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_bytes(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) << 10


def unfinished(address):
    """Requests that run or wait, by /metrics."""
    status, text = serve_process.Client(address, timeout=30).call("GET", "/metrics")
    if status != 200:
        raise Wrong(f"/metrics answered {status}")
    values = re.findall(r"^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$", text, re.M)
    return sum(map(float, values))


def wait_until(condition, seconds=15):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


MIX = {"stream": 40, "whole": 15, "leave later": 15, "leave at once": 10, "slow": 10,
       "oversized": 5, "no JSON": 5}


def run_phase(name, server, load, num_clients, kinds, seconds, problems, idle_files):
    start = time.monotonic()
    asyncio.run(load.run(num_clients, kinds, seconds))
    took = time.monotonic() - start
    if not wait_until(lambda: unfinished(server.address) == 0):
        problems.append(f"{name}: {unfinished(server.address):.0f} requests run or wait for nobody")
    if not wait_until(lambda: open_files(server.pid) <= idle_files):
        problems.append(f"{name}: {open_files(server.pid)} open files, {idle_files} before")
    problems += [f"{name}: {text}" for text in load.wrong[:10]]
    if len(load.wrong) > 10:
        problems.append(f"{name}: {len(load.wrong) - 10} more")
    outcomes = ", ".join(f"{kind} {outcome} {count:,}" for (kind, outcome), count in
                         sorted(load.counts.items()))
    gaps = [f"{1000 * quantile(load.gaps, share):.0f}" for share in (0.5, 0.99)]
    gaps.append(f"{1000 * max(load.gaps, default=0):.0f}")
    resident = resident_bytes(server.pid)
    print(f"| {name} | {num_clients:,} | {took:.0f} s | {outcomes} | {load.num_events / took:,.0f} | "
          f"{' / '.join(gaps)} ms | {resident / 2**20:.0f} MiB | {open_files(server.pid)} |",
          flush=True)
    return resident


def run(arguments, server):
    problems = []
    load = Load(server.address, arguments.max_tokens, seed=1)
    asyncio.run(load.run(4, {"stream": 1, "whole": 1}, 1))
    wait_until(lambda: unfinished(server.address) == 0)
    time.sleep(0.5)
    idle_files = open_files(server.pid)
    print("| phase | clients | time | requests | events/s | between a stream's events: p50 / p99 / "
          "most | resident after | open files after |\n|---|---|---|---|---|---|---|---|")
    levels = []
    for name, num_clients, kinds, seconds in (
            ("streams", arguments.streams, {"stream": 1}, arguments.seconds),
            ("mix", arguments.streams * 3 // 2 + arguments.extra, MIX, arguments.mix_seconds),
            ("mix again", arguments.streams * 3 // 2 + arguments.extra, MIX,
             arguments.mix_seconds)):
        load.counts.clear()
        load.wrong, load.gaps, load.num_events = [], [], 0
        levels.append(run_phase(name, server, load, num_clients, kinds, seconds, problems,
                                idle_files))
        refused = sum(count for (_, what), count in load.counts.items() if what == "refused")
        if name == "streams" and refused:
            problems.append(f"{refused} requests refused below the limit")
        if name != "streams" and not refused and not arguments.sanitized:
            problems.append(f"{name}: nothing was refused: the overload was none")
    grows = levels[2] > levels[1] * (1 + LEVEL_SHARE) + LEVEL_BYTES
    if grows and not arguments.sanitized:
        problems.append(f"resident memory grows: {levels[1]} bytes, then {levels[2]}")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--stub", help="the stub server's binary")
    parser.add_argument("--step-microseconds", type=int, default=100_000, help="of the stub")
    parser.add_argument("--outrider", help="the engine's binary")
    parser.add_argument("--model", help="with --outrider: the checkpoint")
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--mix-seconds", type=float, default=30, help="of each of two mixes")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--sanitized", action="store_true",
                        help="sanitizers keep what was freed, and clients may be too slow for an "
                        "overload: neither is looked at")
    arguments = parser.parse_args()
    if bool(arguments.stub) == bool(arguments.outrider and arguments.model):
        parser.error("give --stub, or --outrider and --model")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if arguments.stub:
        arguments.extra = 0
        server = StubServer(arguments.stub, arguments.step_microseconds, arguments.streams)
    else:
        arguments.extra = 256  # those that run do not wait
        server = serve_process.Server(arguments.outrider, arguments.model,
                                      ["--max-num-queued-reqs", str(arguments.streams)])
    with server:
        problems = run(arguments, server)
    problems += list(filter(None, [server.ending()]))
    for problem in problems:
        print(f"wrong: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
