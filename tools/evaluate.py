#!/usr/bin/env python3
"""Measures accuracy, speed and acceptance of `outrider serve` on held-out arithmetic problems.

For each number of draft tokens k, and for the k that the server chooses, a server is started, asked
every problem at each concurrency at temperature 0, and stopped. The answers must be right, the same
texts byte for byte whatever k and the concurrency are, and with k = 3 (--acceptance-k) accepted in
lengths that make speculation worth it. Prints a table; exit status 0: all of that holds, 1: something
does not, 2: it could not be measured.
Longer than most files: asking, checking and the table share their records.

  python3 tools/evaluate.py                                     # the bundled model, chat form
  python3 tools/evaluate.py --form five-shot --problems 50 --spec-tokens 0,3
  python3 tools/evaluate.py -- --dtype float32                  # flags after -- go to the server
  python3 tools/evaluate.py --equal-on-processor 195 -- --device cuda    # texts of a processor beside
  python3 tools/evaluate.py --url http://127.0.0.1:8000         # a server that runs already

Needs the Python standard library only. docs/evaluation.md explains the table.
"""
import argparse
import concurrent.futures
import contextlib
import dataclasses
import http.client
import itertools
import json
import os
import pathlib
import platform
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

import textgen
from serve_process import Client, RunningServer, Server, ServerError

ROOT = pathlib.Path(__file__).resolve().parent.parent
EVAL_SEED = 20261120  # problems that the bundled model was not trained on
SHOTS_SEED, NUM_SHOTS = 7, 5
MAX_TOKENS = 128  # the longest right answer takes fewer


@dataclasses.dataclass
class Answer:
    text: str
    finish_reason: str
    completion_tokens: int
    cached_tokens: int
    speculation: dict  # the response's metrics.speculative_decoding, {} without speculation


def request_of(form, question):
    """(path, body) of a problem."""
    common = dict(temperature=0, max_tokens=MAX_TOKENS, per_request_spec_decode_metrics="summary")
    if form == "chat":
        return "/v1/chat/completions", common | dict(
            messages=[dict(role="user", content=question)])
    shots = "".join(f"Question: {shot['question']}\nAnswer: {shot['answer']}\n\n"
                    for shot in textgen.eval_set(SHOTS_SEED, NUM_SHOTS))
    return "/v1/completions", common | dict(
        prompt=f"{shots}Question: {question}\nAnswer:", stop=["\n\n"])


def ask(client, form, question):
    reply = client.post(*request_of(form, question))
    choice, usage = reply["choices"][0], reply["usage"]
    return Answer(
        text=choice["message"]["content"] if form == "chat" else choice["text"],
        finish_reason=choice["finish_reason"], completion_tokens=usage["completion_tokens"],
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        speculation=(reply.get("metrics") or {}).get("speculative_decoding") or {})


def is_right(answer, problem):
    return answer.text.split("####")[-1].strip() == str(problem["number"])


class Progress:
    """`what: done/total` on standard error: in place on a terminal, else a line every 10 s."""

    def __init__(self, what, total):
        self._what, self._total, self._done, self._lock = what, total, 0, threading.Lock()
        self._terminal = sys.stderr.isatty()
        self._next = time.monotonic() + self._pause()

    def _pause(self):
        return 0.2 if self._terminal else 10

    def step(self):
        with self._lock:
            self._done += 1
            last, now = self._done == self._total, time.monotonic()
            if not last and now < self._next:
                return
            self._next = now + self._pause()
            end = "\n" if last or not self._terminal else ""
            start = "\r" if self._terminal else ""
            print(f"{start}{self._what}: {self._done}/{self._total}", end=end, file=sys.stderr,
                  flush=True)


def ask_all(server, form, problems, concurrency, what):
    """(answers in the problems' order, seconds)."""
    local, progress = threading.local(), Progress(what, len(problems))

    def one(problem):
        if not hasattr(local, "client"):
            local.client = Client(server.address)
        answer = ask(local.client, form, problem["question"])
        progress.step()
        return answer

    pool = concurrent.futures.ThreadPoolExecutor(concurrency)
    try:
        start = time.monotonic()
        answers = list(pool.map(one, problems))
        return answers, time.monotonic() - start
    except (OSError, http.client.HTTPException, KeyError, ValueError) as error:
        raise ServerError(f"a request failed: {type(error).__name__}: {error}\n"
                              f"{server.last_log_lines()}") from error
    finally:  # not waiting: on errors, running requests end when the server does
        pool.shutdown(wait=False, cancel_futures=True)


