#include "outrider/attention/row_path.h"

#include "outrider/base/error.h"

namespace outrider {

RowPaths RowPathsOf(const LayerSpec& layer, KvCacheForm form) {
  const AttentionSpec& attention = layer.attention;
  OUTRIDER_CHECK(!std::holds_alternative<KdaSpec>(attention), "linear attention keeps no entries");
  if (std::holds_alternative<CompressedSpec>(attention) || layer.indexer() != nullptr) {
    return RowPaths(RowPath::kListed);
  }
  if (std::holds_alternative<GqaSpec>(attention)) return RowPaths(RowPath::kPerHead);
  return form;
}

RowPaths RowPathsOf(const ModelConfig& config, KvCacheForm form) {
  RowPaths paths;
  const auto add = [&](const LayerSpec& layer) {
    if (std::holds_alternative<KdaSpec>(layer.attention)) return;
    paths = paths | RowPathsOf(layer, form);
  };
  for (const LayerSpec& layer : config.layers) add(layer);
  if (config.num_nextn_predict_layers > 0) add(config.mtp_layer);
  return paths;
}

const char* RowPathName(RowPath path) {
  switch (path) {
    case RowPath::kAbsorbed:
      return "absorbed";
    case RowPath::kExpanded:
      return "expanded";
    case RowPath::kListed:
      return "listed";
    case RowPath::kPerHead:
      return "per head";
  }
  OUTRIDER_CHECK(false);
}

}  // namespace outrider
