"""What the gRPC server does besides answering: health, control, aborts, keys, hostile requests, its end.
Longer than most files: one case per fault.

    grpc_server_test.py --outrider build/.../outrider
"""

import argparse
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import grpc
from google.protobuf import struct_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

import grpc_stubs
from grpc_stubs import control_pb, pb

PROGRAM = ""
Code = grpc.StatusCode
Serving = health_pb2.HealthCheckResponse.ServingStatus
SERVICES = ("", "vllm.Inference", "vllm.Control")
LONG = {"max_new_tokens": 3000, "ignore_eos": True}


def request(text="1 + 1 =", stopping=None, **fields):
    return pb.GenerateRequest(text=text, stopping=pb.StoppingCriteria(**(stopping or {"max_new_tokens": 4})), **fields)


def eventually(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


class Case(unittest.TestCase):
    FLAGS = ()

    @classmethod
    def setUpClass(cls):
        cls.server = grpc_stubs.Server(PROGRAM, cls.FLAGS)
        cls.server.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def expect(self, code, call, *words):
        """`call` fails with the code and a message that has the words."""
        with self.assertRaises(grpc.RpcError) as caught:
            result = call()
            if hasattr(result, "__iter__"):
                list(result)
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        for word in words:
            self.assertIn(word, caught.exception.details())

    def refuses(self, code, asked, *words):
        self.expect(code, lambda: self.server.inference.Generate(asked, timeout=60), *words)
        self.expect(code, lambda: self.server.inference.GenerateStream(asked, timeout=60), *words)


class GrpcServerTest(Case):
    FLAGS = ("--kv-events-config", '{"endpoint": "tcp://127.0.0.1:*", "topic": "kv@pod@tiny", "hwm": 77}')

    def test_health_and_reflection(self):
        health = health_pb2_grpc.HealthStub(self.server.channel)
        for name in SERVICES:
            self.assertEqual(health.Check(health_pb2.HealthCheckRequest(service=name)).status, Serving.SERVING)
        self.expect(Code.NOT_FOUND, lambda: health.Check(health_pb2.HealthCheckRequest(service="vllm.Nothing")))
        known = ProtoReflectionDescriptorDatabase(self.server.channel)
        self.assertLessEqual({"vllm.Inference", "vllm.Control", "grpc.health.v1.Health"}, set(known.get_services()))
        self.assertEqual(known.FindFileContainingSymbol("vllm.GenerateRequest").package, "vllm")

    def test_control(self):
        control = self.server.control
        info = control.GetServerInfo(control_pb.GetServerInfoRequest())
        http = self.server.http("GET", "/server_info")
        self.assertEqual(info.api_version, "vllm")
        self.assertEqual(info.engine_version, http["version"])
        self.assertEqual(info.max_model_len, http["context_length"])
        self.assertEqual(info.kv_block_size, http["page_size"])
        self.assertEqual(info.total_kv_blocks * info.kv_block_size, http["max_total_num_tokens"])
        self.assertEqual(info.max_running_requests, http["max_running_requests"])
        self.assertGreater(info.max_batched_tokens, 0)
        sizes = info.parallelism
        self.assertEqual((sizes.tensor_parallel_size, sizes.data_parallel_size, sizes.data_parallel_rank,
                          sizes.world_size), (1, 1, 0, 1))
        self.assertEqual(info.instance_id, control.GetServerInfo(control_pb.GetServerInfoRequest()).instance_id)
        model = control.GetModelInfo(control_pb.GetModelInfoRequest())
        self.assertEqual(model.model_id, str(grpc_stubs.MODEL))
        self.assertEqual((model.served_model_name, list(model.served_model_aliases)), ("tiny", ["alias"]))
        self.assertTrue(model.supports_text_input and model.supports_token_ids_input)
        self.assertFalse(model.supports_lora or model.supports_multimodal)
        (source,) = control.GetKvEventSources(control_pb.GetKvEventSourcesRequest()).sources
        self.assertEqual((source.transport, source.encoding, source.topic, source.hwm, source.data_parallel_rank),
                         ("zmq", "msgpack", "kv@pod@tiny", 77, 0))
        self.assertTrue(source.endpoint.startswith("tcp://"))
        self.assertFalse(control.IsPaused(control_pb.IsPausedRequest()).paused)
        self.assertFalse(control.IsSleeping(control_pb.IsSleepingRequest()).sleeping)
        self.assertEqual(control.GetWeightVersion(control_pb.GetWeightVersionRequest()).weight_version, "default")

    def test_models(self):
        for model in ("", "tiny", "alias"):
            self.assertEqual(self.server.inference.Generate(request(model=model)).outputs.num_tokens, 4)
        self.refuses(Code.NOT_FOUND, request(model="other"), "other", "tiny")

    def test_abort(self):
        stream = self.server.inference.GenerateStream(request(stopping=LONG, request_id="to-be-aborted"))
        next(stream), next(stream)  # the prompt, and the first tokens
        abort = control_pb.AbortRequest(request_ids=["unknown", "to-be-aborted"])
        self.server.control.Abort(abort)
        last = list(stream)[-1].outputs
        self.assertEqual(last.finish_info.finish_reason, pb.FinishInfo.ABORTED)
        self.assertLess(last.finish_info.num_output_tokens, 3000)
        self.server.control.Abort(abort)  # it has ended
        self.server.control.Abort(control_pb.AbortRequest())
        # HTTP's route knows these requests, too.
        stream = self.server.inference.GenerateStream(request(stopping=LONG, request_id="by-http"))
        next(stream), next(stream)
        self.assertEqual(self.server.http("POST", "/abort", {"request_id": "by-http"}), {"aborted": 1})
        self.assertEqual(list(stream)[-1].outputs.finish_info.finish_reason, pb.FinishInfo.ABORTED)

    def test_whoever_leaves_has_no_request_left(self):
        left = self.server.inference.GenerateStream(request(stopping=LONG))
        next(left), next(left)
        self.assertEqual(self.server.running(), 1)
        left.cancel()
        self.assertTrue(eventually(lambda: self.server.running() == 0))
        whole = self.server.inference.Generate.future(request(stopping=LONG))
        self.assertTrue(eventually(lambda: self.server.running() == 1))
        whole.cancel()
        self.assertTrue(eventually(lambda: self.server.running() == 0))
        self.expect(Code.DEADLINE_EXCEEDED,
                    lambda: self.server.inference.Generate(request(stopping=LONG), timeout=0.2))
        self.assertTrue(eventually(lambda: self.server.running() == 0))
        channel = self.server.connect()
        stream = grpc_stubs.inference_rpc.InferenceStub(channel).GenerateStream(request(stopping=LONG))
        next(stream), next(stream)
        channel.close()
        self.assertTrue(eventually(lambda: self.server.running() == 0))

    def test_calls_may_be_left_at_any_time(self):
        for number in range(20):
            calls = [self.server.inference.GenerateStream(request(stopping=LONG)) for _ in range(10)]
            calls += [self.server.inference.Generate.future(request(stopping=LONG)) for _ in range(10)]
            time.sleep(0.005 * number)
            for call in calls:
                call.cancel()
        self.assertTrue(eventually(lambda: self.server.running() == 0))
        self.assertEqual(self.server.inference.Generate(request()).outputs.num_tokens, 4)

    def test_a_slow_reader_holds_up_nobody(self):
        slow = self.server.inference.GenerateStream(request(stopping=LONG, response=pb.ResponseOptions(
            output_logprobs=True, output_candidates=pb.CandidateTokens(top_n=20))))
        for _ in range(5):
            self.assertEqual(self.server.inference.Generate(request()).outputs.num_tokens, 4)
        self.assertTrue(eventually(lambda: self.server.running() == 0, 60))
        messages = list(slow)
        self.assertEqual(sum(message.outputs.num_tokens for message in messages), 3000)
        self.assertEqual(sum(len(message.outputs.candidate_tokens) for message in messages), 3000)

    def test_requests_that_make_no_sense(self):
        bad, sampling, decoding, stopping = Code.INVALID_ARGUMENT, pb.RandomSampling, pb.DecodingParameters, \
            pb.StoppingCriteria
        nan, infinity = float("nan"), float("inf")
        vocabulary = 1 << 31
        nested = struct_pb2.Struct()
        nested["remote_host"] = "10.0.0.1"
        for asked, *words in (
            (pb.GenerateRequest(), "prompt"),
            (pb.GenerateRequest(token_ids=pb.TokenIds()), "empty"),
            (pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1, vocabulary])), "token_ids", str(vocabulary)),
            (pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1] * 5000)), "5000 tokens"),
            (request(temperature=nan), "temperature", "finite"),
            (request(temperature=-1), "temperature", "-1"),
            (request(sampling=sampling(top_p=infinity)), "top_p", "finite"),
            (request(sampling=sampling(top_p=1.5)), "sampling.top_p", "from 0 to 1"),
            (request(sampling=sampling(min_p=-0.5)), "sampling.min_p"),
            (request(sampling=sampling(top_k=(1 << 32) - 1)), "sampling.top_k"),
            (request(sampling=sampling(num_sequences=1 << 20)), "sampling.num_sequences"),
            (request(decoding=decoding(presence_penalty=3)), "decoding.presence_penalty", "from -2 to 2"),
            (request(decoding=decoding(logit_bias={7: nan})), "decoding.logit_bias"),
            (request(decoding=decoding(logit_bias={vocabulary: 1})), "decoding.logit_bias", str(vocabulary)),
            (request(decoding=decoding(allowed_token_ids=[vocabulary])), "decoding.allowed_token_ids"),
            (request(decoding=decoding(regex="(")), "decoding.regex"),
            (request(decoding=decoding(json="{")), "decoding.json", "JSON"),
            (request(decoding=decoding(grammar="")), "decoding.grammar"),
            (request(decoding=decoding(choice=decoding.StringChoices())), "decoding.choice"),
            (request(stopping={"max_new_tokens": 1 << 20}), "stopping.max_new_tokens", "left of"),
            (request(stopping={"max_new_tokens": 4, "min_new_tokens": 5}), "stopping.min_new_tokens"),
            (request(stopping={"stop_strings": ["x"] * 17}), "stopping.stop_strings", "17"),
            (request(stopping={"stop_strings": [""]}), "stopping.stop_strings"),
            (request(stopping={"stop_token_ids": [vocabulary]}), "stopping.stop_token_ids"),
            (request(response=pb.ResponseOptions(output_logprobs=True, output_candidates=pb.CandidateTokens(
                top_n=21))), "response.output_candidates", "20"),
            (request(response=pb.ResponseOptions(output_logprobs=True, output_candidates=pb.CandidateTokens(
                all=True))), "response.output_candidates", "20"),
            (request(response=pb.ResponseOptions(prompt_logprobs=True, prompt_candidates=pb.CandidateTokens(
                token_ids=pb.TokenIds(ids=[5])))), "response.prompt_candidates", "top_n"),
            (request(request_id="no blanks"), "request_id"),
            (request(request_id="x" * 129), "request_id"),
            (request(priority=-(1 << 31)), "priority"),
            (request(lora_name="adapter"), "lora_name"),
            (request(media=[pb.MediaItem(url="http://example.org/x.png")]), "media"),
            (request(kv=pb.KVCacheParameters(kv_transfer_params=nested)), "kv.kv_transfer_params"),
            (request(kv=pb.KVCacheParameters(ec_transfer_params=nested)), "kv.ec_transfer_params"),
        ):
            with self.subTest(words=words):
                self.refuses(bad, asked, *words)
        self.expect(bad, lambda: self.server.inference.Generate(request(sampling=sampling(num_sequences=2))),
                    "sampling.num_sequences", "GenerateStream")
        self.expect(bad, lambda: self.server.inference.Generate(request(), metadata=[("x-data-parallel-rank", "1")]),
                    "x-data-parallel-rank")
        self.server.inference.Generate(request(), metadata=[("x-data-parallel-rank", "0")])
        self.assertTrue(eventually(lambda: self.server.running() == 0))

    def raw(self, method, data, timeout=60):
        return self.server.channel.unary_unary(method)(data, timeout=timeout)

    def test_bytes_that_are_no_request(self):
        generate = "/vllm.Inference/Generate"
        whole = request().SerializeToString()
        nested = b""
        for _ in range(2000):  # lists within lists
            nested = b"\x32" + length(nested) + nested
            nested = b"\x0a" + length(nested) + nested
        nested = b"\x32" + length(nested) + nested
        value = b"\x0a\x01a\x12" + length(nested) + nested  # a map's entry
        deep = b"\x0a" + length(value) + value
        deep = b"\x1a" + length(deep) + deep  # kv_transfer_params
        for data, *words in (
            (b"\xff" * 64, "GenerateRequest"),
            (whole[:-1], "GenerateRequest"),
            (b"\x1a\x02\xff\xfe", "UTF-8"),  # the text
            (whole + b"\x52" + length(deep) + deep, "GenerateRequest"),
            (whole + b"\x82\x01\x02{}", "field 16 of vllm.GenerateRequest", "not known"),
            (whole + b"\x42\x03\xd0\x05\x01", "field 90 of vllm.StoppingCriteria", "not known"),
        ):
            with self.subTest(words=words):
                self.expect(Code.INVALID_ARGUMENT, lambda data=data: self.raw(generate, data), *words)
        self.expect(Code.RESOURCE_EXHAUSTED, lambda: self.raw(generate, bytes(33 << 20)))
        self.expect(Code.UNIMPLEMENTED, lambda: self.raw("/vllm.Inference/Nothing", b""))
        self.expect(Code.UNIMPLEMENTED, lambda: self.raw("/vllm.Control/PauseGeneration", b""))
        for line in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes(range(256)) * 64,
                     b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 300):
            with socket.create_connection(("127.0.0.1", self.server.port)) as connection:
                connection.settimeout(20)
                try:
                    connection.sendall(line)
                    while connection.recv(4096):
                        pass
                except OSError:
                    pass  # closed in the middle
        # A large request that is refused only after it was read.
        large = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1] * (2 << 20)))
        self.expect(Code.INVALID_ARGUMENT, lambda: self.server.inference.Generate(large), "tokens")
        self.assertEqual(self.server.inference.Generate(request()).outputs.num_tokens, 4)

    def test_request_ids_and_metrics(self):
        _, call = self.server.inference.Generate.with_call(request(), metadata=[("x-request-id", "my-id")])
        self.assertIn(("x-request-id", "my-id"), list(call.initial_metadata()))
        finished = next(line for line in self.server.metrics().splitlines()
                        if line.startswith("vllm:request_success_total") and 'finished_reason="length"' in line)
        self.assertGreater(float(finished.split()[-1]), 0)


