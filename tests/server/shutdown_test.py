"""shutdown_test.py STUB_SERVER: the process ends at its shutdown timeout though a thread never ends."""

import signal
import socket
import subprocess
import sys

BODY = b'{"prompt": "hang"}'
REQUEST = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
           b"Content-Length: %d\r\n\r\n" % len(BODY)) + BODY


def start():
    server = subprocess.Popen([sys.argv[1]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return server, int(server.stdout.readline())


def answer(port, request):
    """The status line, or "" when the connection ends without one."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(request)
        return client.makefile("rb").readline().decode()


HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

# One signal: the request is cancelled at the timeout, which is 2 s, and its thread is left behind.
server, port = start()
with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
    client.sendall(REQUEST)
    assert "hangs\n" in iter(server.stdout.readline, "")
    server.send_signal(signal.SIGTERM)
    assert "503" in client.makefile("rb").readline().decode()
out, err = server.communicate(timeout=60)
assert server.returncode == 1, (server.returncode, err)
assert "the process ends without them" in out + err, (out, err)

# Two signals: it does not wait for the timeout.
server, port = start()
with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
    client.sendall(REQUEST)
    assert "hangs\n" in iter(server.stdout.readline, "")
    server.send_signal(signal.SIGINT)
    while "503" not in answer(port, HEALTH):
        pass
    server.send_signal(signal.SIGINT)
    out, err = server.communicate(timeout=60)
assert server.returncode == 1, (server.returncode, err)

# Nothing hangs: it ends by itself.
server, port = start()
assert "200" in answer(port, HEALTH)
server.send_signal(signal.SIGTERM)
out, err = server.communicate(timeout=60)
assert server.returncode == 0, (server.returncode, err)
