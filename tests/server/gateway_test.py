#!/usr/bin/env python3
"""SGLang's gateway and vLLM's router (tests/requirements_operators.txt) before two servers of the bundled model: what
comes through them is what a server says by itself.

    gateway_test.py --outrider build/.../outrider
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
MESSAGES = [{"role": "user", "content": "Ada has 12 apples and buys 7 more. How many apples does Ada have now?"}]


def call(url, body=None):
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.read().decode()


def server():
    return serve_process.Server(OUTRIDER, ROOT / "models" / MODEL, ["--num-threads", "1", "--served-model-name", MODEL])


class Gateway:
    def __init__(self, module, workers, policy):
        self.url = f"http://127.0.0.1:{serve_process.free_port()}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{module}.launch_router", "--port", self.url.rpartition(":")[2],
             "--prometheus-port", str(serve_process.free_port()), "--policy", policy, "--worker-urls", *workers],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self):
        for _ in range(300):
            try:
                call(f"{self.url}/readiness")
                return self
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        self.__exit__()
        raise AssertionError("the gateway has not become ready")

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()


class GatewayTest(unittest.TestCase):
    def check(self, module, policy):
        fields = {"model": MODEL, "temperature": 0, "max_tokens": 30}
        with server() as first, server() as second:
            urls = ["http://{}:{}".format(*one.address) for one in (first, second)]
            with Gateway(module, urls, policy) as gateway:
                for path, body in (("/v1/chat/completions", {**fields, "messages": MESSAGES}),
                                   ("/v1/completions", {**fields, "prompt": "Ada has"})):
                    alone = json.loads(call(urls[0] + path, body))["choices"][0]
                    for _ in range(4):
                        self.assertEqual(json.loads(call(gateway.url + path, body))["choices"][0], alone)
                    events = call(gateway.url + path, {**body, "stream": True}).split("\n\n")
                    parts = [json.loads(event[6:])["choices"][0] for event in events if event.startswith("data: {")]
                    text = "".join(part["text"] if "text" in part else part["delta"].get("content") or "" for part in parts)
                    self.assertEqual(text, alone["text"] if "text" in alone else alone["message"]["content"])
                native = {"text": "Ada has", "sampling_params": {"temperature": 0, "max_new_tokens": 9}}
                self.assertEqual(json.loads(call(gateway.url + "/generate", native))["text"],
                                 json.loads(call(urls[0] + "/generate", native))["text"])
                if module == "sglang_router":  # vLLM's router reads no load from SGLang's form
                    for worker in json.loads(call(f"{gateway.url}/get_loads"))["workers"]:
                        self.assertGreaterEqual(worker["load"], 0)

    def test_sglangs_gateway(self):
        self.check("sglang_router", "cache_aware")

    def test_sglangs_gateway_by_load(self):
        self.check("sglang_router", "power_of_two")

    def test_vllms_router(self):
        self.check("vllm_router", "cache_aware")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--outrider", required=True)
    arguments, rest = parser.parse_known_args()
    OUTRIDER = arguments.outrider
    unittest.main(argv=[sys.argv[0], *rest])
