// Which experts a row goes to, and with what weights.
#pragma once

#include <cstdint>

#include "outrider/base/matrix_view.h"
#include "outrider/checkpoint/layer_spec.h"

namespace outrider::cpu {

/// Chooses top_k experts per row from router logits [rows, experts]; `bias` [experts]
/// is e_score_correction_bias (kNoAuxTc, DeepSeek-V3 arXiv:2412.19437 §2.1.2) or null. Writes
/// expert ids [rows, top_k], best first, ties by lower id, and weights [rows, top_k]: the unbiased
/// scores, normalised if the spec says so, times scaling_factor. A row's experts are different ones
/// also where logits are NaN: scores that are count as the least. Overwrites logits with scores.
void RouteRows(const RouterSpec& spec, MatrixView<float> logits, const float* bias,
               int32_t* expert_ids, float* weights);

/// The weights alone, of experts that are chosen already. Overwrites logits with scores.
void WeighRows(const RouterSpec& spec, MatrixView<float> logits, const int32_t* expert_ids,
               float* weights);

}  // namespace outrider::cpu
