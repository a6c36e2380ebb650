// The decode split: a table of batches for every kind of kernel, then its rules on random batches.
// The table makes it long.
#include "outrider/batch/decode_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <ostream>
#include <set>
#include <sstream>
#include <string>

namespace outrider {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr DecodeKernel kSingle{QueryLengths::kSingle};
constexpr DecodeKernel kShortest{QueryLengths::kUniform, UniformPolicy::kShortestQualifying};
constexpr DecodeKernel kLargest{QueryLengths::kUniform, UniformPolicy::kLargestClass};
constexpr DecodeKernel kPad{QueryLengths::kUniform, UniformPolicy::kPad};
constexpr DecodeKernel kRagged{QueryLengths::kRagged};

/// "2 p4 0": a decode request of 2 rows, a prompt of 4, a decode request without rows.
std::vector<RequestRows> Requests(const std::string& text) {
  std::vector<RequestRows> requests;
  std::istringstream words(text);
  int32_t first_row = 0;
  for (std::string word; words >> word;) {
    const bool prompt = word.front() == 'p';
    RequestRows request;
    request.phase = prompt ? Phase::kPromptEnd : Phase::kDecode;
    request.first_row = first_row;
    request.query_length = std::stoi(word.substr(prompt ? 1 : 0));
    request.context_length = 10;
    first_row += request.query_length;
    requests.push_back(request);
  }
  return requests;
}

DecodeSplit Split(const DecodeKernel& kernel, int32_t threshold, const std::string& text) {
  DecodeSplit split;
  SplitDecodes(kernel, threshold, Requests(text), split);
  return split;
}

using Indices = std::vector<int32_t>;

struct Case {
  const char* name;
  const char* requests;
  int32_t threshold;
  Indices prompts;
  // What the decode kernel gets; the rest is left over.
  Indices single, shortest, largest, pad, ragged;
  int32_t shortest_length, largest_length;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.requests; }

class DecodeSplitTable : public testing::TestWithParam<Case> {
 protected:
  static void Expect(const DecodeKernel& kernel, const Indices& decode, int32_t query_length) {
    const Case& c = GetParam();
    const DecodeSplit split = Split(kernel, c.threshold, c.requests);
    EXPECT_EQ(split.decode, decode);
    EXPECT_EQ(split.query_length, query_length);
    EXPECT_EQ(split.prompts, c.prompts);
    const auto requests = Requests(c.requests);
    Indices left_over;
    for (int32_t i = 0; i < static_cast<int32_t>(requests.size()); ++i) {
      const auto in = [i](const Indices& list) {
        return std::find(list.begin(), list.end(), i) != list.end();
      };
      const bool has_rows = requests[static_cast<size_t>(i)].query_length > 0;
      if (has_rows && !in(decode) && !in(c.prompts)) left_over.push_back(i);
    }
    EXPECT_EQ(split.left_over, left_over);
  }
};

TEST_P(DecodeSplitTable, Single) { Expect(kSingle, GetParam().single, !GetParam().single.empty()); }

TEST_P(DecodeSplitTable, UniformShortestQualifying) {
  Expect(kShortest, GetParam().shortest, GetParam().shortest_length);
}

TEST_P(DecodeSplitTable, UniformLargestClass) {
  Expect(kLargest, GetParam().largest, GetParam().largest_length);
}

TEST_P(DecodeSplitTable, UniformPad) {
  Expect(kPad, GetParam().pad, GetParam().pad.empty() ? 0 : GetParam().threshold);
}

TEST_P(DecodeSplitTable, Ragged) { Expect(kRagged, GetParam().ragged, 0); }

INSTANTIATE_TEST_SUITE_P(
    Batches, DecodeSplitTable,
    testing::Values(
        // name, requests, threshold, prompts, single, shortest, largest, pad, ragged, lengths
        Case{"all_equal",
             "2 2 2 2",
             4,
             {},
             {},
             {0, 1, 2, 3},
             {0, 1, 2, 3},
             {0, 1, 2, 3},
             {0, 1, 2, 3},
             2,
             2},
        Case{"two_classes",
             "1 2 2 1",
             4,
             {},
             {0, 3},
             {0, 3},
             {1, 2},
             {0, 1, 2, 3},
             {0, 1, 2, 3},
             1,
             2},
        Case{"two_classes_in_layout_order",
             "1 1 2 2",
             4,
             {},
             {0, 1},
             {0, 1},
             {2, 3},
             {0, 1, 2, 3},
             {0, 1, 2, 3},
             1,
             2},
        Case{"one_without_drafts",
             "1 4 4 4",
             4,
             {},
             {0},
             {0},
             {1, 2, 3},
             {0, 1, 2, 3},
             {0, 1, 2, 3},
             1,
             4},
        Case{"three_classes",
             "2 2 1 3 2 1 2",
             3,
             {},
             {2, 5},
             {2, 5},
             {0, 1, 4, 6},
             {0, 1, 2, 3, 4, 5, 6},
             {0, 1, 2, 3, 4, 5, 6},
             1,
             2},
        Case{"all_too_long", "4 5 6 7", 3, {}, {}, {}, {}, {}, {}, 0, 0},
        Case{"one_too_long", "3 3 4", 3, {}, {}, {0, 1}, {0, 1}, {0, 1}, {0, 1}, 3, 3},
        // A class of the longest qualifying length must not be hidden by a longer request.
        Case{"longest_class_is_too_long", "2 9 9 9", 4, {}, {}, {0}, {0}, {0}, {0}, 2, 2},
        Case{"a_prompt_of_one_and_k_tokens",
             "4 4 p4",
             4,
             {2},
             {},
             {0, 1},
             {0, 1},
             {0, 1},
             {0, 1},
             4,
             4},
        Case{"a_prompt_of_one_token", "1 p1 4 p1", 4, {1, 3}, {0}, {0}, {2}, {0, 2}, {0, 2}, 1, 4},
        Case{"prompts_only", "p4 p1 p900", 4, {0, 1, 2}, {}, {}, {}, {}, {}, 0, 0},
        Case{"fewer_drafts_than_k",
             "4 3 4 4",
             4,
             {},
             {},
             {1},
             {0, 2, 3},
             {0, 1, 2, 3},
             {0, 1, 2, 3},
             3,
             4},
        Case{"padding_rows_at_the_end",
             "2 2 2 0 0",
             3,
             {},
             {},
             {0, 1, 2},
             {0, 1, 2},
             {0, 1, 2},
             {0, 1, 2},
             2,
             2},
        Case{"padding_rows_anywhere", "0 1 0 3 p2 0", 3, {4}, {1}, {1}, {3}, {1, 3}, {1, 3}, 1, 3},
        Case{"padding_rows_only", "0 0 0", 3, {}, {}, {}, {}, {}, {}, 0, 0},
        Case{"an_empty_prompt", "p0 1", 1, {}, {1}, {1}, {1}, {1}, {1}, 1, 1},
        Case{"without_speculation",
             "1 1 1 p7",
             1,
             {3},
             {0, 1, 2},
             {0, 1, 2},
             {0, 1, 2},
             {0, 1, 2},
             {0, 1, 2},
             1,
             1},
        Case{"recomputed_without_speculation",
             "1 1 30",
             1,
             {},
             {0, 1},
             {0, 1},
             {0, 1},
             {0, 1},
             {0, 1},
             1,
             1},
        Case{"more_requests_beat_more_rows",
             "1 1 1 4",
             4,
             {},
             {0, 1, 2},
             {0, 1, 2},
             {0, 1, 2},
             {0, 1, 2, 3},
             {0, 1, 2, 3},
             1,
             1},
        Case{"nothing", "", 4, {}, {}, {}, {}, {}, {}, 0, 0}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(DecodeSplitTest, TheKernelsLongestQueryBoundsTheThreshold) {
  for (const DecodeKernel& any : {kShortest, kLargest, kPad, kRagged}) {
    DecodeKernel kernel = any;
    kernel.longest_query = 2;
    const DecodeSplit split = Split(kernel, 4, "2 3 2 4");
    EXPECT_THAT(split.decode, ElementsAre(0, 2));
    EXPECT_THAT(split.left_over, ElementsAre(1, 3));
    EXPECT_EQ(split.query_length, kernel.lengths == QueryLengths::kRagged ? 0 : 2);
  }
}

TEST(DecodeSplitTest, ReplacesWhatWasThere) {
  DecodeSplit split = Split(kPad, 4, "1 2 p3 9");
  SplitDecodes(kPad, 4, Requests("p1"), split);
  EXPECT_THAT(split.decode, IsEmpty());
  EXPECT_THAT(split.left_over, IsEmpty());
  EXPECT_THAT(split.prompts, ElementsAre(0));
  EXPECT_EQ(split.query_length, 0);
}

TEST(DecodeSplitTest, TakesALayoutAsItIs) {
  const std::vector<int32_t> tokens(7, 1);
  const std::vector<int32_t> blocks = {0, 1, 2, 3};
  const auto work = [&](Phase phase, size_t rows, size_t drafts) {
    return RequestWork{.slot = 0,
                       .phase = phase,
                       .context_length = 5,
                       .tokens = std::span(tokens).first(rows),
                       .draft_tokens = std::span(tokens).first(drafts),
                       .samples = true,
                       .block_tables = {&blocks, 1}};
  };
  BatchLayout layout(4);
  layout.Assign(std::vector{work(Phase::kPromptEnd, 4, 0), work(Phase::kDecode, 1, 3),
                            work(Phase::kDecode, 1, 0), work(Phase::kDecode, 1, 3)});
  DecodeSplit split;
  SplitDecodes(kLargest, 4, layout.requests(), split);
  EXPECT_THAT(split.decode, ElementsAre(1, 2));
  EXPECT_THAT(split.left_over, ElementsAre(0));
  EXPECT_THAT(split.prompts, ElementsAre(3));
}

TEST(CutRunsTest, RunsCoverTheRequestInOrder) {
  RequestRows request;
  request.first_row = 7;
  request.query_length = 10;
  request.context_length = 90;
  request.num_drafts = 3;
  request.num_logits_rows = 4;
  std::vector<RequestRows> runs(1);  // what was there stays
  CutRuns(request, 4, runs);
  ASSERT_EQ(runs.size(), 4U);
  const auto expect = [&](size_t i, int32_t row, int32_t length, int32_t context) {
    EXPECT_EQ(runs[i].first_row, row);
    EXPECT_EQ(runs[i].query_length, length);
    EXPECT_EQ(runs[i].context_length, context);
    EXPECT_EQ(runs[i].num_drafts + runs[i].num_logits_rows, 0);
  };
  expect(1, 7, 4, 90);
  expect(2, 11, 4, 94);
  expect(3, 15, 2, 98);
}

TEST(CutRunsTest, ARequestThatFitsIsOneRun) {
  RequestRows request;
  request.query_length = 4;
  std::vector<RequestRows> runs;
  CutRuns(request, 4, runs);
  ASSERT_EQ(runs.size(), 1U);
  request.query_length = 0;
  CutRuns(request, 4, runs);
  EXPECT_EQ(runs.size(), 1U);
}

struct RandomBatch {
  DecodeKernel kernel;
  int32_t threshold = 1;
  std::vector<RequestRows> requests;

  DecodeSplit Run() const {
    DecodeSplit split;
    SplitDecodes(kernel, threshold, requests, split);
    return split;
  }
  int32_t Length(int32_t i) const { return requests[static_cast<size_t>(i)].query_length; }
  Phase PhaseOf(int32_t i) const { return requests[static_cast<size_t>(i)].phase; }
  int32_t Longest() const {
    const int32_t takes = kernel.lengths == QueryLengths::kSingle ? 1 : kernel.longest_query;
    return std::min(threshold, takes);
  }
};

RandomBatch AnyBatch() {
  RandomBatch batch;
  batch.kernel.lengths =
      *rc::gen::element(QueryLengths::kSingle, QueryLengths::kUniform, QueryLengths::kRagged);
  batch.kernel.policy = *rc::gen::element(UniformPolicy::kShortestQualifying,
                                          UniformPolicy::kLargestClass, UniformPolicy::kPad);
  if (*rc::gen::arbitrary<bool>()) batch.kernel.longest_query = *rc::gen::inRange(1, 7);
  batch.threshold = *rc::gen::inRange(1, 7);
  const auto pairs = *rc::gen::container<std::vector<std::pair<int, int>>>(
      rc::gen::pair(rc::gen::inRange(0, 9), rc::gen::inRange(0, 4)));
  for (const auto& [length, phase] : pairs) {
    RequestRows request;
    request.query_length = length;
    request.phase = phase == 0   ? Phase::kPromptChunk
                    : phase == 1 ? Phase::kPromptEnd
                                 : Phase::kDecode;
    request.slot = static_cast<int32_t>(batch.requests.size());
    batch.requests.push_back(request);
  }
  return batch;
}

RC_GTEST_PROP(DecodeSplitProperty, EveryRequestWithRowsIsInExactlyOneList, ()) {
  const RandomBatch batch = AnyBatch();
  const DecodeSplit split = batch.Run();
  std::set<int32_t> seen;
  for (const Indices* list : {&split.decode, &split.left_over, &split.prompts}) {
    RC_ASSERT(std::is_sorted(list->begin(), list->end()));
    for (const int32_t i : *list) {
      RC_ASSERT(batch.Length(i) > 0);
      RC_ASSERT(seen.insert(i).second);
      RC_ASSERT((batch.PhaseOf(i) == Phase::kDecode) == (list != &split.prompts));
    }
  }
  const auto with_rows = std::count_if(batch.requests.begin(), batch.requests.end(),
                                       [](const RequestRows& r) { return r.query_length > 0; });
  RC_ASSERT(static_cast<int64_t>(seen.size()) == static_cast<int64_t>(with_rows));
}

RC_GTEST_PROP(DecodeSplitProperty, TheKernelGetsOnlyWhatItTakes, ()) {
  const RandomBatch batch = AnyBatch();
  const DecodeSplit split = batch.Run();
  for (const int32_t i : split.decode) {
    RC_ASSERT(batch.Length(i) <= batch.Longest());
    if (batch.kernel.lengths == QueryLengths::kRagged) {
      RC_ASSERT(split.query_length == 0);
    } else if (batch.kernel.lengths == QueryLengths::kUniform &&
               batch.kernel.policy == UniformPolicy::kPad) {
      RC_ASSERT(split.query_length == batch.Longest());
    } else {
      RC_ASSERT(batch.Length(i) == split.query_length);
    }
  }
}

RC_GTEST_PROP(DecodeSplitProperty, NothingIsLeftOverWithoutNeed, ()) {
  const RandomBatch batch = AnyBatch();
  const DecodeSplit split = batch.Run();
  std::map<int32_t, size_t> counts;  // of qualifying requests by length
  for (const RequestRows& r : batch.requests) {
    if (r.phase == Phase::kDecode && r.query_length > 0 && r.query_length <= batch.Longest()) {
      ++counts[r.query_length];
    }
  }
  size_t total = 0;
  size_t most = 0;
  for (const auto& [length, count] : counts) {
    total += count;
    most = std::max(most, count);
  }
  size_t expected = total;
  if (batch.kernel.lengths == QueryLengths::kUniform && !counts.empty()) {
    const size_t shortest = counts.begin()->second;
    if (batch.kernel.policy == UniformPolicy::kShortestQualifying) expected = shortest;
    if (batch.kernel.policy == UniformPolicy::kLargestClass) expected = most;
  }
  RC_ASSERT(split.decode.size() == expected);
}

RC_GTEST_PROP(DecodeSplitProperty, PermutingTheRequestsPermutesTheLists, ()) {
  const RandomBatch batch = AnyBatch();
  RandomBatch shuffled = batch;
  std::vector<size_t> order(batch.requests.size());
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[*rc::gen::inRange<size_t>(0, i)]);
  }
  for (size_t i = 0; i < order.size(); ++i) shuffled.requests[i] = batch.requests[order[i]];
  const DecodeSplit a = batch.Run();
  const DecodeSplit b = shuffled.Run();
  const auto slots = [](const RandomBatch& of, const Indices& list) {
    std::set<int32_t> set;
    for (const int32_t i : list) set.insert(of.requests[static_cast<size_t>(i)].slot);
    return set;
  };
  RC_ASSERT(slots(batch, a.decode) == slots(shuffled, b.decode));
  RC_ASSERT(slots(batch, a.left_over) == slots(shuffled, b.left_over));
  RC_ASSERT(slots(batch, a.prompts) == slots(shuffled, b.prompts));
  RC_ASSERT(a.query_length == b.query_length);
}

}  // namespace
}  // namespace outrider
