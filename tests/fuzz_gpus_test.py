#!/usr/bin/env python3
"""tools/fuzz_gpus.py: sums of several processes, and what ends a run. A script stands in for the fuzz.

    fuzz_gpus_test.py SOURCE_DIRECTORY
"""
import pathlib
import subprocess
import sys
import tempfile
import time

PROGRAM = """#!{python}
import sys, time
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
seed = int(flags["--seed"])
if {fails} and seed == 6:
    {failure}
if {fails}:
    time.sleep(60)
print("10 s: 1 requests equal")
print("1.5 s to make engines, 2.0 s for 30 steps of them, 0.5 s for 40 steps of 7 requests alone")
print(f"{{seed}} requests in 2 rounds equal (seed {{seed}}, 3 s; 4 with grammars, 5 preemptions, 6 cached tokens, "
      "7 that came back, 8 drafts accepted)")
"""


def run(tool, failure=None, families=("v4", "step")):
    """Exit status and what was printed, of two processes for each family, seeds from 5 on."""
    with tempfile.TemporaryDirectory() as directory:
        program = pathlib.Path(directory, "tests/engine/outrider_exactness_fuzz")
        program.parent.mkdir(parents=True)
        program.write_text(PROGRAM.format(python=sys.executable, fails=failure is not None, failure=failure))
        program.chmod(0o755)
        done = subprocess.run([sys.executable, str(tool), "--build", directory, "--device", "cpu", "--processes", "2",
                               "--seconds", "30", "--seed", "5", "--families", *families],
                              capture_output=True, text=True, timeout=50)
    return done.returncode, done.stdout, done.stderr


def expect(what, found):
    if not found:
        sys.exit(f"fuzz_gpus_test: {what}")


def main():
    tool = pathlib.Path(sys.argv[1]) / "tools" / "fuzz_gpus.py"
    status, out, err = run(tool)
    expect(f"status {status}: {out}{err}", status == 0)
    expect(out, "v4: 11 requests equal" in out and "of 14 different ones in 4 rounds" in out)
    expect(out, "8 with grammars, 10 preemptions, 12 cached tokens, 16 drafts accepted; seeds 5 to 6" in out)
    expect(out, "step: 15 requests equal" in out and "seeds 7 to 8" in out and "26 requests equal, none different" in out)

    start = time.monotonic()
    status, out, err = run(tool, "print('DIFFERENT: round 6000003, engine 1: tokens'); sys.exit(1)")
    expect(f"a difference: status {status}: {out}{err}", status == 1)
    expect(out, "DIFFERENT: round 6000003, engine 1: tokens" in out and "--seed 6 --round 6000003" in out)
    expect(out, "--v4 1" in out and "step:" not in out)

    status, out, err = run(tool, "sys.exit('no GPU')")
    expect(f"a process that fails: status {status}: {out}{err}", status == 2 and "no GPU" in err)
    expect("the other process was waited for", time.monotonic() - start < 20)
    print("sums, a difference, a process that fails")


if __name__ == "__main__":
    main()
