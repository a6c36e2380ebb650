#!/usr/bin/env python3
"""tools/fuzz_shapes.py: the configs that it cuts can be read and shared, and what ends a run. A script stands in
for the fuzz.

    fuzz_shapes_test.py SOURCE_DIRECTORY OUTRIDER
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

PROGRAM = """#!{python}
import json, pathlib, sys
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
config = json.loads(pathlib.Path(flags["--model"], "config.json").read_text())
if flags["--ranks"] == "8" and "--divided" in flags:
    {at_eight}
print("1.5 s to make engines, 2.0 s for 30 steps of them, 0.5 s for 40 steps of 7 requests alone")
print(config["num_attention_heads"], "requests in 2 rounds equal (seed 1, 3 s; 4 with grammars, 5 preemptions, "
      "6 cached tokens, 7 that came back, 8 drafts accepted)")
"""
MAY_CHANGE = {"num_hidden_layers", "num_dense_layers", "vocab_size", "n_routed_experts", "index_topk"}


def expect(what, found):
    if not found:
        sys.exit(f"fuzz_shapes_test: {what}")


def run(tool, at_eight):
    """Exit status and what was printed: GLM-4.7-Flash has 20 heads, which eight ranks cannot share."""
    with tempfile.TemporaryDirectory() as directory:
        program = pathlib.Path(directory, "tests/engine/outrider_exactness_fuzz")
        program.parent.mkdir(parents=True)
        program.write_text(PROGRAM.format(python=sys.executable, at_eight=at_eight))
        program.chmod(0o755)
        done = subprocess.run([sys.executable, str(tool), "--build", directory, "--device", "cpu", "--processes", "2",
                               "--models", "GLM-4.7-Flash", "--ranks", "1", "4", "8"],
                              capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout


def explain(outrider, config, ranks, flags):
    """What `outrider explain` says of the config; it fails the test if it refuses it."""
    with tempfile.TemporaryDirectory() as directory:
        pathlib.Path(directory, "config.json").write_text(json.dumps(config))
        done = subprocess.run([outrider, "explain", directory, "--load-format", "dummy", "--device", "cpu", "--json",
                               "--tensor-parallel-size", str(ranks), "--num-threads", "8", *flags],
                              env=os.environ | {"OUTRIDER_ISA": "reference"}, capture_output=True, text=True)
    expect(f"{config.get('model_type')}: {done.stderr}", done.returncode == 0)
    return json.loads(done.stdout)


def numbers(shapes):
    """By key, those of objects inside too; lists tell of layers."""
    found = {}
    for key, value in shapes.items():
        if isinstance(value, dict):
            found |= {f"{key}.{inner}": number for inner, number in numbers(value).items()}
        elif not isinstance(value, list):
            found[key] = value
    return found


def main():
    source, outrider = pathlib.Path(sys.argv[1]), sys.argv[2]
    tool = source / "tools/fuzz_shapes.py"
    status, out = run(tool, "pass")
    expect(f"status {status}: {out}", status == 0 and "80 requests equal in 4 runs" in out)
    expect(out, "GLM-4.7-Flash, 1 rank: 20 requests equal (2 s engines made, 2 s served)" in out)
    expect(out, "4 ranks, heads divided" in out and "4 ranks, requests divided" in out)
    expect(out, "8 ranks, requests divided" in out and "8 ranks, heads" not in out)
    status, out = run(tool, "print('DIFFERENT: round 7'); sys.exit(1)")
    expect(f"a difference: status {status}: {out}", status == 1 and "DIFFERENT: round 7" in out)
    expect(out, "60 requests equal in 4 runs" in out)
    status, out = run(tool, "config['num_attention_heads'] = 0")
    expect(f"nothing compared: status {status}: {out}", status == 2)

    sys.path.insert(0, str(source / "tools"))
    import fuzz_shapes  # pylint: disable=import-outside-toplevel
    for name in fuzz_shapes.BY_DEFAULT:
        published, cut = fuzz_shapes.CONFIGS[name], fuzz_shapes.cut(fuzz_shapes.CONFIGS[name])
        whole, few = (numbers(explain(outrider, config, 1, ())["shapes"]) for config in (published, cut))
        changed = {key for key in whole if few[key] != whole[key]}
        expect(f"{name}: {changed} are not as published", changed <= MAY_CHANGE)
        for ranks in (2, 4, 8):
            for divided in fuzz_shapes.forms(published, ranks):
                explain(outrider, cut, ranks, ["--data-parallel-attention"] if divided else [])
    print(f"{len(fuzz_shapes.BY_DEFAULT)} cut configs, a difference, a run that compares nothing")


if __name__ == "__main__":
    main()