def length(data):
    """A varint of its size."""
    size, out = len(data), b""
    while size >= 0x80:
        out += bytes([size & 0x7F | 0x80])
        size >>= 7
    return out + bytes([size])


class KeysTest(Case):
    FLAGS = ("--api-key", "one", "--api-key", "two", "--max-num-reqs-per-key", "1")

    def test_keys(self):
        def bring(key):
            return [("authorization", f"Bearer {key}")]

        inference, control = self.server.inference, self.server.control
        for metadata in (None, bring("three"), [("authorization", "one")], [("x-api-key", "o")]):
            self.expect(Code.UNAUTHENTICATED, lambda m=metadata: inference.Generate(request(), metadata=m), "API key")
            self.expect(Code.UNAUTHENTICATED, lambda m=metadata: inference.GenerateStream(request(), metadata=m))
            for call, asked in ((control.GetServerInfo, control_pb.GetServerInfoRequest()),
                                (control.GetModelInfo, control_pb.GetModelInfoRequest()),
                                (control.Abort, control_pb.AbortRequest(request_ids=["mine"])),
                                (control.GetKvEventSources, control_pb.GetKvEventSourcesRequest()),
                                (control.IsPaused, control_pb.IsPausedRequest()),
                                (control.IsSleeping, control_pb.IsSleepingRequest()),
                                (control.GetWeightVersion, control_pb.GetWeightVersionRequest())):
                self.expect(Code.UNAUTHENTICATED, lambda c=call, a=asked, m=metadata: c(a, metadata=m))
        health = health_pb2_grpc.HealthStub(self.server.channel)
        self.assertEqual(health.Check(health_pb2.HealthCheckRequest()).status, Serving.SERVING)
        self.assertEqual(inference.Generate(request(), metadata=[("x-api-key", "two")]).outputs.num_tokens, 4)
        stream = inference.GenerateStream(request(stopping=LONG, request_id="mine"), metadata=bring("one"))
        next(stream), next(stream)
        self.expect(Code.RESOURCE_EXHAUSTED, lambda: inference.Generate(request(), metadata=bring("one")), "1 requests")
        self.assertEqual(inference.Generate(request(), metadata=bring("two")).outputs.num_tokens, 4)
        abort = control_pb.AbortRequest(request_ids=["mine"])
        control.Abort(abort, metadata=bring("two"))  # is another's
        self.assertEqual(next(stream).outputs.finish_info.finish_reason, pb.FinishInfo.NOT_FINISHED)
        control.Abort(abort, metadata=bring("one"))
        self.assertEqual(list(stream)[-1].outputs.finish_info.finish_reason, pb.FinishInfo.ABORTED)
        self.assertTrue(eventually(lambda: self.can_ask(bring("one"))))

    def can_ask(self, metadata):
        try:
            return self.server.inference.Generate(request(), metadata=metadata).outputs.num_tokens == 4
        except grpc.RpcError:
            return False


