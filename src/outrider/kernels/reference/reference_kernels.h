// The kernel table in plain C++: what each entry means. Slow on purpose, it is read and compared.
#pragma once

#include "outrider/kernels/kernel_table.h"

namespace outrider::reference {

const KernelTable& Kernels();

void MatMul(ThreadPool& pool, std::span<const MatMulJob> jobs, DType operand_dtype);
void MatMulArgMax(ThreadPool& pool, const ArgMaxJob& job, DType operand_dtype);
void RmsNorm(ThreadPool& pool, MatrixView<const float> x, const float* weight, float eps,
             MatrixView<float> y);
void SiluMul(ThreadPool& pool, MatrixView<const float> x, float limit, MatrixView<float> y);
void GateHeads(ThreadPool& pool, MatrixView<const float> gates, MatrixView<float> x);
void Rotate(ThreadPool& pool, MatrixView<float> x, int32_t groups, int32_t group_stride,
            int32_t offset, const RotaryRows& rotary);
void WriteLatent(ThreadPool& pool, MatrixView<const float> kv, const float* weight, float eps,
                 const RotaryRows& rotary, const int64_t* slot_mapping, LayerCache cache);
void GatherLatent(ThreadPool& pool, LayerCache cache, const int32_t* block_table,
                  int32_t first_position, MatrixView<float> latent, MatrixView<float> rope);
void WriteEntries(ThreadPool& pool, MatrixView<const float> entries, const int64_t* slot_mapping,
                  LayerCache cache);
void AbsorbedAttention(ThreadPool& pool, const AbsorbedAttentionArgs& args);
void PerHeadAttention(ThreadPool& pool, const PerHeadAttentionArgs& args);
void ListedAttention(ThreadPool& pool, const ListedAttentionArgs& args);
void ExpandedAttention(ThreadPool& pool, const ExpandedAttentionArgs& args);
void CombineExperts(ThreadPool& pool, MatrixView<const float> y, const int32_t* rows,
                    const float* weights, int32_t top_k, MatrixView<float> out);
void AddWeighted(const float* const* y, const float* weights, int64_t count, int64_t n, float* out);

/// rms_norm of one row of n values; y may be x.
void RmsNormRow(const float* x, const float* weight, float eps, int64_t n, float* y);

/// Rotates one head's R = rotary.cos.cols * 2 values in place with the angles of `row`.
void RotateRow(float* x, const RotaryRows& rotary, int64_t row);

/// Element i of the cache, as float.
float CacheValue(const LayerCache& cache, int64_t i);

}  // namespace outrider::reference
