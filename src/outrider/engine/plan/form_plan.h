// In which form the entries of attention are cached, and which path rows take through it.
#pragma once

#include "outrider/attention/row_path.h"
#include "outrider/engine/engine_options.h"
#include "outrider/engine/plan/decision.h"
#include "outrider/engine/plan/facts.h"

namespace outrider {

struct FormPlan {
  KvCacheForm cache = KvCacheForm::kLatent;  // of latent attention; kHeads where no layer has it
  RowPaths paths = KvCacheForm::kLatent;     // of all layers, the model's modules included
};

/// kv_dtype: of the cache. Throws Error for a form, or an attention backend, that the model's
/// attention does not have.
FormPlan PlanForm(const EngineOptions& options, const ModelConfig& config, DType kv_dtype,
                  DeviceKind device, Decisions& decisions);

}  // namespace outrider
