"""Starts and stops `outrider serve` for measuring scripts, and talks JSON to it.

Python standard library only.
"""
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.parse

REQUEST_SECONDS = 600


class ServerError(Exception):
    """Why a server cannot be asked; its text is for the user."""


class Server:
    """An `outrider serve` process: started on entering the context, stopped on leaving it."""

    def __init__(self, binary, model, flags=(), port=0, start_timeout=120):
        """port 0: a free one; start_timeout in seconds."""
        self.address = ("127.0.0.1", port or free_port())
        self._command = [str(binary), "serve", str(model), "--port", str(self.address[1]), *flags]
        self._start_timeout, self._process, self._log = start_timeout, None, None

    def __enter__(self):
        try:
            self._start()
            self._wait_until_healthy()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self._process and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def wait_for_end(self, seconds):
        self._process.wait(seconds)

    def ending(self):
        """What was wrong with its end, and what it said then; "" for nothing."""
        if self._process.returncode == 0:
            return ""
        return f"the server ended with status {self._process.returncode}:\n{self.last_log_lines()}"

    @property
    def status(self):
        """None while it runs."""
        return self._process.returncode

    @property
    def pid(self):
        return self._process.pid

    def processor_seconds(self):
        """What its threads have taken so far, in user and system mode."""
        with open(f"/proc/{self.pid}/stat", encoding="ascii", errors="replace") as stat:
            fields = stat.read().rpartition(")")[2].split()  # the name before may hold spaces
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _start(self):
        if not os.access(self._command[0], os.X_OK):
            raise ServerError(f"{self._command[0]}: no such executable; build it or name it with "
                              "--outrider")
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=self._log,
                                         stderr=subprocess.STDOUT)

    def _wait_until_healthy(self):
        deadline, problem = time.monotonic() + self._start_timeout, "no answer"
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise ServerError(f"the server ended with status {self._process.returncode} "
                                  f"before it was ready:\n{self.last_log_lines()}")
            try:
                status, _ = Client(self.address, timeout=5).call("GET", "/health")
                if status == 200:
                    return
                problem = f"/health answered {status}"
            except (OSError, http.client.HTTPException) as error:
                problem = str(error)
            time.sleep(0.05)
        raise ServerError(f"no server at {self.address[0]}:{self.address[1]} after "
                          f"{self._start_timeout:.0f} s ({problem})\n{self.last_log_lines()}")

    def last_log_lines(self, count=20):
        size = os.fstat(self._log.fileno()).st_size
        tail = os.pread(self._log.fileno(), 1 << 16, max(0, size - (1 << 16)))
        text = tail.decode(errors="replace")
        return "\n".join("  | " + line for line in text.splitlines()[-count:])


class RunningServer:
    """A server that somebody else started and stops."""

    def __init__(self, url):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.path.strip("/"):
            raise ServerError(f"--url {url}: expected http://HOST:PORT")
        self.address = (parts.hostname, parts.port or 80)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def processor_seconds(self):
        return None  # it may be anywhere

    def last_log_lines(self):
        return ""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Client:
    """One connection, kept open between calls."""

    def __init__(self, address, timeout=REQUEST_SECONDS):
        self._connection = http.client.HTTPConnection(*address, timeout=timeout)

    def call(self, method, path, body=None):
        """(status, text of the answer)."""
        self._connection.request(method, path, body and json.dumps(body),
                                 {"Content-Type": "application/json"} if body else {})
        answer = self._connection.getresponse()
        return answer.status, answer.read().decode()

    def post(self, path, body):
        status, text = self.call("POST", path, body)
        if status != 200:
            raise ServerError(f"POST {path} answered {status}: {text.strip()}")
        return json.loads(text)

    def events(self, path, body):
        """Each event of a stream of server-sent events, when it comes, but for the last, [DONE]."""
        self._connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        if answer.status != 200:
            raise ServerError(f"POST {path} answered {answer.status}: {answer.read().decode().strip()}")
        for line in answer:
            data = line.decode().removeprefix("data: ").strip()
            if line.startswith(b"data: ") and data != "[DONE]":
                yield json.loads(data)
