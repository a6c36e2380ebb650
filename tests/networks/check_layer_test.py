"""tools/check_layer.py finds the engine's bits in every form, and notices other orders of sums.
Needs numpy.

  check_layer_test.py --rows LAYER_ROWS
"""
import argparse
import importlib.util
import pathlib
import sys
import types
import unittest

import numpy as np

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_layer.py"
SPEC = importlib.util.spec_from_file_location("check_layer", TOOL)
tool = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tool)
ISAS = ["avx2", "avx512", "avx512_bf16"]
ROWS = None


def run(tokens, isas=tuple(ISAS), dtype="bfloat16", form="heads", role="prompt", layers=2,
        chain=False):
    """What check() says for every instruction set that this machine has."""
    model = tool.ROOT / "models" / "tiny-v3-mtp3"
    checkpoint = tool.Checkpoint(model)
    ids = np.random.default_rng(tokens).integers(0, checkpoint.config["vocab_size"], tokens)
    args = types.SimpleNamespace(rows=ROWS, model=model, dtype=dtype, form=form, role=role,
                                 layers=layers, chain=chain, torch=False)
    results = [tool.check(args, isa, checkpoint, ids) for isa in isas]
    return [result for result in results if result is not None]


class CheckLayer(unittest.TestCase):
    def equal(self, **options):
        results = run(**options)
        if not results:
            self.skipTest("this machine has none of the instruction sets")
        self.assertTrue(all(results), options)

    def test_whole_model_from_the_embeddings_on(self):
        self.equal(tokens=24, layers=0, chain=True)

    def test_several_splits(self):
        self.equal(tokens=300)

    def test_groups_of_splits(self):
        self.equal(tokens=1300, layers=1)

    def test_latent_prompt(self):
        self.equal(tokens=40, form="latent")

    def test_latent_decode(self):
        self.equal(tokens=40, form="latent", role="decode")

    def test_float32(self):
        self.equal(tokens=6, dtype="float32")

    def notices(self, name, other, owner=tool, **options):
        kept = getattr(owner, name)
        setattr(owner, name, other)
        try:
            results = run(**options)
        finally:
            setattr(owner, name, kept)
        if not results:
            self.skipTest("this machine has none of the instruction sets")
        self.assertFalse(any(results), f"another {name} changed nothing")

    def test_another_order_of_columns_is_noticed(self):
        self.notices("columns", lambda self, n: np.arange(n)[::-1], tool.Order, tokens=8, layers=1)

    def test_other_splits_are_noticed(self):
        self.notices("SPLIT", 128, tokens=200, layers=1)

    # In float32: rounding to bfloat16 hides most differences of a last bit.
    def test_sums_of_lanes_in_another_order_are_noticed(self):
        self.notices("add_lanes", lambda self, lanes: lanes.sum(-1), tool.Order, tokens=6, layers=1,
                     dtype="float32")

    def test_a_fused_product_is_not_two_roundings(self):
        self.notices("fma", lambda a, b, c: a * b + c, tokens=6, layers=1, dtype="float32")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", required=True)
    options, rest = parser.parse_known_args()
    ROWS = options.rows
    unittest.main(argv=[sys.argv[0], *rest])
