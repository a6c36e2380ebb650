"""Random matrices as published checkpoints store them in 8 and 4 bits, and what they stand for:
for the oracles that write checkpoints. Needs numpy.

Each function gives (values, parts): float32 values [rows, cols], and the tensors that the matrix
NAME is stored as, {suffix of NAME: (safetensors' type, array)}.
"""
import numpy as np

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def e4m3(codes):
    """Values of normal e4m3 codes, as float64."""
    codes = codes.astype(np.int64)
    magnitude = np.ldexp(8.0 + (codes & 7), (codes >> 3 & 15) - 10)
    return np.where(codes & 0x80, -magnitude, magnitude)


def fp8_blocks(generator, rows, cols, deviation, block=128, powers=False):
    """Codes with an F32 scale for each block of [block, block]; powers: powers of two."""
    codes = generator.integers(0x28, 0x40, size=(rows, cols)) | (
        0x80 * generator.integers(0, 2, size=(rows, cols)))
    blocks = (-(-rows // block), -(-cols // block))
    scales = deviation / 1.2 * generator.uniform(0.5, 1.5, size=blocks)
    if powers:
        scales = 2.0 ** np.round(np.log2(scales))
    scales = scales.astype(np.float32)
    spread = np.repeat(np.repeat(scales, block, 0), block, 1)[:rows, :cols]
    return ((e4m3(codes) * spread).astype(np.float32),
            {".weight": ("F8_E4M3", codes.astype(np.uint8)), ".weight_scale_inv": ("F32", scales)})


def int4_groups(generator, rows, cols, deviation, group=32):
    """compressed-tensors' pack-quantized: eight codes to a word, a bfloat16 scale for each group
    of columns."""
    codes = generator.integers(0, 16, size=(rows, cols)).astype(np.uint32)
    scales = deviation / 4.6 * generator.uniform(0.5, 1.5, size=(rows, cols // group))
    bits = (scales.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    exact = (bits.astype(np.uint32) << 16).view(np.float32)
    words = np.zeros((rows, cols // 8), np.uint32)
    for i in range(8):
        words |= codes[:, i::8] << np.uint32(4 * i)
    return ((codes.astype(np.int64) - 8) * np.repeat(exact, group, 1).astype(np.float32),
            {".weight_packed": ("I32", words), ".weight_scale": ("BF16", bits),
             ".weight_shape": ("I64", np.array([rows, cols], np.int64))})


def mxfp4(generator, rows, cols, deviation, scales_name=".weight_scale_inv", scales_type="U8"):
    """e2m1 codes, two to a byte, with a power of two for 32 columns, as Ling-3.0 is published."""
    pairs = generator.integers(0, 256, size=(rows, cols // 2)).astype(np.uint8)
    exponent = int(np.round(np.log2(deviation / 2.9)))
    scales = (127 + exponent + generator.integers(0, 2, size=(rows, cols // 32))).astype(np.uint8)
    codes = np.stack([pairs & 15, pairs >> 4], -1).reshape(rows, cols)
    values = np.where(codes >= 8, -1, 1) * E2M1[codes & 7]
    values = values * np.repeat(2.0 ** (scales.astype(np.float64) - 127), 32, 1)
    return (values.astype(np.float32),
            {".weight": ("U8", pairs), scales_name: (scales_type, scales)})
