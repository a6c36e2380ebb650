"""Golden files of a small DeepSeek-V4: figures in float32 on the stored weights, without and with the published rounding of caches."""
import os

import torch

from common import DEVICE, chat_prompt, dump, evaluation_prompts, greedy
from v4_model import rounded_caches
from v4_published import write_file


@torch.no_grad()
def selection_gap(m, ids):
    """Over rows that see more entries than the indexer keeps, the least distance between its last score kept and the first dropped; or None.

    Scores of which both are 0 do not count: they are so by any arithmetic, and the first are kept.
    """
    gaps = []

    def hook(indexer, args, _):
        scores, kept = indexer.scores(*args), m.d.index_top_k
        if scores.shape[-1] > kept:
            top = scores.topk(kept + 1, -1).values
            gap = top[..., -2] - top[..., -1]
            gaps.extend(gap[gap.isfinite() & ((gap != 0) | (top[..., -1] != 0))].tolist())

    hooks = [layer.attn.indexer.register_forward_hook(hook) for layer in m.layers if hasattr(layer.attn, "indexer")]
    m.trunk(ids)
    for h in hooks:
        h.remove()
    return min(gaps, default=None)


@torch.no_grad()
def golden_cases(m, tok, candidates):
    """Five contexts; of the two longest kinds, those of the candidates whose choice of entries is least close to a tie."""
    _, prompts = evaluation_prompts(tok)
    few, story = prompts["five_shot"], prompts["story"]

    def clearest(options):
        def gap(ids):
            x, gaps = torch.tensor([ids], device=DEVICE), []
            for rounded in (True, False):
                with rounded_caches(rounded):
                    gaps.append(selection_gap(m, x))
            return min((g for g in gaps if g is not None), default=0)
        return max(options, key=gap)

    return [chat_prompt(tok, "Count from 3 to 9."), prompts["chat"][1], clearest([few[2 + i] for i in range(candidates)]),
            story[3] + greedy(m, story[3:4], 150)[0], clearest([(few[20 + i] + few[40 + i])[:900] for i in range(candidates)])]


def write_goldens(path, gold):
    write_file(path, {k: ("I32", v.cpu()) if v.dtype == torch.int32 else ("F32", v.float().cpu()) for k, v in gold.items()})


@torch.no_grad()
def trunk_goldens(m, cases, out):
    """golden.safetensors: plain float32 figures, and under `cache.` the same with rounded caches.

    Logits of the last position; of the module's hidden rows case 0 has all (plain only), the others their last.
    Returns the gaps of the indexer's choices.
    """
    gold, gaps = {}, {}
    for i, c in enumerate(cases):
        x = torch.tensor([c], device=DEVICE)
        gold[f"case{i}.ids"] = torch.tensor(c, dtype=torch.int32)
        for prefix in ("", "cache."):
            with rounded_caches(prefix != ""):
                p, whole = f"{prefix}case{i}.", i == 0 and not prefix
                gaps[p + "gap"] = selection_gap(m, x)
                h, ctx, _ = m.trunk(x)
                rows = slice(None) if whole else slice(-2 if prefix else -3, None)
                gold[p + "logits"] = m.lm_head(h)[0, -1:]
                h, _, _ = m.draft(0, ctx[:, :-1], x[:, 1:])
                gold[p + "mtp0.hidden"], gold[p + "mtp0.logits"] = h[0, rows], m.lm_head(h)[0, -1:]
    write_goldens(os.path.join(out, "golden.safetensors"), gold)
    return gaps


@torch.no_grad()
def greedy_goldens(m, tok, a):
    """golden_greedy.json: greedy continuations with the least distance between the best and the second logit along each."""
    _, prompts = evaluation_prompts(tok)
    continuations = []
    for ps in (prompts["chat"][:12], prompts["five_shot"][:4], prompts["story"][:4]):
        for p, y in zip(ps, greedy(m, ps, 96)):
            top = m.lm_head(m.trunk(torch.tensor([p + y], device=DEVICE))[0])[0, len(p) - 1:-1].topk(2, -1).values
            continuations.append(dict(prompt_ids=p, greedy_ids=y, least_logit_gap=round((top[:, 0] - top[:, 1]).min().item(), 5),
                                      text=tok.decode(y, skip_special_tokens=False)))
    dump(a, "golden_greedy.json", continuations)
