#!/usr/bin/env python3
"""NVIDIA Dynamo's KV indexer (tests/requirements_operators.txt) reads what a server publishes of its cache,
and knows for every prompt how much of it is cached.

    dynamo_indexer_test.py --outrider build/.../outrider

Needs a Python that has Dynamo's package; the server runs the bundled model.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import serve_process  # noqa: E402

OUTRIDER = ""
MODEL = "tiny-v3-mtp3"
ADMIN_KEY = "admin"
BLOCK = 16
PROMPT = list(range(10, 110))


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(),
                                     {"Content-Type": "application/json", "Authorization": f"Bearer {ADMIN_KEY}"})
    with urllib.request.urlopen(request, timeout=20) as response:
        return json.load(response)


class Indexer:
    """`python -m dynamo.indexer`, which reads worker 1's events."""

    def __init__(self, endpoint):
        self.url = f"http://127.0.0.1:{serve_process.free_port()}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dynamo.indexer", "--block-size", str(BLOCK), "--port", self.url.rpartition(":")[2],
             "--workers", f"1={endpoint}", "--model-name", MODEL],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()

    def cached(self, tokens):
        """How many of them it takes worker 1 to have."""
        answer = post(f"{self.url}/query", {"token_ids": tokens, "model_name": MODEL})
        return answer["scores"].get("1", {}).get("0", 0)

    def wait_for(self, tokens, count, each_time=lambda: None):
        """Raises AssertionError where that does not become `count`."""
        seen = None
        for _ in range(200):
            try:
                each_time()
                seen = self.cached(tokens)
            except (urllib.error.URLError, ConnectionError):
                pass  # it starts
            if seen == count:
                return
            time.sleep(0.05)
        raise AssertionError(f"the indexer knows of {seen} tokens, not of {count}")


class DynamoIndexer(unittest.TestCase):
    def check(self, form, drafts):
        endpoint = f"tcp://127.0.0.1:{serve_process.free_port()}"
        events = {"endpoint": endpoint.replace("127.0.0.1", "*"), "topic": f"kv@1@{MODEL}", "format": form}
        flags = ["--num-threads", "1", "--block-size", str(BLOCK), "--enable-admin-api", ADMIN_KEY,
                 "--kv-events-config", json.dumps(events), "--spec-tokens", str(drafts)]
        with (serve_process.Server(OUTRIDER, ROOT / "models" / MODEL, flags) as server, Indexer(endpoint) as indexer):
            url = "http://{}:{}".format(*server.address)

            def ask(prompt, **fields):
                return post(f"{url}/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 1, **fields})

            # Its socket may come to listen after the first batches.
            first = [[7, 8, number] + [9] * BLOCK for number in range(200)]
            indexer.wait_for(first[0], BLOCK, lambda: (post(f"{url}/flush_cache", {}), ask(first[0])))
            ask(PROMPT)
            indexer.wait_for(PROMPT, 96)
            self.assertEqual(indexer.cached(PROMPT[:32] + [5] * 40), 32)
            self.assertEqual(indexer.cached([5] + PROMPT), 0)
            # What is answered is cached too, and never what was drafted.
            answer = ask(PROMPT, max_tokens=60, ignore_eos=True, return_token_ids=True)
            tokens = answer["choices"][0]["token_ids"]
            turn = PROMPT + tokens + [3] * (BLOCK + 8)  # modules publish a block when tokens behind it are known
            known = indexer.cached(turn)
            hit = ask(turn)["usage"]["prompt_tokens_details"]["cached_tokens"]
            indexer.wait_for(turn, len(turn) // BLOCK * BLOCK)
            # With modules a hit may be a block shorter than what is published.
            self.assertIn(known - hit, (0, BLOCK))
            self.assertGreater(hit, 0)
            post(f"{url}/flush_cache", {})
            indexer.wait_for(PROMPT, 0)

    def test_maps(self):
        self.check("map", 0)

    def test_arrays(self):
        self.check("array", 0)

    def test_with_drafts(self):
        self.check("map", 3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--outrider", required=True)
    arguments, rest = parser.parse_known_args()
    OUTRIDER = arguments.outrider
    unittest.main(argv=[sys.argv[0], *rest])
