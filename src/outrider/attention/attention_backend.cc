#include "outrider/attention/attention_backend.h"

#include "outrider/base/error.h"

namespace outrider {

namespace {

struct Row {
  std::string_view name;
  std::string_view summary;
  DecodeKernel kernel;
  bool exact;
};

// In the order of AttentionBackend.
constexpr std::array<Row, kAllAttentionBackends.size()> kRows = {{
    {"ragged",
     "decode requests of any lengths run in one kernel call",
     {QueryLengths::kRagged},
     true},
    {"uniform-pad",
     "decode requests are padded to 1 + k rows for a uniform kernel",
     {QueryLengths::kUniform, UniformPolicy::kPad},
     true},
    {"uniform-shortest",
     "a uniform kernel runs the decode requests of the shortest length, the others are expanded",
     {QueryLengths::kUniform, UniformPolicy::kShortestQualifying},
     false},
    {"uniform-largest",
     "a uniform kernel runs the decode requests of the most frequent length, the others are "
     "expanded",
     {QueryLengths::kUniform, UniformPolicy::kLargestClass},
     false},
    {"single",
     "the decode kernel runs requests of one row, those with drafts are expanded",
     {QueryLengths::kSingle},
     false},
}};

const Row& RowOf(AttentionBackend backend) { return kRows.at(static_cast<size_t>(backend)); }

}  // namespace

std::string_view AttentionBackendName(AttentionBackend backend) { return RowOf(backend).name; }

std::string_view AttentionBackendSummary(AttentionBackend backend) {
  return RowOf(backend).summary;
}

DecodeKernel DecodeKernelOf(AttentionBackend backend) { return RowOf(backend).kernel; }

bool KeepsExactness(AttentionBackend backend) { return RowOf(backend).exact; }

}  // namespace outrider
