"""serve_process_test.py OUTRIDER [NAME ...]: what `outrider serve` does as a process: signals, its
log, its start, and what it refuses before it loads anything. NAME: these tests only.
Longer than most files: one case per signal and refusal."""

import contextlib
import http.client
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback

OUTRIDER = sys.argv[1]
MODEL = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..",
                                      "models", "tiny-v3-mtp3"))
FEW = ["--port", "0", "--spec-tokens", "3", "--kv-cache-memory-bytes", "64M", "--num-threads", "1"]
LINES = 8000
TESTS = []


def test(function):
    TESTS.append(function)
    return function


class Server:
    """`outrider serve` that is ready, with the lines that it wrote until then."""

    def __init__(self, *flags, model=MODEL, stderr=subprocess.PIPE, **popen):
        self.process = subprocess.Popen([OUTRIDER, "serve", model, *FEW, *flags], stderr=stderr,
                                        text=True, **popen)
        self.lines = []
        if stderr != subprocess.PIPE:
            return
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            found = re.search(r"ready: .* on https?://[\w.]+:(\d+)/v1", line)
            if found:
                self.port = int(found.group(1))
                return
        raise AssertionError("it ended with %s:\n%s" % (self.process.wait(), "\n".join(self.lines)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stderr:
            self.process.stderr.close()

    def ask(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        headers.setdefault("Content-Type", "application/json")
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text

    def chat(self, text="How many?", **fields):
        return self.ask("POST", "/v1/chat/completions", {
            "messages": [{"role": "user", "content": text}], "max_tokens": 4, **fields})

    def end(self, number=signal.SIGTERM):
        """Its status, and what it wrote since it was ready."""
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=60)
        return self.process.returncode, rest.splitlines()


def refused(*arguments, environment=None, **popen):
    """What a command that ends with status 2 writes to standard error."""
    run = subprocess.run([OUTRIDER, *arguments], capture_output=True, text=True, timeout=120,
                         check=False, env={**os.environ, **(environment or {})}, **popen)
    assert run.returncode == 2, run
    return run.stderr.splitlines()


@contextlib.contextmanager
def model_copy(**files):
    """The bundled model in a directory of its own; `files` replace some: name with _ for . : text."""
    with tempfile.TemporaryDirectory(prefix="outrider-") as directory:
        model = os.path.join(directory, "model")
        os.mkdir(model)
        for name in os.listdir(MODEL):
            os.symlink(os.path.join(MODEL, name), os.path.join(model, name))
        for name, text in files.items():
            path = os.path.join(model, name.replace("__", "."))
            if os.path.lexists(path):
                os.unlink(path)
            if text is not None:
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
        yield model


def objects(lines):
    """The lines as JSON objects, each with what every log line has."""
    found = [json.loads(line) for line in lines]
    assert all({"time", "level", "message"} <= set(entry) for entry in found), found
    return found


@test
def hangup_drains_as_other_signals_do():
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        with Server() as server:
            assert server.chat()[0] == 200
            status, lines = server.end(number)
            assert status == 0, (number, status)
            assert any("stopping" in line for line in lines), lines


@test
def nohup_keeps_it_running():
    with Server(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as server:
        server.process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert server.chat()[0] == 200
        assert server.end()[0] == 0


@test
def default_shutdown_ends_before_kubernetes_kills():
    run = subprocess.run([OUTRIDER, "serve", "--help"], capture_output=True, text=True, check=True)
    seconds = re.search(r"--shutdown-timeout SECONDS.*?\[default:\s+(\d+)\]", run.stdout, re.DOTALL)
    assert int(seconds.group(1)) + 1 < 30, seconds.group(0)


@test
def every_line_is_an_object_with_json_logs():
    with Server("--log-format", "json", "--enable-log-requests", "--stats-interval", "0.1") as server:
        assert any("Loading safetensors" in entry["message"] for entry in objects(server.lines))
        server.chat(max_tokens=64)
        status, lines = server.end()
        assert status == 0 and objects(lines)
    for arguments in (["serve", MODEL, "--port", "none"], ["serve", "/no/such"], ["serve"],
                      ["quantum"], ["serve", MODEL, "--no-such-option"],
                      ["generate", MODEL, "--prompt", "a", "--system", "b"]):
        for flags in (["--log-format", "json"], ["--log-format=json"]):
            *_, error = objects(refused(*arguments, *flags))
            assert error["level"] == "error" and "error: " in error["message"], error
        objects(refused(*arguments, environment={"OUTRIDER_LOG_FORMAT": "json"}))
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        config.write("log_format: json\nport: none\n")
        config.flush()
        objects(refused("serve", MODEL, "--config", config.name))
    run = subprocess.run([OUTRIDER, "generate", MODEL, "--prompt", "a", "--max-tokens", "2",
                          "--log-format", "json"], capture_output=True, text=True, check=True)
    assert "tokens/s" in objects(run.stderr.splitlines())[-1]["message"]


@test
def a_reader_of_standard_error_that_goes_away_ends_nothing():
    with Server("--enable-log-requests") as server:
        server.process.stderr.close()
        for _ in range(5):
            assert server.chat()[0] == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0


@test
def a_reader_of_standard_error_that_stalls_freezes_nothing():
    # Each of the refusals is a line that has the id: more than a pipe and what waits hold.
    with Server("--enable-log-requests") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        for i in range(LINES):
            connection.request("POST", "/v1/completions", '{"prompt": 7}',
                               {"Content-Type": "application/json", "X-Request-Id": f"{i}-" + 100 * "x"})
            response = connection.getresponse()
            response.read()
            assert response.status == 400
        assert server.ask("GET", "/health")[0] == 200
        assert server.chat()[0] == 200
        # Now somebody reads, and is told what is missing by the next line.
        os.set_blocking(server.process.stderr.fileno(), False)
        text, deadline = "", time.monotonic() + 60
        while "log lines were dropped" not in text and time.monotonic() < deadline:
            server.chat()
            with contextlib.suppress(BlockingIOError, TypeError):
                text += server.process.stderr.read() or ""
        dropped = int(re.search(r"(\d+) log lines were dropped", text).group(1))
        told = len(re.findall(r"-x{100}", text))
        assert 0 < dropped < LINES and told < LINES, (dropped, told)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0


@test
def a_reader_that_stalls_does_not_hold_up_the_end():
    read, write = os.pipe()
    with contextlib.closing(os.fdopen(read)), contextlib.closing(os.fdopen(write, "w")) as writer:
        os.set_blocking(write, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(write, 4096 * b"x")
        os.set_blocking(write, True)
        run = subprocess.run([OUTRIDER, "serve", "/no/such"], stderr=writer, timeout=60, check=False)
    assert run.returncode == 2, run


@test
def logits_that_are_not_numbers_fail_the_request():
    with open(os.path.join(MODEL, "model.safetensors.index.json"), encoding="utf-8") as file:
        weights = json.load(file)["weight_map"]["lm_head.weight"]
    with model_copy() as model:
        path = os.path.join(model, weights)
        os.unlink(path)
        shutil.copyfile(os.path.join(MODEL, weights), path)
        with open(path, "r+b") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            head = json.loads(file.read(size))["lm_head.weight"]
            assert head["dtype"] == "BF16", head
            file.seek(8 + size + head["data_offsets"][0] + 1000 * head["shape"][1] * 2)
            file.write(8 * struct.pack("<H", 0x7FC0))
        with Server(model=model) as server:
            for fields in ({"temperature": 0}, {"temperature": 1}, {"temperature": 1, "top_p": 0.5},
                           {"temperature": 0, "logprobs": True, "top_logprobs": 2},
                           {"prompt_logprobs": 1}, {"temperature": 0, "allowed_token_ids": [5, 6]}):
                status, text = server.chat(**fields)
                assert status == 500 and "engine_error" in text, (fields, status, text)
            assert server.ask("GET", "/health")[0] == 200


@test
def a_model_that_does_not_fit_is_refused_in_a_line():
    with open(os.path.join(MODEL, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    config.update(intermediate_size=1 << 20, num_hidden_layers=200, first_k_dense_replace=200)
    with model_copy(config__json=json.dumps(config)) as model:
        lines = refused("serve", model, *FEW, "--load-format", "dummy", "--device", "cpu")
        assert "does not fit into memory" in lines[-1] and "are needed" in lines[-1], lines
        run = subprocess.run([OUTRIDER, "explain", model, "--load-format", "dummy", "--device", "cpu"],
                             capture_output=True, text=True, check=True)
        assert "DOES NOT FIT" in run.stdout and "are needed" in run.stdout, run.stdout


@test
def the_limit_of_the_address_space_counts():
    """Not where a sanitizer reserves terabytes of it."""
    limit = 3 << 30
    if subprocess.run([OUTRIDER, "version"], capture_output=True, check=False,
                      preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))).returncode:
        return
    lines = refused("serve", MODEL, *FEW, "--kv-cache-memory-bytes", "8G", "--device", "cpu",
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    assert "ulimit -v" in lines[-1] and "--kv-cache-memory-bytes" in lines[-1], lines


@test
def a_control_groups_limit_counts():
    """Where this test may make a control group."""
    top = "/sys/fs/cgroup/memory"
    names = ("memory.limit_in_bytes", "memory")
    if not os.path.isdir(top):
        top, names = "/sys/fs/cgroup", ("memory.max", "")
    own = next((line.rstrip("\n").split(":", 2)[2] for line in open("/proc/self/cgroup", encoding="ascii")
                if line.split(":", 2)[1] == names[1]), "/")
    group = os.path.join(top + own, "outrider-test-%d" % os.getpid())
    try:
        os.mkdir(group)
        with open(os.path.join(group, names[0]), "w", encoding="ascii") as file:
            file.write(str(200 << 20))
    except OSError as error:
        print("  skipped: no control group can be made here:", error)
        with contextlib.suppress(OSError):
            os.rmdir(group)
        return

    def enter():
        with open(os.path.join(group, "cgroup.procs"), "w", encoding="ascii") as file:
            file.write(str(os.getpid()))

    try:
        lines = refused("serve", MODEL, *FEW, "--device", "cpu", preexec_fn=enter)
        assert names[0] in lines[-1] and "does not fit" in lines[-1], lines
    finally:
        os.rmdir(group)


@test
def a_chat_template_that_does_not_compile_is_found_at_start():
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
        template.write("{{ bos_token }}\n{% for message in messages %}{{ message.content }}")
        template.flush()
        lines = refused("serve", MODEL, *FEW, "--chat-template", template.name)
        assert template.name in lines[-1] and "line 2" in lines[-1], lines
        assert not any("Loading" in line for line in lines), lines
        lines = refused("generate", MODEL, "--chat", "a", "--chat-template", template.name)
        assert template.name in lines[-1], lines


@test
def errors_of_a_chat_template_name_no_file_to_clients():
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
        template.write("{{ raise_exception('no such role') }}")
        template.flush()
        with Server("--chat-template", template.name) as server:
            status, text = server.chat()
            assert status == 400 and "no such role" in text, (status, text)
            assert template.name not in text and "/tmp" not in text, text


@test
def a_model_without_a_chat_template_says_so_once():
    with open(os.path.join(MODEL, "tokenizer_config.json"), encoding="utf-8") as file:
        config = json.load(file)
    config.pop("chat_template", None)
    with model_copy(tokenizer_config__json=json.dumps(config), chat_template__jinja=None) as model:
        with Server(model=model) as server:
            told = [line for line in server.lines if "--chat-template" in line]
            assert len(told) == 1 and "WARNING" in told[0], server.lines
            assert server.chat()[0] == 400
            assert server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200


@test
def python_runs_before_the_first_chat():
    with Server() as server:
        tasks = f"/proc/{server.process.pid}/task"
        names = []
        for task in os.listdir(tasks):
            with open(os.path.join(tasks, task, "comm"), encoding="ascii") as file:
                names.append(file.read().strip())
        assert "chat templates" in names, names
        with open(f"/proc/{server.process.pid}/maps", encoding="utf-8") as maps:
            before = {line.split()[-1] for line in maps if ".so" in line}
        assert server.chat()[0] == 200
        with open(f"/proc/{server.process.pid}/maps", encoding="utf-8") as maps:
            after = {line.split()[-1] for line in maps if ".so" in line}
        assert after == before, after - before


@test
def generate_measures_for_its_one_request_only():
    run = subprocess.run([OUTRIDER, "generate", MODEL, "--prompt", "a", "--max-tokens", "2",
                          "--log-level", "info"], capture_output=True, text=True, check=True)
    measured = re.findall(r"step times, (\d+) request", run.stderr)
    assert measured == ["1"], run.stderr


@test
def slashes_at_the_end_do_not_change_the_served_name():
    with Server(model=MODEL + "//") as server:
        assert json.loads(server.ask("GET", "/v1/models")[1])["data"][0]["id"] == MODEL
        assert server.chat(model=MODEL)[0] == 200


@test
def a_folder_of_the_hugging_face_cache_is_its_snapshot():
    with tempfile.TemporaryDirectory(prefix="outrider-") as cache:
        folder = os.path.join(cache, "models--acme--tiny")
        for revision in ("0123abc", "4567def"):
            os.makedirs(os.path.join(folder, "snapshots", revision))
        os.makedirs(os.path.join(folder, "refs"))
        for name in os.listdir(MODEL):
            os.symlink(os.path.join(MODEL, name), os.path.join(folder, "snapshots", "4567def", name))
        lines = refused("serve", folder, *FEW)
        assert "2 snapshots" in lines[-1], lines
        with open(os.path.join(folder, "refs", "main"), "w", encoding="ascii") as file:
            file.write("4567def")
        with Server(model=folder + "/") as server:
            assert json.loads(server.ask("GET", "/v1/models")[1])["data"][0]["id"] == folder
            assert server.chat()[0] == 200


@test
def what_cannot_be_read_says_what_to_do():
    with tempfile.TemporaryDirectory(prefix="outrider-") as directory:
        file = os.path.join(directory, "tiny.gguf")
        with open(file, "wb") as gguf:
            gguf.write(b"GGUF")
        for path in (file, directory, "no/such.gguf"):
            assert "GGUF is not read" in refused("serve", path, *FEW)[-1], path
    line = refused("serve", "deepseek-ai/DeepSeek-V2-Lite", *FEW)[-1]
    assert "hf download deepseek-ai/DeepSeek-V2-Lite --local-dir DeepSeek-V2-Lite" in line, line
    for flags in (["--model", "x"], ["--model=x"]):
        (line,) = refused("serve", MODEL, *flags)
        assert "--model is no option" in line and "outrider serve " in line, line


@test
def what_is_no_checkpoint_is_said_first():
    with tempfile.TemporaryDirectory(prefix="outrider-") as directory:
        lines = refused("serve", directory, *FEW)
    assert len(lines) == 2 and "config.json: cannot be opened" in lines[1], lines


@test
def help_and_version_are_commands_too():
    def said(*arguments):
        return subprocess.run([OUTRIDER, *arguments], capture_output=True, text=True,
                              check=True).stdout
    assert said("help") == said("--help")
    assert said("help", "serve") == said("serve", "--help")
    assert said("version") == said("-V") == said("--version")
    assert "'quantum'" in refused("help", "quantum")[-1]


@test
def keys_come_from_a_file():
    with tempfile.NamedTemporaryFile("w") as keys:
        keys.write("first-key\n\n  second-key \r\n")
        keys.flush()
        with Server("--api-key-file", keys.name, "--api-key", "third", "--max-num-batched-tokens",
                    "64") as server:
            for key, status in (("first-key", 200), ("second-key", 200), ("third", 200), ("", 401),
                                ("first", 401)):
                got, _ = server.ask("GET", "/v1/models", Authorization="Bearer " + key)
                assert got == status, (key, got)
            # A key's cached prefix is its own.
            def cached(key):
                answer = json.loads(server.ask("POST", "/v1/completions", {
                    "prompt": "one two three " * 40, "max_tokens": 1},
                    Authorization="Bearer " + key)[1])
                return answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            for _ in range(3):
                cached("first-key")
            assert cached("first-key") > 0 and cached("second-key") == 0
            assert not any("first-key" in line or "second-key" in line for line in server.lines)
    with tempfile.NamedTemporaryFile("w") as empty:
        assert "holds no key" in refused("serve", MODEL, *FEW, "--api-key-file", empty.name)[-1]


def run_tests(tests):
    """Those that the command line names, else all; what fails ends the process at the end."""
    wanted = sys.argv[2:]
    failed = []
    for function in tests:
        if wanted and function.__name__ not in wanted:
            continue
        started = time.monotonic()
        try:
            function()
        except Exception:  # the others run all the same
            traceback.print_exc()
            failed.append(function.__name__)
        print(f"{function.__name__}: {time.monotonic() - started:.1f} s", flush=True)
    if failed:
        sys.exit("failed: " + ", ".join(failed))


if __name__ == "__main__":
    run_tests(TESTS)
