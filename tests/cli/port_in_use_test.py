"""port_in_use_test.py OUTRIDER: a port that is in use is an error before the weights are loaded."""

import os
import socket
import subprocess
import sys

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "models", "tiny-v3-mtp3")

with socket.create_server(("127.0.0.1", 0)) as taken:
    port = taken.getsockname()[1]
    run = subprocess.run([sys.argv[1], "serve", MODEL, "--port", str(port)],
                         capture_output=True, text=True, timeout=60, check=False)
lines = run.stderr.splitlines()
assert run.returncode == 2, run
assert lines[-1].startswith(f"outrider: error: port {port} on 127.0.0.1 is in use"), run.stderr
assert not any("Loading" in line for line in lines), run.stderr
