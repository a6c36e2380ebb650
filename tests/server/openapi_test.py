#!/usr/bin/env python3
"""schemathesis (tests/requirements.txt) against what a server says of itself in /openapi.json.

    openapi_test.py --stub build/release/tests/server/stub_server [--seconds 60]
    openapi_test.py --url http://127.0.0.1:8000

Requests that the description allows and requests that it does not: none may get a 5xx, an answer or
a status that is not described, or be taken against the description. That every request that it
allows is taken is not asked: a JSON schema cannot say, for instance, that a tool_choice names one
of the tools.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile


def check(url, seconds):
    tool = pathlib.Path(sys.executable).parent / "schemathesis"
    if not tool.exists():
        print(f"there is no {tool}: pip install -r tests/requirements.txt")
        return 1
    with tempfile.TemporaryDirectory() as folder:  # it leaves files where it runs
        # /debug/steps never ends.
        return subprocess.run(
            [str(tool), "run", f"{url}/openapi.json", "--exclude-path", "/debug/steps", "--phases",
             "examples,coverage,fuzzing", "--max-time", str(seconds), "--request-timeout", "30",
             "--continue-on-failure", "--checks", "all", "--exclude-checks",
             "positive_data_acceptance", "--seed", "1"], cwd=folder).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--stub", help="the stub server's binary")
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--seconds", type=int, default=30)
    arguments = parser.parse_args()
    if bool(arguments.stub) == bool(arguments.url):
        parser.error("give --stub or --url")
    if arguments.url:
        return check(arguments.url, arguments.seconds)
    with subprocess.Popen([arguments.stub, "0", "3", "0"], stdout=subprocess.PIPE,
                          text=True) as server:
        try:
            port = server.stdout.readline().strip()
            status = check(f"http://127.0.0.1:{port}", arguments.seconds)
        finally:
            ended = server.poll()
            server.terminate()
    if ended is not None:
        print(f"the server ended by itself with status {ended}")
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
