#include "outrider/attention/row_path.h"

#include "outrider/base/error.h"

namespace outrider {

RowPaths RowPathsOf(const LayerSpec& layer, KvCacheForm form) {
  const AttentionSpec& attention = layer.attention;
  OUTRIDER_CHECK(!std::holds_alternative<KdaSpec>(attention), "linear attention keeps no entries");
  const auto* mla = std::get_if<MlaSpec>(&attention);
  if (std::holds_alternative<CompressedSpec>(attention) || (mla != nullptr && mla->indexer)) {
    return RowPaths(RowPath::kListed);
  }
  if (std::holds_alternative<GqaSpec>(attention)) return RowPaths(RowPath::kPerHead);
  return form;
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
