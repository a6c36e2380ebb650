"""interrupt_test.py OUTRIDER: Ctrl-C ends a benchmark with status 130 and one line, no table."""

import os
import signal
import subprocess
import sys

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "models", "tiny-v3-mtp3")

# One answer at a time, a minute of them on a fast machine.
run = subprocess.Popen([sys.argv[1], "bench", "throughput", MODEL, "--spec-tokens", "0",
                        "--num-prompts", "64", "--batch-size", "1", "--output-len", "3000",
                        "--log-level", "debug"],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
assert "config.json" in run.stderr.readline()  # the model is being read
run.send_signal(signal.SIGINT)
out, err = run.communicate(timeout=120)
assert run.returncode == 130, (run.returncode, err)
assert err.splitlines()[-1] == "outrider: interrupted", err
assert not out, out