@dataclasses.dataclass
class Acceptance:
    """What became of drafts; a draft is one verify step that had draft tokens."""
    drafts: int
    draft_tokens: int
    accepted_per_position: list

    def accepted(self):
        return sum(self.accepted_per_position)

    def length(self):
        """Tokens that a verify step emits."""
        return 1 + self.accepted() / self.drafts if self.drafts else 1.0

    def per_position(self):
        return [n / self.drafts for n in self.accepted_per_position] if self.drafts else []

    def __add__(self, other):
        pairs = itertools.zip_longest(self.accepted_per_position, other.accepted_per_position,
                                      fillvalue=0)
        return Acceptance(self.drafts + other.drafts, self.draft_tokens + other.draft_tokens,
                          trimmed([a + b for a, b in pairs]))


def trimmed(counts):
    while counts and not counts[-1]:
        counts = counts[:-1]
    return counts


def acceptance_of_answers(answers):
    drafts = draft_tokens = 0
    histogram = []
    for figures in (answer.speculation for answer in answers if answer.speculation):
        drafts += figures["num_spec_steps"]
        draft_tokens += figures["num_draft_tokens"]
        histogram = [a + b for a, b in itertools.zip_longest(
            histogram, figures["acceptance_histogram"], fillvalue=0)]
    return Acceptance(drafts, draft_tokens,
                      trimmed([sum(histogram[i:]) for i in range(1, len(histogram))]))


def acceptance_of_server(address):
    """From the counters of /metrics, since the server started."""
    status, text = Client(address).call("GET", "/metrics")
    if status != 200:
        raise ServerError(f"GET /metrics answered {status}: {text.strip()}")
    totals, positions = {}, {}
    for name, labels, value in re.findall(
            r"^vllm:spec_decode_(num_\w+?)(?:_total)?(\{.*\})? ([0-9.e+]+)$", text, re.MULTILINE):
        totals[name] = totals.get(name, 0) + round(float(value))
        position = re.search(r'position="(\d+)"', labels)
        if position:
            positions[int(position[1])] = positions.get(int(position[1]), 0) + round(float(value))
    per_position = [positions.get(i, 0) for i in range(max(positions, default=-1) + 1)]
    return Acceptance(totals.get("num_drafts", 0), totals.get("num_draft_tokens", 0),
                      trimmed(per_position))


def k_name(spec_tokens):
    return spec_tokens if spec_tokens == "adaptive" else f"k={spec_tokens}"


@dataclasses.dataclass
class Row:
    """One run of all problems."""
    spec_tokens: int | str | None  # or "adaptive"; None: as the running server has it
    concurrency: int
    accuracy: float
    seconds: float
    processor_seconds: float | None  # of the server; None: it is not ours
    num_problems: int
    tokens: int
    cached_tokens: int
    acceptance: Acceptance
    texts: list
    speed_ratio: float | None = None  # to k = 0 at the same concurrency
    identical: bool = True  # to the first row's texts

    def name(self):
        k = "running server" if self.spec_tokens is None else k_name(self.spec_tokens)
        return f"{k}, concurrency {self.concurrency}"

    def tokens_per_second(self):
        return self.tokens / self.seconds

    def tokens_per_processor_second(self):
        return self.processor_seconds and self.tokens / self.processor_seconds


def check_counters(server, expected, name, failures):
    """Compares /metrics with what the responses said; it may lag a moment behind them."""
    deadline = time.monotonic() + 2
    while (counted := acceptance_of_server(server.address)) != expected:
        if time.monotonic() > deadline:
            failures.append(f"{name}: /metrics says {counted}, but by the responses it should be "
                            f"{expected}")
            return
        time.sleep(0.05)


def measure(server, args, spec_tokens, concurrency, problems, failures):
    name = "" if spec_tokens is None else f"{k_name(spec_tokens)}, "
    before = server.processor_seconds()
    answers, seconds = ask_all(server, args.form, problems, concurrency,
                               f"{name}concurrency {concurrency}")
    after = server.processor_seconds()
    row = Row(spec_tokens, concurrency,
              accuracy=sum(map(is_right, answers, problems)) / len(problems), seconds=seconds,
              processor_seconds=None if before is None else after - before,
              num_problems=len(problems), tokens=sum(a.completion_tokens for a in answers),
              cached_tokens=sum(a.cached_tokens for a in answers),
              acceptance=acceptance_of_answers(answers), texts=[a.text for a in answers])
    if spec_tokens and not row.acceptance.drafts:
        failures.append(f"{row.name()}: the responses report no speculation "
                        "(metrics.speculative_decoding)")
    if row.accuracy < args.min_accuracy:
        wrong = next(i for i, (a, p) in enumerate(zip(answers, problems)) if not is_right(a, p))
        failures.append(
            f"{row.name()}: accuracy {row.accuracy:.3f} is below {args.min_accuracy}; e.g. problem "
            f"{wrong} ({problems[wrong]['question']!r}): {answers[wrong].text!r}, not "
            f"{problems[wrong]['number']}")
    if spec_tokens == args.acceptance_k and row.acceptance.length() < args.min_acceptance_length:
        failures.append(f"{row.name()}: acceptance length {row.acceptance.length():.2f} is below "
                        f"{args.min_acceptance_length}")
    return row


