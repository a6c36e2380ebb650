// Which experts a row goes to, and with what weights.
#pragma once

#include <cstdint>

#include "outrider/base/matrix_view.h"
#include "outrider/checkpoint/model_config.h"

namespace outrider {

/// Chooses num_experts_per_tok experts per row from router logits [rows, experts]; `bias` [experts]
/// is e_score_correction_bias (kNoAuxTc, DeepSeek-V3 arXiv:2412.19437 §2.1.2) or null. Writes
/// expert ids [rows, top_k], best first, ties by lower id, and weights [rows, top_k]: the unbiased
/// scores, normalised if the config says so, times routed_scaling_factor. Overwrites logits with
/// scores.
void RouteRows(const ModelConfig& config, MatrixView<float> logits, const float* bias,
               int32_t* expert_ids, float* weights);

}  // namespace outrider
