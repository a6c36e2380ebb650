#!/usr/bin/env python3
"""Times the first token of long conversations that return after others took their place in the KV cache.

Three conversations of 30,000 tokens take turns before `outrider serve`, whose cache holds one of
them: each comes back with an answer of 200 tokens and a question of 50, and finds its pages in host
memory (--kv-offload-memory-bytes). Then the same prompts are sent under a cache_salt of their own,
which finds nothing and computes all again. Prints a line of a Markdown table: medians of the time from
request to first token, and their ratio. In the first round the pages of another conversation are
copied out while a conversation comes back; in later ones they are in host memory already.

Without MODEL it is the shape of GLM-4.7-Flash with random weights on a GPU, half a minute on an H200.
Exit status 0: measured; 1: a first token or its logprob is another than when computed again, or the
pages did not come from host memory; 2: a server failed.

  python3 tools/returning_conversation.py --outrider build/cuda/outrider [--shape V2-Lite]
  python3 tools/returning_conversation.py --tokens 3500 models/tiny-v3-mtp3 [-- option of outrider serve ...]

Needs the Python standard library only.
"""
import argparse
import dataclasses
import json
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

from gpu_goals import ROOT, SHAPES, Bench
from serve_process import Client, Server, ServerError

CONVERSATIONS, ROUNDS = 3, 3
ANSWER, QUESTION = 200, 50
POOL = 1.3     # conversations that the KV cache holds
HOST = 9       # conversations that host memory has room for: what is computed again goes there, too
LEAST = 0.8    # of what a conversation's last turn left that must come from host memory
GIBIBYTE = 1 << 30


class WrongResult(Exception):
    """What the server did is not what is to be timed."""


@dataclasses.dataclass
class Answer:
    seconds: float   # from the request to the first token
    tokens: list     # token ids
    logprob: float   # the first token's


class Conversation:
    def __init__(self, number, tokens, vocab):
        self._draw = random.Random(number)
        self._vocab = vocab
        self.prompt = self.some(tokens)

    def some(self, count):
        return [self._draw.randrange(10, self._vocab) for _ in range(count)]

    def go_on(self, answer):
        self.prompt += answer.tokens + self.some(QUESTION)


def ask(client, prompt, count, salt=None):
    body = dict(prompt=prompt, max_tokens=count, temperature=0, ignore_eos=True, logprobs=1, stream=True,
                return_token_ids=True, **(dict(cache_salt=salt) if salt else {}))
    begin, first, tokens, logprobs = time.monotonic(), None, [], []
    for event in client.events("/v1/completions", body):
        if not event.get("choices"):
            continue
        choice = event["choices"][0]
        if choice["token_ids"] and first is None:
            first = time.monotonic() - begin
        tokens += choice["token_ids"]
        logprobs += (choice["logprobs"] or {}).get("token_logprobs", [])
    if len(tokens) != count:
        raise ServerError(f"{len(tokens)} tokens came, not {count}")
    return Answer(first, tokens, logprobs[0])


def tokens_from_host(client):
    """Prompt tokens that came back from host memory since the start."""
    _, text = client.call("GET", "/metrics")
    found = re.search(r"^vllm:external_prefix_cache_hits_total\S* (\S+)$", text, re.MULTILINE)
    if not found:
        raise ServerError("/metrics has no vllm:external_prefix_cache_hits_total")
    return float(found[1])


def come_back(client, conversation):
    """The answer to a turn whose pages must have left the KV cache."""
    before = tokens_from_host(client)
    answer = ask(client, conversation.prompt, ANSWER)
    found = tokens_from_host(client) - before
    left = len(conversation.prompt) - ANSWER - QUESTION  # an answer is not kept over a latent cache
    if found < LEAST * left:
        raise WrongResult(f"{found:.0f} of {left} tokens came back from host memory")
    return answer


def compare(answer, again):
    if (answer.tokens[0], answer.logprob) != (again.tokens[0], again.logprob):
        raise WrongResult(f"token {answer.tokens[0]} with logprob {answer.logprob}; computed again "
                          f"{again.tokens[0]} with {again.logprob}")