def server_flags(spec_tokens):
    if spec_tokens == "adaptive":
        return ["--speculative-config.adaptive", "true"]
    return ["--spec-tokens", str(spec_tokens)]


def evaluate(args):
    """(rows, failures)."""
    problems = textgen.eval_set(EVAL_SEED, args.problems)
    rows, failures = [], []
    for spec_tokens in [None] if args.url else args.spec_tokens:
        with (RunningServer(args.url) if args.url else
              Server(args.outrider, args.model,
                     server_flags(spec_tokens) + args.server_args, args.port,
                     args.start_timeout)) as server:
            drafted = acceptance_of_server(server.address)
            warm_up, _ = ask_all(server, args.form, textgen.eval_set(1, 2), 1, "warm-up")
            drafted += acceptance_of_answers(warm_up)
            for concurrency in args.concurrency:
                rows.append(measure(server, args, spec_tokens, concurrency, problems, failures))
                drafted += rows[-1].acceptance
                check_counters(server, drafted, rows[-1].name(), failures)
    plain = {row.concurrency: row for row in rows if row.spec_tokens == 0}
    for row in rows:
        if row.concurrency in plain:
            row.speed_ratio = row.tokens_per_second() / plain[row.concurrency].tokens_per_second()
        different = [i for i, (a, b) in enumerate(zip(row.texts, rows[0].texts)) if a != b]
        row.identical = not different
        if different:
            i = different[0]
            failures.append(f"{row.name()}: {len(different)} texts differ from {rows[0].name()}; "
                            f"first problem {i}: {row.texts[i]!r} and {rows[0].texts[i]!r}")
    return rows, failures


def compare_with_processor(args, texts):
    """(what came of it, failures): how many texts a server on the processor gives as well, with the
    numbers of a GPU. Sums have another order there, so that not all need be equal."""
    problems = textgen.eval_set(EVAL_SEED, args.problems)
    given = args.server_args
    at = given.index("--device") if "--device" in given else len(given)
    flags = [*given[:at], *given[at + 2:], "--device", "cpu", "--spec-tokens", "0"]
    if "--dtype" not in given:
        flags += ["--dtype", "bfloat16"]
    with Server(args.outrider, args.model, flags, args.port, args.start_timeout) as server:
        answers, _ = ask_all(server, args.form, problems, 32, "processor")
    equal = sum(answer.text == text for answer, text in zip(answers, texts, strict=True))
    found = f"{equal} of {len(texts)} texts are those of a processor."
    return found, [] if equal >= args.equal_on_processor else [found]


def table(rows):
    """The rows as a Markdown table."""
    cells = [["k", "concurrency", "accuracy", "problems/s", "tokens/s", "tokens/CPU s",
              "speed / k=0", "acceptance length", "per position", "texts as first row"]]
    for row in rows:
        cells.append([
            "-" if row.spec_tokens is None else str(row.spec_tokens), str(row.concurrency),
            f"{100 * row.accuracy:.1f} %", f"{row.num_problems / row.seconds:.2f}",
            f"{row.tokens_per_second():.0f}",
            f"{row.tokens_per_processor_second():.0f}" if row.processor_seconds else "-",
            "-" if row.speed_ratio is None else f"{row.speed_ratio:.2f}",
            f"{row.acceptance.length():.2f}",
            " ".join(f"{rate:.3f}" for rate in row.acceptance.per_position()) or "-",
            "same" if row.identical else "DIFFERENT"])
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def processor_name():
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(),
                          re.MULTILINE)
        if found:
            return found[1]
    return platform.machine()


def commit():
    git = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"],
                         capture_output=True, text=True, check=False)
    return git.stdout.strip() or "unknown"


def shown(path):
    """A path as the reader of a report can use it: relative to the repository if it is in there."""
    path = pathlib.Path(path).resolve()
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def circumstances():
    return dict(command=shlex.join(["python3", shown(sys.argv[0]), *sys.argv[1:]]), commit=commit(),
                processor=processor_name(), cpus=len(os.sched_getaffinity(0)),
                load_average=round(os.getloadavg()[0], 1),
                date=time.strftime("%Y-%m-%d", time.gmtime()))


