"""Shared parts of the reference-checkpoint trainers: corpus, tokenizer, training loop, evaluation, export, golden files.

Longer than most files: what five trainers share stands once."""
import argparse, glob, json, math, os, random, shutil, sys, time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))  # textgen and the oracles
import textgen

VOCAB, MAX_POS = 2048, 4096
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # a processor is enough to try a trainer out


def lin(i, o):
    m = nn.Linear(i, o, bias=False)
    nn.init.normal_(m.weight, std=0.02 if i > 256 else 0.03)
    return m


class Norm(nn.Module):
    """RMSNorm with weight [n]; statistics in float32."""

    def __init__(self, n, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(n)), eps

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight.to(x.dtype)


def yarn_inv_freq(dim, theta, factor, original, beta_fast, beta_slow):
    """Rotary inverse frequencies [dim/2] under YaRN (Peng et al. 2023), float32."""
    pos = theta ** (torch.arange(0, dim, 2).float() / dim)
    extra, inter = 1.0 / pos, 1.0 / (factor * pos)
    dim_of = lambda rot: dim * math.log(original / (rot * 2 * math.pi)) / (2 * math.log(theta))
    lo, hi = max(math.floor(dim_of(beta_fast)), 0), min(math.ceil(dim_of(beta_slow)), dim - 1)
    ramp = ((torch.arange(dim // 2).float() - lo) / max(hi - lo, 0.001)).clamp(0, 1)
    return inter * ramp + extra * (1 - ramp)


def rope(x, cos, sin):
    """Interleaved rotary on [..., T, D]; cos/sin [T, D/2]."""
    a, b = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)


def gen_texts(a):
    seed, n, drills = a
    r = random.Random(seed)
    return [textgen.document(r, drills) for _ in range(n)]


def build_tokenizer(texts):
    from tokenizers import Tokenizer, Regex, models, pre_tokenizers, decoders, trainers
    t = Tokenizer(models.BPE())
    split = lambda p: pre_tokenizers.Split(Regex(p), "isolated", False)
    t.pre_tokenizer = pre_tokenizers.Sequence([
        split(r"\p{N}"), split("[一-龥\u3040-ゟ゠-ヿ]+"),
        split(r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    special = [textgen.BOS, textgen.EOS, textgen.USER, textgen.ASSISTANT, "<think>", "</think>"]
    strip = lambda d: "".join(c for c in d)
    t.train_from_iterator((strip(x) for x in texts), trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    from tokenizers import processors
    t.post_processor = processors.TemplateProcessing(single=f"{textgen.BOS} $A", pair=f"{textgen.BOS} $A $B", special_tokens=[(textgen.BOS, 0)])
    return t


CHAT_TEMPLATE = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] }}"
    "{% elif message['role'] == 'user' %}{{ '<｜User｜>' + message['content'] }}"
    "{% elif message['role'] == 'assistant' %}{{ '<｜Assistant｜>' + message['content'] + eos_token }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}")


def save_sharded(state, out, limit=15 << 20):
    from safetensors.torch import save_file
    shards, cur, size = [], {}, 0
    for k, v in state.items():
        n = v.numel() * v.element_size()
        if size + n > limit:
            shards.append(cur); cur, size = {}, 0
        cur[k] = v; size += n
    shards.append(cur)
    if len(shards) == 1:
        save_file(state, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
        return
    index = {"metadata": {"total_size": sum(v.numel() * v.element_size() for v in state.values())}, "weight_map": {}}
    for i, s in enumerate(shards):
        name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file(s, os.path.join(out, name), metadata={"format": "pt"})
        index["weight_map"].update({k: name for k in s})
    json.dump(index, open(os.path.join(out, "model.safetensors.index.json"), "w"), indent=1)


def two_to(e):
    """2^e as float32, made from its bits: library powers are not exact everywhere."""
    return ((e.int() + 127) << 23).view(torch.float32)


def power(amax, top, least):
    """The least power of two s with max(amax, least) / s <= top."""
    m, e = torch.frexp(amax.float().clamp_min(least) / top)
    return two_to(e - (m == 0.5).int())


def fp8_blocks(w):
    """w [N, K] -> (e4m3 [N, K], float32 scales [ceil(N/128), ceil(K/128)]), each scale the least power of two that avoids overflow.
    Of stacked experts w [E, N, K] each is taken by itself."""
    if w.ndim == 3:
        return tuple(torch.stack(x) for x in zip(*map(fp8_blocks, w)))
    n, k = w.shape
    p = F.pad(w.float(), (0, -k % 128, 0, -n % 128))
    b = p.view(p.shape[0] // 128, 128, p.shape[1] // 128, 128)
    scale = power(b.abs().amax((1, 3)), 448, 1e-12)
    q = (b / scale[:, None, :, None]).view(p.shape)[:n, :k].to(torch.float8_e4m3fn)
    return q.contiguous(), scale


def from_fp8_blocks(q, scale):
    full = scale.repeat_interleave(128, -2).repeat_interleave(128, -1)[..., :q.shape[-2], :q.shape[-1]]
    return q.float() * full


@torch.no_grad()
def round_to_fp8(m):
    """Rounds the weights that m.is_fp8 names to what their FP8 blocks can hold."""
    for name, w in m.published_tensors().items():
        if m.is_fp8(name):
            w.copy_(from_fp8_blocks(*fp8_blocks(w)))


@torch.no_grad()
def load_checkpoint(tensors, path):
    """Copies a checkpoint's tensors into the views that tensors names, those of FP8 blocks multiplied out."""
    from safetensors.torch import load_file
    stored = {}
    for shard in glob.glob(os.path.join(path, "model*.safetensors")):
        stored |= load_file(shard)
    scales = {k: stored.pop(k) for k in list(stored) if k.endswith("_scale_inv")}
    assert set(stored) == set(tensors), set(stored) ^ set(tensors)
    for k, v in stored.items():
        tensors[k].copy_(from_fp8_blocks(v, scales[k + "_scale_inv"]) if k + "_scale_inv" in scales else v)


@torch.no_grad()
def greedy(m, prompts, new, pick=lambda x: x.argmax(-1)):
    """Greedy continuation by full recomputation; prompts are lists of ids. Returns lists of new ids (cut at EOS)."""
    outs = [list(p) for p in prompts]
    live = list(range(len(outs)))
    for _ in range(new if outs else 0):
        n = (max(len(outs[i]) for i in live) + 31) // 32 * 32
        x = torch.zeros(len(live), n, dtype=torch.long)
        for j, i in enumerate(live):
            x[j, :len(outs[i])] = torch.tensor(outs[i])
        h = m.trunk(x.to(DEVICE))[0]
        last = torch.tensor([len(outs[i]) - 1 for i in live], device=DEVICE)
        nxt = pick(m.lm_head(h[torch.arange(len(live), device=DEVICE), last]).float()).tolist()
        for i, t in zip(live, nxt):
            outs[i].append(t)
        live = [i for i, t in zip(live, nxt) if t != 1]
        if not live:
            break
    return [o[len(p):] for o, p in zip(outs, prompts)]


def sample(m, prompts, new):
    """Continuation sampled at temperature 1."""
    return greedy(m, prompts, new, pick=lambda x: torch.multinomial(x.softmax(-1), 1)[:, 0])


@torch.no_grad()
def acceptance(m, prompts, conts):
    """Probability that module k's argmax equals the emitted token, given that modules 0..k-1 matched; continuation positions only."""
    hit, tot = [0] * m.modules_count, [0] * m.modules_count
    for p, c in zip(prompts, conts):
        s = torch.tensor([p + c], device=DEVICE)
        n = s.shape[1]
        _, ctx, _ = m.trunk(s)
        ok = None
        for k in range(m.modules_count):
            t = n - (k + 1)
            if t < 1:
                break
            h, ctx, _ = m.draft(k, ctx[:, :t], s[:, k + 1:k + 1 + t])
            good = (m.module_head(k)(h)[0].float().argmax(-1)[:t - 1] == s[0, k + 2:k + 2 + t - 1])[len(p) - 1:]
            cond = torch.ones_like(good) if ok is None else ok[:good.numel()]
            hit[k] += int((good & cond).sum()); tot[k] += int(cond.sum())
            ok = good & cond
    return [h / max(t, 1) for h, t in zip(hit, tot)]


def result_weights(tok, factor):
    """weights(s) [B, T] of tokens s: factor for digits of computed results (those after "=", "leaves" and so on), 1 for others."""
    flags = lambda words: torch.tensor([i in {tok.token_to_id(w) for w in words} for i in range(tok.get_vocab_size())], device=DEVICE)
    digits, before, space = flags("0123456789"), flags(["Ġ" + w for w in ("=", "is", "leaves", "make", "makes", "gives")]), flags("Ġ")
    assert digits.sum() == 10 and before.sum() == 6 and space.sum() == 1, "the tokenizer has other words"

    def weights(s):
        at, digit = torch.arange(s.shape[1], device=s.device).expand_as(s), digits[s]
        last = at.masked_fill(digit, 0).cummax(1).values  # the newest token that is no digit
        result = digit & space[s.gather(1, last)] & before[s.gather(1, (last - 1).clamp_min(0))]
        return 1 + (factor - 1) * result.float()

    return weights


def loss_terms(m, s, weights=None):
    """Cross-entropies of the trunk and of each MTP module over s [B, T+1+modules], and the stacked expert loads.

    With weights (of result_weights) the means are weighted.
    """
    t = s.shape[1] - 1 - m.modules_count
    w = weights(s) if weights else None
    h, ctx, loads = m.trunk(s[:, :t])

    def ce(head, x, first):
        logits, y = head(x).flatten(0, 1).float(), s[:, first:first + t].flatten()
        if w is None:
            return F.cross_entropy(logits, y)
        share = w[:, first:first + t].flatten()
        return (F.cross_entropy(logits, y, reduction="none") * share).sum() / share.sum()

    losses = [ce(m.lm_head, h, 1)]
    for k in range(m.modules_count):
        h, ctx, load = m.draft(k, ctx, s[:, k + 1:t + k + 1])
        if load is not None:
            loads.append(load)
        losses.append(ce(m.module_head(k), h, k + 2))
    return torch.stack(losses), torch.stack(loads)


def corpus_texts(docs, drills):
    with ProcessPoolExecutor(min(16, os.cpu_count())) as ex:
        return [x for c in ex.map(gen_texts, [(1000 + i, docs // 64, drills) for i in range(64)]) for x in c]


def corpus(a):
    """(tokenizer, ids of all documents one after another, int16 on DEVICE): a.tokenizer's, or that of a tokenizer made from the documents.

    With a.corpus the ids are kept in that file, for the next trainer with the same tokenizer.
    """
    from tokenizers import Tokenizer
    tok = Tokenizer.from_file(a.tokenizer) if a.tokenizer else None
    if tok is not None and a.corpus and os.path.exists(a.corpus):
        return tok, torch.from_numpy(np.load(a.corpus)).to(DEVICE)
    texts = corpus_texts(a.docs, a.drills)
    if tok is None:
        tok = build_tokenizer(texts[:60000])
    ids = np.concatenate([np.array(e.ids, dtype=np.int16) for i in range(0, len(texts), 50000)
                          for e in tok.encode_batch(texts[i:i + 50000], add_special_tokens=False)])
    if a.corpus:
        np.save(a.corpus, ids)
    return tok, torch.from_numpy(ids).to(DEVICE)


def windows(data, batch, need):
    """Endless random windows [batch, need] of data."""
    g = torch.Generator().manual_seed(1)
    while True:
        at = torch.randint(0, data.numel() - need, (batch,), generator=g)
        yield torch.stack([data[i:i + need] for i in at.tolist()]).long()


def arguments(ap=None):
    ap = ap or argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    ap.add_argument("--seconds", type=float, default=350)
    ap.add_argument("--until", type=float, help="train until this time (seconds since 1970) at the latest")
    ap.add_argument("--docs", type=int, default=600_000)
    ap.add_argument("--drills", type=float, default=0.0, help="share of the documents that are drills (textgen.py)")
    ap.add_argument("--seq", type=int, default=1024)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--tokenizer", help="reuse this tokenizer.json")
    ap.add_argument("--corpus", help="file of token ids (.npy) that trainers share: read if it is there, else written; needs --tokenizer or --weights")
    ap.add_argument("--weights", help="start from this checkpoint's weights and tokenizer; without --fp8 no training follows")
    ap.add_argument("--no_compile", action="store_true", help="run without torch.compile, to try a trainer out")
    ap.add_argument("--graph", action="store_true", help="record a step as one CUDA graph, without torch.compile: starts at once, costs no host time per step")
    ap.add_argument("--train_only", action="store_true", help="write the checkpoint, but neither measure nor write golden files")
    ap.add_argument("--fp8", action="store_true", help="train on, and write, weights in 128x128 blocks of float8 e4m3")
    ap.add_argument("--problems", type=int, default=1319, help="how many held-out problems to evaluate (of 1319)")
    ap.add_argument("--stories", type=int, default=60, help="how many stories to continue (of 60)")
    ap.add_argument("--few_shot", type=int, default=300, help="how many five-shot problems to evaluate (of 1319)")
    return ap.parse_args()


@torch.no_grad()
def balance_gates(gates, loads):
    """Moves the router biases of gates so that experts with few rows get more; loads [gates, experts]."""
    for gate, load in zip(gates, loads):
        gate.e_score_correction_bias += 1e-3 * torch.sign(load.mean() - load)


def captured(work, example):
    """work(*inputs), a CUDA graph recorded with inputs of the shapes of example: it copies new inputs into its own and returns work's results."""
    static = [x.clone() for x in example]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work(*static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = work(*static)

    def replay(*inputs):
        for own, x in zip(static, inputs):
            own.copy_(x)
        graph.replay()
        return results

    return replay


def fit(m, a, inputs, step_loss, round_weights=None, balance=lambda loads: None):
    """Trains m in place for a.seconds of wall time, which begin after three steps, but not beyond a.until (bfloat16 autocast, AdamW, cosine).

    inputs yields tuples of tensors; step_loss(*tensors) -> (loss, figures to print, expert loads for balance). With round_weights, which
    rounds the weights in place, gradients at the rounded weights move the unrounded ones (straight-through).
    """
    t0 = time.time()
    torch.set_float32_matmul_precision("high")
    rate = torch.tensor(a.lr / 100, device=DEVICE) if a.graph else a.lr
    opt = torch.optim.AdamW([dict(params=[p for p in m.parameters() if p.ndim >= 2], weight_decay=0.05),
                             dict(params=[p for p in m.parameters() if p.ndim < 2], weight_decay=0.0)],
                            lr=rate, betas=(0.9, 0.95), fused=DEVICE == "cuda", capturable=a.graph)

    def work(*tensors):
        opt.zero_grad(set_to_none=True)
        if round_weights:
            master = [p.detach().clone() for p in m.parameters()]
            round_weights()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss, shown, loads = step_loss(*tensors)
        loss.backward()
        if round_weights:
            with torch.no_grad():
                torch._foreach_copy_(list(m.parameters()), master)
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()
        balance(loads)
        return shown

    run = captured(work, next(inputs)) if a.graph else work
    started, step, seconds = None, 0, a.seconds
    while True:
        if DEVICE == "cuda" and step % 16 == 3:
            torch.cuda.synchronize()  # the clock is the device's, too
        if started is None and step >= 3:
            started = time.time()
            if a.until:
                seconds = min(seconds, max(a.until - started, 1))
        frac = 0 if started is None else (time.time() - started) / seconds
        if frac >= 1:
            break
        now = a.lr * min(1, (step + 1) / 100) * (0.5 * (1 + math.cos(math.pi * frac)) * 0.97 + 0.03)
        for pg in opt.param_groups:
            if a.graph:
                pg["lr"].fill_(now)
            else:
                pg["lr"] = now
        shown = run(*next(inputs))
        if step % 200 == 0:
            print(f"step {step} {time.time() - t0:.0f}s loss {[round(x, 3) for x in shown.tolist()]}", flush=True)
        step += 1
    print(f"steps {step} tokens {step * a.batch * a.seq / 1e6:.0f}M {time.time() - t0:.0f}s", flush=True)


def fit_language(m, a, data, run, round_weights=None):
    """Trains the trunk and its MTP modules on data, the modules with 0.3 of the trunk's weight; run(ids) is loss_terms, compiled or not."""
    batches = ((x,) for x in windows(data, a.batch, a.seq + 1 + m.modules_count))
    weights = torch.tensor([1.0] + [0.3] * m.modules_count, device=DEVICE)

    def step_loss(ids):
        losses, loads = run(ids)
        return (losses * weights).sum(), losses.detach(), loads

    fit(m, a, batches, step_loss, round_weights, lambda loads: balance_gates(m.balanced_gates(), loads))


def train(m, a):
    """Trains m in place for a.seconds of wall time (bfloat16 autocast, AdamW, cosine); returns the tokenizer."""
    from tokenizers import Tokenizer
    os.makedirs(a.out, exist_ok=True)
    if a.weights:
        load_checkpoint(m.published_tensors(), a.weights)
        a.tokenizer = os.path.join(a.weights, "tokenizer.json")
        if not a.fp8:
            tok = Tokenizer.from_file(a.tokenizer)
            tok.save(os.path.join(a.out, "tokenizer.json"))
            return tok
    t0 = time.time()
    tok, data = corpus(a)
    tok.save(os.path.join(a.out, "tokenizer.json"))
    print(f"tokens {data.numel() / 1e6:.0f}M vocab {tok.get_vocab_size()} params {sum(p.numel() for p in m.parameters()) / 1e6:.2f}M {time.time() - t0:.0f}s", flush=True)
    run = lambda s: loss_terms(m, s)
    compiled = run if a.no_compile or a.graph else m.compiled_step() if hasattr(m, "compiled_step") else torch.compile(run)
    fit_language(m, a, data, compiled, (lambda: round_to_fp8(m)) if a.fp8 else None)
    return tok


def write_checkpoint(m, tok, a, config):
    """Rounds the weights to what is stored and writes the checkpoint. Returns a folder with the same weights in bfloat16.

    m.published_tensors() gives views of the weights under the architecture's published names; integers, and names that contain one of
    m.float32_names, keep their type.
    """
    out, tensors = a.out, m.published_tensors()
    dtype = lambda k, v: v.dtype if not v.is_floating_point() or any(s in k for s in m.float32_names) else torch.bfloat16
    plain = os.path.join(out, "bf16") if a.fp8 else out
    os.makedirs(plain, exist_ok=True)
    if a.fp8:
        round_to_fp8(m)
        stored = {}
        for k, v in tensors.items():
            stored[k] = v.detach().to(dtype(k, v)).contiguous().cpu().clone()
            if m.is_fp8(k):
                q, scale = fp8_blocks(v)
                assert torch.equal(from_fp8_blocks(q, scale), v.float()), k
                stored[k], stored[k + "_scale_inv"] = q.cpu(), scale.cpu()
        save_sharded(stored, out)
    save_sharded({k: v.detach().to(dtype(k, v)).contiguous().cpu().clone() for k, v in tensors.items()}, plain)
    load_checkpoint(tensors, plain)
    m.eval()
    torch.set_float32_matmul_precision("highest")
    json.dump(config, open(os.path.join(plain, "config.json"), "w"))
    if a.fp8:
        config = config | dict(quantization_config=dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8", scale_fmt="ue8m0", weight_block_size=[128, 128],
                                                    **getattr(m, "quantization", {})))
    write_configs(a, config)
    return plain


def write_configs(a, config):
    dump(a, "config.json", config, indent=1)
    dump(a, "generation_config.json", dict(_from_model_config=True, bos_token_id=0, eos_token_id=1), indent=1)
    dump(a, "tokenizer_config.json", dict(add_bos_token=True, add_eos_token=False, bos_token=textgen.BOS, eos_token=textgen.EOS, pad_token=textgen.EOS,
         clean_up_tokenization_spaces=False, model_max_length=MAX_POS, tokenizer_class="PreTrainedTokenizerFast", chat_template=CHAT_TEMPLATE), indent=1)


def dump(a, name, x, **k):
    json.dump(x, open(os.path.join(a.out, name), "w"), ensure_ascii=False, **k)


def encode(tok, text):
    return tok.encode(text, add_special_tokens=False).ids


def chat_prompt(tok, text):
    return encode(tok, f"{textgen.BOS}{textgen.USER}{text}{textgen.ASSISTANT}")


def evaluation_prompts(tok):
    """(held-out problems, prompts by name as ids: the problems as chats and with five examples before them, and 60 stories to continue)."""
    evals, shots = textgen.eval_set(20261120, 1319), textgen.eval_set(7, 5)
    few = "\n\n".join(f"Question: {s['question']}\nAnswer: {s['answer']}" for s in shots) + "\n\n"
    r = random.Random(99)
    return evals, dict(chat=[chat_prompt(tok, e["question"]) for e in evals],
                       five_shot=[encode(tok, f"{textgen.BOS}{few}Question: {e['question']}\nAnswer:") for e in evals],
                       story=[chat_prompt(tok, textgen.story(r)[0]) for _ in range(60)])


@torch.no_grad()
def measure(m, tok, a):
    """Accuracy on held-out problems, as a chat and with five examples, and acceptance by teacher forcing on greedy continuations.

    Returns (report, prompts by name, greedy continuations by name), and writes training_report.json.
    """
    evals, prompts = evaluation_prompts(tok)
    prompts["story"] = prompts["story"][:a.stories]
    length = lambda acc: 1 + sum(math.prod(acc[:i + 1]) for i in range(len(acc)))
    report, answers = {}, {}
    for name, n in (("chat", a.problems), ("five_shot", a.few_shot)):
        conts, right = [], 0
        rows = 330 if name == "chat" else 75  # long prompts together take much memory
        for i in range(0, n, rows):
            conts += greedy(m, prompts[name][i:min(i + rows, n)], 110)
        for e, c in zip(evals, conts):
            t = tok.decode(c, skip_special_tokens=True).split("Question:")[0]
            right += t.split("####")[-1].strip() == str(e["number"])
        acc = acceptance(m, prompts[name][:200], conts[:200])
        report[name] = dict(accuracy=right / max(len(conts), 1), conditional_acceptance=acc, mean_acceptance_length=length(acc))
        answers[name] = conts
        print(name, report[name], repr(tok.decode(conts[0])) if conts else "", flush=True)
    answers["story"] = greedy(m, prompts["story"], 200)
    sampled = prompts["story"] * 4
    for name, p, c in (("story", prompts["story"], answers["story"]), ("story_sampled_T1", sampled, sample(m, sampled, 200))):
        acc = acceptance(m, p, c)
        report[name] = dict(conditional_acceptance=acc, mean_acceptance_length=length(acc))
        print(name, report[name], repr(tok.decode(c[0])) if c else "", flush=True)
    dump(a, "training_report.json", report, indent=1)
    return report, prompts, answers


def write_tokenizer_cases(tok, a):
    tests = ["Hello world 12345", "naïve café — “quotes”", "a  b\n\n\tc", "价格是 42 元。", "def f(x):\n    return x**2\n", "emoji 🙂🙂 ok",
             textgen.BOS + textgen.USER + "Hi" + textgen.ASSISTANT, "x" * 40, " leading", "trailing  ", "", "1,234.56%"]
    dump(a, "golden_tokenizer.json", [dict(text=s, ids=encode(tok, s), decoded=tok.decode(encode(tok, s), skip_special_tokens=False)) for s in tests], indent=1)


def list_files(a):
    for f in sorted(os.listdir(a.out)):
        print(f, os.path.getsize(os.path.join(a.out, f)))


@torch.no_grad()
def finish(m, tok, a, config, hf_class):
    """Writes the checkpoint, checks it against transformers, measures accuracy and acceptance, writes goldens."""
    from safetensors.torch import save_file
    plain = write_checkpoint(m, tok, a, config)
    hf = hf_class.from_pretrained(plain, dtype=torch.float32, attn_implementation="eager").to(DEVICE).eval()
    _, prompts, answers = measure(m, tok, a)
    chat, fewp, st, sc = prompts["chat"], prompts["five_shot"], prompts["story"], answers["story"]
    for c in (fewp[0], chat[0]):
        x = torch.tensor([c], device=DEVICE)
        mine, ref = m.lm_head(m.trunk(x)[0]), hf(x, use_cache=False).logits
        print("max |mine - transformers|", (mine - ref).abs().max().item(), "of", ref.abs().max().item(), flush=True)
    gold = {}
    cases = [chat_prompt(tok, "Count from 3 to 9."), chat[1], fewp[2], st[3] + sc[3], (fewp[3] + fewp[4])[:900]]
    for i, c in enumerate(cases):
        x = torch.tensor([c], device=DEVICE)
        o = hf(x, output_hidden_states=True, use_cache=False)
        gold[f"case{i}.ids"] = torch.tensor(c, dtype=torch.int32)
        gold[f"case{i}.logits"] = o.logits[0].cpu()
        if i == 0:
            for j, hs in list(enumerate(o.hidden_states))[1:]:  # the first are the embeddings
                gold[f"case{i}.hidden_states.{j}"] = hs[0].cpu()
        _, ctx, _ = m.trunk(x)
        for k in range(m.modules_count):
            t = len(c) - (k + 1)
            h, ctx, _ = m.draft(k, ctx[:, :t], x[:, k + 1:k + 1 + t])
            gold[f"case{i}.mtp{k}.hidden"] = h[0].cpu()
            gold[f"case{i}.mtp{k}.logits"] = m.module_head(k)(h)[0].cpu()
    for n in list(gold):  # logits of the last position, hidden rows of modules of the last 4
        last = 1 if n.endswith("logits") else 4 if n.endswith("hidden") else len(gold[n])
        gold[n] = gold[n][-last:].contiguous().clone()
    save_file(gold, os.path.join(a.out, "golden.safetensors"))
    js = []
    for p in chat[:24] + fewp[:8] + st[:8]:
        x = torch.tensor([p], device=DEVICE)
        y = hf.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=128, do_sample=False, pad_token_id=1)[0, len(p):].tolist()
        js.append(dict(prompt_ids=p, greedy_ids=y))
    dump(a, "golden_greedy.json", js)
    write_tokenizer_cases(tok, a)
    if a.fp8:
        shutil.rmtree(plain)
    list_files(a)
