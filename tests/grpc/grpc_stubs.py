"""The Python client of vLLM's services, generated from src/outrider/grpc/proto, and a server to talk to."""

import importlib
import json
import pathlib
import sys
import tempfile
import urllib.request

import grpc
import grpc_tools
from grpc_tools import protoc

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import serve_process  # noqa: E402

MODEL = ROOT / "models" / "tiny-v3-mtp3"
PROTO = ROOT / "src" / "outrider" / "grpc" / "proto"


def generate():
    """The modules inference_pb2, inference_pb2_grpc, control_pb2, control_pb2_grpc."""
    names = ["inference", "control"]
    with tempfile.TemporaryDirectory() as directory:
        own = pathlib.Path(grpc_tools.__file__).parent / "_proto"
        status = protoc.main(["protoc", f"-I{PROTO}", f"-I{own}", f"--python_out={directory}",
                              f"--grpc_python_out={directory}", *(f"{name}.proto" for name in names)])
        if status != 0:
            raise RuntimeError(f"protoc ended with status {status}")
        sys.path.insert(0, directory)
        modules = [importlib.import_module(name + suffix) for name in names for suffix in ("_pb2", "_pb2_grpc")]
        sys.path.remove(directory)
    return modules


pb, inference_rpc, control_pb, control_rpc = generate()


class Server:
    """`outrider serve` with gRPC, on entering the context."""

    def __init__(self, program, flags=()):
        self.port = serve_process.free_port()
        self._server = serve_process.Server(
            program, MODEL, ["--device", "cpu", "--kv-cache-memory-bytes", "64M", "--served-model-name", "tiny",
                             "--served-model-name", "alias", "--grpc-port", str(self.port), *flags])

    def __enter__(self):
        self._server.__enter__()
        self.channel = self.connect()
        self.inference = inference_rpc.InferenceStub(self.channel)
        self.control = control_rpc.ControlStub(self.channel)
        return self

    def __exit__(self, *_):
        self.channel.close()
        self._server.__exit__()

    def connect(self):
        return grpc.insecure_channel(f"127.0.0.1:{self.port}", options=[
            ("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)])

    @property
    def process(self):
        return self._server

    def http(self, method, path, body=None, key="-"):
        """The parsed answer of a request over HTTP, which must succeed."""
        request = urllib.request.Request(
            self._url + path, method=method, data=body and json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.loads(answer.read())

    def metrics(self):
        with urllib.request.urlopen(self._url + "/metrics", timeout=120) as answer:
            return answer.read().decode()

    @property
    def _url(self):
        host, port = self._server.address
        return f"http://{host}:{port}"

    def running(self):
        """How many requests run or wait, as HTTP tells."""
        return self.http("GET", "/v1/loads")["aggregate"]["total_reqs"]