class FullTest(Case):
    FLAGS = ("--max-num-seqs", "1", "--max-num-queued-reqs", "1", "--ignore-unknown-fields")

    def test_a_queue_that_is_full(self):
        running = self.server.inference.GenerateStream(request(stopping=LONG))
        next(running), next(running)
        waiting = self.server.inference.GenerateStream(request(stopping=LONG))
        self.assertTrue(eventually(lambda: self.server.running() == 2))
        self.refuses(Code.RESOURCE_EXHAUSTED, request(), "wait")
        waiting.cancel(), running.cancel()
        self.assertTrue(eventually(lambda: self.server.running() == 0))

    def test_unknown_fields_can_be_ignored(self):
        answer = self.server.channel.unary_unary("/vllm.Inference/Generate")(
            request().SerializeToString() + b"\x82\x01\x02{}")
        self.assertEqual(pb.GenerateResponse.FromString(answer).outputs.num_tokens, 4)


class StopTest(unittest.TestCase):
    expect = Case.expect

    def test_drains_as_http_does(self):
        with grpc_stubs.Server(PROGRAM, ["--shutdown-timeout", "200"]) as server:
            health = health_pb2_grpc.HealthStub(server.channel)
            seen = []
            watch = health.Watch(health_pb2.HealthCheckRequest(service="vllm.Inference"))
            threading.Thread(target=lambda: collect(watch, seen), daemon=True).start()
            stream = server.inference.GenerateStream(request(stopping=LONG))
            next(stream), next(stream)
            os.kill(server.process.pid, signal.SIGTERM)
            self.assertTrue(eventually(lambda: Serving.NOT_SERVING in seen), seen)
            for name in SERVICES:
                self.assertEqual(health.Check(health_pb2.HealthCheckRequest(service=name)).status, Serving.NOT_SERVING)
            self.expect(Code.UNAVAILABLE, lambda: server.inference.Generate(request()), "shutting down")
            self.expect(Code.UNAVAILABLE, lambda: server.inference.GenerateStream(request()), "shutting down")
            finish = list(stream)[-1].outputs.finish_info
            self.assertEqual((finish.finish_reason, finish.num_output_tokens), (pb.FinishInfo.LENGTH, 3000))
            server.process.wait_for_end(10)
            self.assertEqual(server.process.ending(), "")

    def test_what_takes_too_long_is_cancelled(self):
        with grpc_stubs.Server(PROGRAM, ["--shutdown-timeout", "0.3", "--max-num-seqs", "1"]) as server:
            running = server.inference.GenerateStream(request(stopping=LONG))
            next(running), next(running)
            waiting = [server.inference.Generate.future(request(stopping=LONG)) for _ in range(3)]
            self.assertTrue(eventually(lambda: server.running() == 4))
            begin = time.monotonic()
            os.kill(server.process.pid, signal.SIGTERM)
            self.expect(Code.UNAVAILABLE, lambda: running, "shutting down")
            for call in waiting:
                self.expect(Code.UNAVAILABLE, call.result, "shutting down")
            server.process.wait_for_end(10)
            self.assertLess(time.monotonic() - begin, 4)
            self.assertEqual(server.process.ending(), "")

    def test_an_address_that_cannot_be_had(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            for flags, words in ((["--port", "0", "--grpc-port", port], "in use"),
                                 (["--port", "18999", "--grpc-port", "18999"], "--grpc-port: 18999 is --port, too"),
                                 (["--grpc-port", "70000"], "--grpc-port")):
                run = subprocess.run([PROGRAM, "serve", str(grpc_stubs.MODEL), *flags], capture_output=True,
                                     text=True, timeout=60, check=False)
                self.assertEqual(run.returncode, 2, run.stderr)
                self.assertIn(words, run.stderr.splitlines()[-1])
                self.assertNotIn("Loading", run.stderr)

    def test_tls(self):
        with tempfile.TemporaryDirectory() as directory:
            key, certificate = (pathlib.Path(directory) / name for name in ("key.pem", "certificate.pem"))
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
                            "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                            "-keyout", key, "-out", certificate], check=True, capture_output=True)
            port, grpc_port = (grpc_stubs.serve_process.free_port() for _ in range(2))
            with open(pathlib.Path(directory) / "log", "w", encoding="utf-8") as log:
                process = subprocess.Popen(
                    [PROGRAM, "serve", str(grpc_stubs.MODEL), "--device", "cpu", "--port", str(port), "--grpc-port",
                     str(grpc_port), "--ssl-certfile", str(certificate), "--ssl-keyfile", str(key),
                     "--kv-cache-memory-bytes", "64M"], stderr=log)
            try:
                credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
                with grpc.secure_channel(f"localhost:{grpc_port}", credentials) as channel:
                    answer = grpc_stubs.inference_rpc.InferenceStub(channel).Generate(
                        request(), wait_for_ready=True, timeout=60)
                    self.assertEqual(answer.outputs.num_tokens, 4)
                with grpc.insecure_channel(f"localhost:{grpc_port}") as channel:
                    self.expect(Code.UNAVAILABLE, lambda: grpc_stubs.inference_rpc.InferenceStub(channel).Generate(
                        request(), timeout=20))
            finally:
                process.terminate()
                self.assertEqual(process.wait(20), 0)


def collect(watch, seen):
    try:
        for answer in watch:
            seen.append(answer.status)
    except grpc.RpcError:
        pass


def main():
    global PROGRAM
    parser = argparse.ArgumentParser()
    parser.add_argument("--outrider", required=True)
    arguments, rest = parser.parse_known_args()
    PROGRAM = arguments.outrider
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