def measure(client, tokens, vocab):
    """Seconds to the first token: ([while others' pages are copied out], [later], [computed again])."""
    start = tokens - ROUNDS * (ANSWER + QUESTION)
    talks = [Conversation(number, start, vocab) for number in range(CONVERSATIONS)]
    ask(client, Conversation(-1, start, vocab).prompt, ANSWER, "what happens once")
    for talk in talks:
        talk.go_on(ask(client, talk.prompt, ANSWER))
    rounds, answers = [], []
    for number in range(ROUNDS):
        answers = [come_back(client, talk) for talk in talks]
        rounds.append([answer.seconds for answer in answers])
        if number + 1 < ROUNDS:
            for talk, answer in zip(talks, answers, strict=True):
                talk.go_on(answer)
    again = [ask(client, talk.prompt, 1, f"new {number}") for number, talk in enumerate(talks)]
    for answer, other in zip(answers, again, strict=True):
        compare(answer, other)
    return rounds[0], sum(rounds[1:], []), [answer.seconds for answer in again]


def bytes_of(outrider, model, flags, tokens):
    """Of the KV cache of so many tokens, with what drafters keep."""
    # A cache that is smaller than a context is refused, so the context is a short one.
    command = [outrider, "explain", model, *flags, "--max-model-len", "256",
               "--kv-cache-memory-bytes", str(GIBIBYTE), "--json"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise ServerError(f"{' '.join(map(str, command))}:\n{done.stderr.strip()}")
    memory = json.loads(done.stdout)["memory"]
    return tokens * GIBIBYTE * memory["kv_bytes_per_token"] // memory["kv_cache_bytes"]


def run(arguments, model, flags, name):
    flags = list(map(str, flags))
    size = bytes_of(arguments.outrider, model, flags, arguments.tokens)
    sizes = ["--max-model-len", str(arguments.tokens + ANSWER), "--kv-cache-memory-bytes", str(int(POOL * size)),
             "--kv-offload-memory-bytes", str(HOST * size)]
    with Server(arguments.outrider, model, [*flags, *sizes]) as server:
        first, later, again = measure(Client(server.address), arguments.tokens, arguments.vocab)
    milliseconds = [1e3 * statistics.median(times) for times in (first, later, again)]
    print("| conversation | comes back while another is copied out, ms | comes back, ms | computed again, ms "
          "| of it |\n|---|---|---|---|---|")
    print(f"| {name}, {arguments.tokens:,} tokens, {size / 1e9:.2f} GB | "
          + " | ".join(f"{value:.0f}" for value in milliseconds)
          + f" | {milliseconds[0] / milliseconds[2]:.3f}; {milliseconds[1] / milliseconds[2]:.3f} |")


def main():
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    flags = sys.argv[end + 1:]
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outrider", default=ROOT / "build/release/outrider", metavar="FILE",
                        help="the program (default: build/release/outrider)")
    parser.add_argument("--shape", choices=SHAPES, default="GLM-4.7-Flash", help="without MODEL (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=30_000, help="of a conversation (default: %(default)s)")
    parser.add_argument("--vocab", type=int, default=1500,
                        help="prompts draw from so many tokens (default: %(default)s)")
    parser.add_argument("model", nargs="?", type=pathlib.Path)
    arguments = parser.parse_args(sys.argv[1:end])
    if arguments.tokens < 2 * ROUNDS * (ANSWER + QUESTION):
        parser.error(f"--tokens must be at least {2 * ROUNDS * (ANSWER + QUESTION)}")
    try:
        if arguments.model:
            run(arguments, arguments.model, flags, arguments.model.name)
        else:
            with tempfile.TemporaryDirectory() as directory:
                model, *shape = Bench(arguments.outrider, directory).shape(arguments.shape)
                run(arguments, model, [*shape, "--device", "cuda", *flags], arguments.shape)
    except WrongResult as error:
        print(f"returning_conversation.py: {error}", file=sys.stderr)
        return 1
    except (ServerError, OSError) as error:
        print(f"returning_conversation.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
