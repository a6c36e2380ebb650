#include "outrider/attention/row_path.h"

#include "outrider/base/error.h"

namespace outrider {

RowPaths RowPathsOf(const LayerSpec& layer, KvCacheForm form) {
  const AttentionSpec& attention = layer.attention;
  OUTRIDER_CHECK(!std::holds_alternative<KdaSpec>(attention), "linear attention keeps no entries");
  RowPaths paths(form);
  const auto* mla = std::get_if<MlaSpec>(&attention);
  if (std::holds_alternative<CompressedSpec>(attention) || (mla != nullptr && mla->indexer)) {
    paths.generated = paths.prompt = RowPath::kListed;
  } else if (std::holds_alternative<GqaSpec>(attention)) {
    paths.generated = paths.prompt = RowPath::kPerHead;
  }
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
