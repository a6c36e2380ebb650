"""The expanded prompt form (query and key width 192, value width 128, causal bottom-right) through
cuDNN: TFLOP/s, and whether a row's bits stay the same alone, in a batch and in a later chunk.

Needs PyTorch with a Hopper GPU and the package nvidia-cudnn-frontend.
"""

import cudnn
import torch

HANDLE = cudnn.create_handle()
SCALE = 192**-0.5


class Attention:
    """A plan for one shape; a padded one takes the requests' actual lengths."""

    def __init__(self, batch, heads, query_len, key_len, padded):
        self.shape = (batch, heads, query_len, key_len)
        self.graph = graph = cudnn.pygraph(
            io_data_type=cudnn.data_type.BFLOAT16,
            intermediate_data_type=cudnn.data_type.FLOAT,
            compute_data_type=cudnn.data_type.FLOAT,
            handle=HANDLE,
        )

        def tensor(name, length, width):
            # [batch, length, heads, width] in memory, the layout of flat rows.
            return graph.tensor(
                name=name,
                dim=[batch, heads, length, width],
                stride=[length * heads * width, width, heads * width, 1],
                data_type=cudnn.data_type.BFLOAT16,
            )

        self.q, self.k, self.v = (
            tensor("q", query_len, 192),
            tensor("k", key_len, 192),
            tensor("v", key_len, 128),
        )
        lengths = {}
        if padded:
            for name in ("seq_len_q", "seq_len_kv"):
                lengths[name] = graph.tensor(
                    name=name,
                    dim=[batch, 1, 1, 1],
                    stride=[1, 1, 1, 1],
                    data_type=cudnn.data_type.INT32,
                )
            lengths["use_padding_mask"] = True
        self.lengths = lengths
        self.o, self.stats = graph.sdpa(
            name="sdpa",
            q=self.q,
            k=self.k,
            v=self.v,
            generate_stats=True,
            attn_scale=SCALE,
            diagonal_alignment=cudnn.diagonal_alignment.BOTTOM_RIGHT,
            diagonal_band_right_bound=0,
            **lengths,
        )
        self.o.set_output(True).set_dim([batch, heads, query_len, 128]).set_stride(
            [query_len * heads * 128, 128, heads * 128, 1]
        )
        self.stats.set_output(True).set_data_type(cudnn.data_type.FLOAT)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A])
        graph.check_support()
        graph.build_plans()
        self.workspace = torch.empty(
            max(1, graph.get_workspace_size()), device="cuda", dtype=torch.uint8
        )

    def __call__(self, q, k, v, query_lens=None, key_lens=None):
        batch, heads, query_len, _ = self.shape
        o = torch.full((batch, query_len, heads, 128), float("nan"), device="cuda").bfloat16()
        stats = torch.empty((batch, heads, query_len, 1), device="cuda")
        tensors = {self.q: q, self.k: k, self.v: v, self.o: o, self.stats: stats}
        if self.lengths:
            for name, values in (("seq_len_q", query_lens), ("seq_len_kv", key_lens)):
                tensors[self.lengths[name]] = torch.tensor(
                    values, device="cuda", dtype=torch.int32
                ).view(batch, 1, 1, 1)
        self.run = lambda: self.graph.execute(tensors, self.workspace, handle=HANDLE)
        self.run()
        torch.cuda.synchronize()
        return o

    def microseconds(self, repeats=20):
        times = []
        for _ in range(repeats):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            self.run()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1000)
        return sorted(times)[repeats // 2]


def noise(batch, length, heads):
    return [
        torch.randn(batch, length, heads, width, device="cuda").bfloat16()
        for width in (192, 192, 128)
    ]


def reference(q, k, v):
    scores = torch.einsum("qhd,khd->hqk", q.double(), k.double()) * SCALE
    offset = k.shape[0] - q.shape[0]
    keys = torch.arange(k.shape[0], device="cuda")
    rows = torch.arange(q.shape[0], device="cuda")
    scores.masked_fill_(keys[None, :] > rows[:, None] + offset, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.double())


def speed():
    for heads, query_len, key_len in [
        (128, 1024, 1024),
        (128, 2048, 2048),
        (128, 4096, 4096),
        (128, 8192, 8192),
        (16, 8192, 8192),
        (128, 1024, 8192),
        (16, 1024, 8192),
    ]:
        q, k, v = noise(1, key_len, heads)
        attention = Attention(1, heads, query_len, key_len, False)
        attention(q[:, :query_len].contiguous(), k, v)
        pairs = query_len * (key_len - query_len) + query_len * (query_len + 1) / 2
        us = attention.microseconds()
        print(
            f"heads {heads:3d}  {query_len:5d} queries  {key_len:5d} keys  {us:9.1f} us  "
            f"{2 * 320 * heads * pairs / us / 1e6:6.1f} TFLOP/s"
        )


def differing(got, wanted):
    rows = (got != wanted).flatten(1).any(1)
    return f"{int(rows.sum())} of {len(rows)} rows differ"


def bits(heads, lengths):
    """Prompts alone, in a batch, and the first of them in chunks."""
    n = lengths[0]
    longest = -(-n // 1024) * 1024
    print(f"{heads} heads, {n} tokens")
    q, k, v = noise(len(lengths), longest, heads)
    batch = Attention(len(lengths), heads, longest, longest, True)
    together = batch(q, k, v, lengths, lengths)
    print("again:", differing(batch(q, k, v, lengths, lengths)[0, :n], together[0, :n]))
    one = Attention(1, heads, longest, longest, True)
    for i, length in enumerate(lengths):
        few = slice(0, 8)  # heads, for the reference
        wanted = reference(q[i, :length, few], k[i, :length, few], v[i, :length, few])
        error = ((together[i, :length, few].double() - wanted).norm() / wanted.norm()).item()
        row = slice(i, i + 1)
        padded = one(q[row], k[row], v[row], [length], [length])[0, :length]
        exact = Attention(1, heads, length, length, False)(
            q[row, :length].contiguous(), k[row, :length].contiguous(), v[row, :length].contiguous()
        )[0]
        print(
            f"length {length}: error against float64 {error:.1e}; alone against batch, padded "
            f"plan: {differing(padded, together[i, :length])}; plan of its length: "
            f"{differing(exact, together[i, :length])}"
        )
    # Rows first..end - 1 as a chunk over their keys, against the prompt in one piece: with plans of
    # exact lengths, and with the padded plan for both.
    whole = Attention(1, heads, n, n, False)(
        q[:1, :n].contiguous(), k[:1, :n].contiguous(), v[:1, :n].contiguous()
    )[0]
    for first, end in [
        *((first, n) for first in (1, 64, 128, 256, 512, 700, 872, 936, n - 64, n - 1)),
        *((0, end) for end in (128, 500, 512, 900)),
        (256, 512),
    ]:
        exact = Attention(1, heads, end - first, end, False)(
            q[:1, first:end].contiguous(), k[:1, :end].contiguous(), v[:1, :end].contiguous()
        )[0]
        shifted = torch.zeros_like(q[:1])
        shifted[:, : end - first] = q[:1, first:end]
        same = one(shifted, k[:1], v[:1], [end - first], [end])[0, : end - first]
        print(
            f"rows {first}..{end - 1} as a chunk: exact plans {differing(exact, whole[first:end])}, "
            f"padded plan {differing(same, together[0, first:end])}"
        )


if __name__ == "__main__":
    torch.manual_seed(1)
    print("cuDNN", cudnn.backend_version(), "frontend", cudnn.__version__)
    print(torch.cuda.get_device_name())
    bits(16, [1000, 700, 300, 1])
    bits(128, [4000, 2500, 700, 1])
    bits(16, [16000, 8191])
    speed()
