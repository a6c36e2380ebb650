"""memory_limit_test.py STUB_SERVER: a request for which there is no memory fails alone."""

import os
import re
import resource
import socket
import subprocess
import sys

server = subprocess.Popen([sys.argv[1]], stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "MALLOC_ARENA_MAX": "1"})
port = int(server.stdout.readline())


def start(body):
    client = socket.create_connection(("127.0.0.1", port), timeout=60)
    try:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                       b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    except OSError:
        pass  # refused before it was read
    return client


def status(client):
    """Of the answer; 0 for a connection that ends without one."""
    try:
        line = client.makefile("rb").readline()
    except OSError:
        return 0
    return int(line.split()[1]) if line else 0


def post(body):
    with start(body) as client:
        return status(client)


small = b'{"prompt":"abc","max_tokens":2}'
assert post(small) == 200
# What a body is parsed to takes ten times its size. The server may grow by less than that.
values = ",".join('"%s%d":{}' % ("n" * 8, i) for i in range(200_000))
heavy = ('{"prompt":"abc","max_tokens":2,"zzz":{%s}}' % values).encode()
with open(f"/proc/{server.pid}/status") as status_file:
    used = int(re.search(r"VmSize:\s+(\d+) kB", status_file.read()).group(1)) << 10
limit = used + (24 << 20)
resource.prlimit(server.pid, resource.RLIMIT_AS, (limit, limit))
seen = set()
for _ in range(3):
    clients = [start(heavy) for _ in range(4)]
    seen.update(status(client) for client in clients)
    for client in clients:
        client.close()
    assert post(small) == 200, server.poll()
assert seen <= {0, 400, 503}, seen
assert 503 in seen or 0 in seen, "nothing was short of memory"
assert server.poll() is None
server.terminate()
server.wait(timeout=60)
