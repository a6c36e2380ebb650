#!/usr/bin/env python3
"""Times the first token of a chat's second turn: as by default, with --fast-prefix, and without a
prefix cache.

A turn of 500 prompt tokens is answered with 200 or 2,000 tokens; the second prompt is all of it and
50 tokens more. Its time is that of a request for one token. Over a latent cache the default computes
the answer again as a part of the prompt, so that the second turn has the bits of a cold cache; with
--fast-prefix its blocks are reused. Prints a Markdown table of medians, and in how many of the chats
the second turn's logprob differs from that without a cache. Exit status 0: measured; 2: a server
failed.

  python3 tools/second_turn.py --outrider build/release/outrider MODEL [option of outrider serve ...]

Needs the Python standard library only.
"""
import argparse
import random
import statistics
import sys
import time

from serve_process import Client, Server, ServerError

PROMPT, QUESTION = 500, 50
ANSWERS = (200, 2000)
MODES = {"default": [], "--fast-prefix": ["--fast-prefix"],
         "no prefix cache": ["--no-enable-prefix-caching"]}


def generate(client, tokens, count):
    """(tokens of an answer, first logprob, seconds)."""
    begin = time.monotonic()
    answer = client.post("/generate", {
        "token_ids": tokens, "sampling_params": {"max_tokens": count, "temperature": 0,
                                                 "ignore_eos": True, "logprobs": 0}})
    seconds = time.monotonic() - begin
    choice = answer["choices"][0]
    return choice["token_ids"], choice["logprobs"]["content"][0]["logprob"], seconds


def second_turns(client, length, chats, vocab):
    """[(seconds to the second turn's first token, its logprob)]."""
    turns = []
    for chat in range(chats):
        draw = random.Random(f"{length} {chat}")
        prompt = [draw.randrange(10, vocab) for _ in range(PROMPT)]
        question = [draw.randrange(10, vocab) for _ in range(QUESTION)]
        answer, _, _ = generate(client, prompt, length)
        _, logprob, seconds = generate(client, prompt + answer + question, 1)
        turns.append((seconds, logprob))
    return turns


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--outrider", default="build/release/outrider")
    parser.add_argument("--chats", type=int, default=7, help="per length of the answer")
    parser.add_argument("--vocab", type=int, default=1500, help="prompts draw from so many tokens")
    parser.add_argument("model")
    arguments, flags = parser.parse_known_args()
    print(f"| second turn after an answer of | {' | '.join(MODES)} | differ from no cache |")
    print("|---|" + "---|" * (len(MODES) + 1))
    runs = {}
    for mode, own in MODES.items():
        with Server(arguments.outrider, arguments.model, [*flags, *own]) as server:
            client = Client(server.address)
            generate(client, list(range(10, 10 + PROMPT)), 8)  # what happens once
            for length in ANSWERS:
                runs[mode, length] = second_turns(client, length, arguments.chats, arguments.vocab)
    for length in ANSWERS:
        times = [f"{1e3 * statistics.median(s for s, _ in runs[mode, length]):.1f} ms" for mode in MODES]
        cold = [logprob for _, logprob in runs["no prefix cache", length]]
        differ = [f"{sum(a != b for (_, a), b in zip(runs[mode, length], cold))} of {len(cold)}"
                  for mode in list(MODES)[:2]]
        print(f"| {length} tokens | {' | '.join(times)} | {', '.join(differ)} |")


if __name__ == "__main__":
    try:
        main()
    except ServerError as error:
        print(f"second_turn.py: {error}", file=sys.stderr)
        sys.exit(2)
