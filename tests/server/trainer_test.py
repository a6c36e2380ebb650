"""A small training loop against `outrider serve`: generate, score again, update the weights, generate.

    trainer_test.py --outrider build/.../outrider

Generation is asked for with the openai package. "Training" turns signs of some weights around.
"""

import argparse
import base64
import io
import json
import pathlib
import shutil
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

import numpy
import openai

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import serve_process  # noqa: E402

MODEL = ROOT / "models" / "tiny-v3-mtp3"
PROGRAM = ""
ADMIN = "trainer"


def trained_copy(to, stride):
    """A copy of the model in which every `stride`-th bfloat16 number has another sign."""
    shutil.copytree(MODEL, to)
    for path in to.glob("*.safetensors"):
        data = bytearray(path.read_bytes())
        begin = 8 + int.from_bytes(data[:8], "little")
        for name, tensor in json.loads(data[8:begin]).items():
            if name == "__metadata__" or tensor["dtype"] != "BF16":
                continue
            first, last = (begin + offset for offset in tensor["data_offsets"])
            for i in range(first + 1, last, 2 * stride):
                data[i] ^= 0x80
        path.write_bytes(data)
    return to


class TrainerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.weights = pathlib.Path(cls.directory.name) / "weights"
        cls.weights.mkdir()
        cls.steps = [trained_copy(cls.weights / f"step-{n}", stride) for n, stride in ((1, 5), (2, 7))]
        cls.base_weights = cls.weights / "base"
        shutil.copytree(MODEL, cls.base_weights)
        cls.server = serve_process.Server(
            PROGRAM, MODEL,
            ["--device", "cpu", "--enable-admin-api", ADMIN, "--allowed-weight-dirs", str(cls.weights),
             "--kv-cache-memory-bytes", "64M", "--served-model-name", "tiny",
             "--enable-return-routed-experts"])
        cls.server.__enter__()
        cls.base = f"http://127.0.0.1:{cls.server.address[1]}"
        cls.client = openai.OpenAI(base_url=cls.base + "/v1", api_key="-", max_retries=0, timeout=120)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.__exit__()
        cls.directory.cleanup()

    def call(self, path, body=None, key=ADMIN, method="POST"):
        request = urllib.request.Request(
            self.base + path, method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {key}"})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            return json.loads(error.read())

    def update(self, folder, version):
        return self.call("/update_weights_from_disk", {"model_path": str(folder), "weight_version": version})

    def generate(self, prompt, **fields):
        body = {"max_tokens": 24, "temperature": 1, "logprobs": 0, "extra_body": {"return_token_ids": True,
                "ignore_eos": True}} | fields
        return self.client.completions.create(model="tiny", prompt=prompt, **body).choices[0]

    def score(self, prompt, tokens):
        return self.client.completions.create(
            model="tiny", prompt=prompt + tokens, logprobs=0,
            extra_body={"generated_from": len(prompt), "return_token_ids": True}).choices[0]

    def test_loop(self):
        prompts = [[10 + i, 300 + i, 17, 99, 1000 - i] * (3 + 9 * i) for i in range(4)]
        versions = [(folder, folder.name) for folder in (self.base_weights, *self.steps)]
        seen = []
        for folder, version in versions:
            done = self.update(folder, version)
            self.assertTrue(done["success"], done)
            self.assertEqual(self.call("/model_info", method="GET")["weight_version"], version)
            answers = [self.generate(prompt, seed=7) for prompt in prompts]
            seen.append([answer.token_ids for answer in answers])
            for prompt, answer in zip(prompts, answers):
                self.assertEqual(answer.weight_version, version)
                scored = self.score(prompt, answer.token_ids)
                self.assertEqual(scored.token_ids, answer.token_ids)
                # The ratio of a policy to itself is exactly 1.
                self.assertEqual(scored.logprobs.token_logprobs, answer.logprobs.token_logprobs)
        self.assertNotEqual(seen[0], seen[1])
        self.assertNotEqual(seen[1], seen[2])
        # A folder that is no good leaves the weights as they are.
        bad = self.weights / "bad"
        shutil.copytree(self.steps[0], bad)
        (bad / "model-00002-of-00002.safetensors").unlink()
        failed = self.update(bad, "bad")
        self.assertFalse(failed["success"])
        self.assertIn("model-00002-of-00002.safetensors", failed["message"])
        outside = self.update(MODEL, "base")
        self.assertIn("--allowed-weight-dirs", outside["message"] if "message" in outside
                      else outside["error"]["message"])
        again = [self.generate(prompt, seed=7) for prompt in prompts]
        self.assertEqual([answer.token_ids for answer in again], seen[2])
        self.assertEqual(again[0].weight_version, "step-2")

    def test_a_version_from_the_start(self):
        with serve_process.Server(PROGRAM, MODEL, ["--weight-version", "base", "--device", "cpu"]) as server:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.address[1]}/weight_version") as answer:
                self.assertEqual(json.loads(answer.read()), {"weight_version": "base"})

    def test_a_generation_that_crosses_an_update(self):
        self.update(self.steps[0], "one")
        prompt = list(range(40, 60))
        result = {}

        def run():
            result["answer"] = self.generate(prompt, max_tokens=900, seed=3)

        thread = threading.Thread(target=run)
        thread.start()
        end = time.monotonic() + 60
        while self.call("/v1/loads", method="GET")["aggregate"]["total_running_reqs"] == 0:
            self.assertLess(time.monotonic(), end)
        self.assertEqual(self.call("/pause?mode=keep"), {"status": "paused"})
        self.assertTrue(self.update(self.steps[1], "two")["success"])
        self.assertEqual(self.call("/resume"), {"status": "resumed"})
        thread.join()
        answer = result["answer"]
        self.assertEqual(len(answer.token_ids), 900)
        self.assertEqual(answer.weight_version, "two")
        spans = getattr(answer, "weight_versions", [{"version": "two", "tokens": 900}])
        self.assertEqual(sum(span["tokens"] for span in spans), 900)
        later = spans[-1]["tokens"]
        self.assertEqual(spans[-1]["version"], "two")
        scored = self.score(prompt, answer.token_ids)
        self.assertEqual(scored.logprobs.token_logprobs[-later:], answer.logprobs.token_logprobs[-later:])

    def test_experts_of_tokens(self):
        def load(choice):
            return numpy.load(io.BytesIO(base64.b64decode(choice.routed_experts)))

        prompt = [10, 300, 17, 99, 1000] * 12
        answer = self.generate(prompt, seed=7)
        experts = load(answer)
        config = json.loads((MODEL / "config.json").read_text())
        layers, top_k = config["num_hidden_layers"], config["num_experts_per_tok"]
        self.assertEqual(experts.dtype, numpy.int16)
        self.assertEqual(experts.shape, (60 + 24 - 1, layers, top_k))
        dense = config["first_k_dense_replace"]
        self.assertFalse(experts[:, :dense].any())
        for layer in range(dense, layers):
            self.assertEqual({len(set(row)) for row in experts[:, layer].tolist()}, {top_k})
        self.assertLess(experts.max(), config["n_routed_experts"])

        without_drafts = self.generate(prompt, seed=7, extra_body={
            "return_token_ids": True, "ignore_eos": True, "speculation": {"num_speculative_tokens": 0}})
        self.assertTrue(numpy.array_equal(load(without_drafts), experts))
        self.assertTrue(numpy.array_equal(load(self.score(prompt, answer.token_ids)), experts))

        # The next turn of a conversation: what was told is left out and comes from the cache.
        turn = prompt + answer.token_ids + [5, 6, 7]
        known = len(experts)
        new = self.client.completions.create(
            model="tiny", prompt=turn, max_tokens=4, temperature=0,
            extra_body={"routed_experts_prompt_start": known, "ignore_eos": True})
        self.assertEqual(load(new.choices[0]).shape, (4 + 4 - 1, layers, top_k))
        self.assertGreater(new.usage.prompt_tokens_details.cached_tokens, 0)

        # As SGLang's clients read them.
        meta = self.call("/generate", {"input_ids": prompt, "return_routed_experts": True, "sampling_params": {
            "max_new_tokens": 24, "temperature": 1, "sampling_seed": 7, "ignore_eos": True}})["meta_info"]
        flat = numpy.frombuffer(base64.b64decode(meta["routed_experts"]), dtype=numpy.int32)
        self.assertTrue(numpy.array_equal(flat.reshape(-1, layers, top_k), experts))
        self.assertTrue(self.call("/flush_cache", method="GET")["success"])
        self.assertEqual(self.call("/server_info", method="GET")["tp_size"], 1)

    def test_sleeps_and_wakes(self):
        prompt = list(range(70, 90))
        before = self.generate(prompt, seed=5)
        self.assertEqual(self.call("/sleep?level=1"), {"status": "asleep"})
        self.assertEqual(self.call("/is_sleeping", method="GET"), {"is_sleeping": True})
        self.assertEqual(self.call("/wake_up?tags=weights"), {"status": "awake"})
        self.assertEqual(self.call("/is_sleeping", method="GET"), {"is_sleeping": True})
        self.assertEqual(self.call("/wake_up?tags=kv_cache"), {"status": "awake"})
        self.assertEqual(self.call("/is_sleeping", method="GET"), {"is_sleeping": False})
        self.assertEqual(self.generate(prompt, seed=5).token_ids, before.token_ids)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--outrider", required=True)
    options, rest = parser.parse_known_args()
    PROGRAM = options.outrider
    unittest.main(argv=[sys.argv[0], *rest])