def report(rows, failures, args, beside=""):
    where = circumstances()
    verdict = "\n".join(f"- FAILED: {failure}" for failure in failures) or "All checks passed."
    cached = sum(row.cached_tokens for row in rows)
    note = f" {cached} prompt tokens came from the prefix cache." if cached else ""
    if beside:
        note += f" {beside}"
    return (f"{args.problems} held-out arithmetic problems, {args.form} form, temperature 0, "
            f"{args.url or shown(args.model)}.{note}\n\n{table(rows)}\n\n{verdict}\n\n"
            f"`{where['command']}`, commit {where['commit']}, {where['date']}, "
            f"{where['cpus']} CPUs of {where['processor']}, load average "
            f"{where['load_average']} at the end\n")


def write_json(path, rows, failures, args):
    def figures(row):
        return {key: value for key, value in dataclasses.asdict(row).items() if key != "texts"} | {
            "problems_per_second": row.num_problems / row.seconds,
            "tokens_per_second": row.tokens_per_second(),
            "tokens_per_processor_second": row.tokens_per_processor_second(),
            "acceptance_length": row.acceptance.length(),
            "acceptance_per_position": row.acceptance.per_position()}

    content = circumstances() | dict(
        problems=args.problems, form=args.form, model=shown(args.model), url=args.url,
        rows=[figures(row) for row in rows], failures=failures)
    pathlib.Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def parse_arguments():
    def numbers(least):
        def parse(text):
            values = [int(part) for part in text.split(",")]
            if min(values) < least:
                raise ValueError
            return values
        parse.__name__ = f"comma-separated list of numbers from {least} up"
        return parse

    def spec_tokens(text):
        names = ["adaptive"] if "adaptive" in text.split(",") else []
        return [int(part) for part in text.split(",") if part not in names] + names
    spec_tokens.__name__ = "comma-separated list of numbers and the word adaptive"

    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], epilog="Flags after -- go to `outrider serve`.")
    parser.add_argument("--outrider", default=ROOT / "build" / "release" / "outrider",
                        type=pathlib.Path, help="the program (default: build/release/outrider)")
    parser.add_argument("--model", default=ROOT / "models" / "tiny-v3-mtp3", type=pathlib.Path,
                        help="checkpoint directory (default: models/tiny-v3-mtp3)")
    parser.add_argument("--url", help="ask this running server instead of starting any")
    parser.add_argument("--port", type=int, default=0, help="of the servers; 0: a free one")
    parser.add_argument("--problems", type=int, default=200, metavar="N")
    parser.add_argument("--form", choices=("chat", "five-shot"), default="chat")
    parser.add_argument("--concurrency", type=numbers(1), default=[1, 32], metavar="N,...")
    parser.add_argument("--spec-tokens", type=spec_tokens, default=[0, 1, 2, 3, "adaptive"],
                        metavar="K,...", help="of the rows; adaptive: as many as the server finds best")
    parser.add_argument("--min-accuracy", type=float, default=0.99)
    parser.add_argument("--min-acceptance-length", type=float, default=3.5)
    parser.add_argument("--acceptance-k", type=int, default=3, metavar="K",
                        help="the k that --min-acceptance-length is for (default: 3)")
    parser.add_argument("--equal-on-processor", type=int, default=0, metavar="N",
                        help="also ask a server on the processor; N texts must be equal at least")
    parser.add_argument("--start-timeout", type=float, default=120, metavar="SECONDS")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--report", metavar="FILE", help="write what is printed there too")
    parser.add_argument("server_args", nargs="*", metavar="-- FLAG ...", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.problems < 1:
        parser.error("--problems: at least 1")
    return args


def main():
    args = parse_arguments()

    def stop(*_):
        raise ServerError("stopped by SIGTERM")  # the server is stopped on the way out

    signal.signal(signal.SIGTERM, stop)
    try:
        rows, failures = evaluate(args)
        beside = ""
        if args.equal_on_processor > 0:
            beside, lacking = compare_with_processor(args, rows[0].texts)
            failures += lacking
    except (ServerError, OSError, http.client.HTTPException) as error:
        print(f"evaluate.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("evaluate.py: interrupted", file=sys.stderr)
        return 2
    text = report(rows, failures, args, beside)
    print(text, end="")
    if args.report:
        pathlib.Path(args.report).write_text(text, encoding="utf-8")
    if args.json:
        write_json(args.json, rows, failures, args)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
