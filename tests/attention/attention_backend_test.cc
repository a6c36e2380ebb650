#include "outrider/attention/attention_backend.h"

#include <gtest/gtest.h>

#include <set>

namespace outrider {
namespace {

TEST(AttentionBackendTest, NamesAreTheirOwn) {
  std::set<std::string_view> names;
  for (const AttentionBackend backend : kAllAttentionBackends) {
    EXPECT_TRUE(names.insert(AttentionBackendName(backend)).second);
    EXPECT_FALSE(AttentionBackendSummary(backend).empty());
  }
}

TEST(AttentionBackendTest, OnlyThoseThatLeaveNothingOverKeepExactness) {
  EXPECT_TRUE(KeepsExactness(AttentionBackend::kRagged));
  EXPECT_TRUE(KeepsExactness(AttentionBackend::kUniformPad));
  EXPECT_FALSE(KeepsExactness(AttentionBackend::kUniformShortest));
  EXPECT_FALSE(KeepsExactness(AttentionBackend::kUniformLargest));
  EXPECT_FALSE(KeepsExactness(AttentionBackend::kSingle));
  EXPECT_EQ(DecodeKernelOf(AttentionBackend::kSingle).lengths, QueryLengths::kSingle);
  EXPECT_EQ(DecodeKernelOf(AttentionBackend::kUniformLargest).policy, UniformPolicy::kLargestClass);
}

}  // namespace
}  // namespace outrider
