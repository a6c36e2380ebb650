// Layouts for the attention tests: requests given by phase, rows and context, on block tables of
// their own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "outrider/batch/batch_layout.h"

namespace outrider {

struct TestRequest {
  Phase phase = Phase::kDecode;
  int32_t rows = 1;
  int32_t context = 1;
  int32_t positions = 0;  // that its block table covers, if more than context + rows
};

class TestLayout {
 public:
  TestLayout(const std::vector<TestRequest>& requests, int32_t block_size) : layout_(block_size) {
    for (const TestRequest& request : requests) {
      const int32_t positions = std::max(request.positions, request.context + request.rows);
      const int32_t blocks = (positions + block_size - 1) / block_size;
      std::vector<int32_t>& table = tables_.emplace_back();
      for (int32_t b = 0; b < blocks; ++b) table.push_back(num_blocks_++);
      tokens_.emplace_back(static_cast<size_t>(request.rows), 1);
    }
    std::vector<RequestWork> work;
    for (size_t i = 0; i < requests.size(); ++i) {
      if (requests[i].rows == 0) continue;  // has its blocks, but is not in the step
      work.push_back({.slot = static_cast<int32_t>(i),
                      .phase = requests[i].phase,
                      .context_length = requests[i].context,
                      .tokens = tokens_[i],
                      .draft_tokens = {},
                      .samples = requests[i].phase != Phase::kPromptChunk,
                      .block_tables = {&tables_[i], 1}});
    }
    layout_.Assign(work);
  }
  TestLayout(const TestLayout&) = delete;
  TestLayout& operator=(const TestLayout&) = delete;

  const BatchLayout& layout() const { return layout_; }
  int32_t num_blocks() const { return num_blocks_; }

 private:
  std::vector<std::vector<int32_t>> tables_;
  std::vector<std::vector<int32_t>> tokens_;
  int32_t num_blocks_ = 0;
  BatchLayout layout_;
};

}  // namespace outrider
