"""Random small Step-3.5 checkpoints, written and computed by tools/step3p5_reference.py, through the
engine's network: log-probabilities of target and MTP modules differ by less than 1e-3. Needs numpy.

  random_step3p5_test.py --check STEP3P5_GOLDEN_CHECK [--count N] [--seed N]
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

REFERENCE = pathlib.Path(__file__).resolve().parents[2] / "tools" / "step3p5_reference.py"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", required=True)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([sys.executable, REFERENCE, "random", directory, "--count", str(args.count),
                        "--seed", str(args.seed)], check=True)
        directories = sorted(str(d) for d in pathlib.Path(directory).iterdir())
        assert len(directories) == args.count
        return subprocess.run([args.check, *directories], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
