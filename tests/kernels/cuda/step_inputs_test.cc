// A step's inputs from the slots' state, and what its drawn tokens come to, against the same things
// done row by row on the host. Needs a GPU of compute capability 9.0.
#include "outrider/kernels/cuda/step_inputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/verify_drafts.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/device_runs.h"
#include "tests/kernels/cuda/hopper_test.h"

namespace outrider::cuda {
namespace {

constexpr int kSlots = 300;
constexpr int kMaxDrafts = 3;
constexpr int kPageSize = 16;
constexpr int kTableStride = 40;
constexpr int kPages = 20000;
constexpr int kVocab = 50;

/// The slots' state on the host.
struct HostSlots {
  std::vector<int32_t> tokens = std::vector<int32_t>(kSlots * (1 + kMaxDrafts));
  std::vector<int32_t> num_drafts = std::vector<int32_t>(kSlots);
  std::vector<int32_t> lengths = std::vector<int32_t>(kSlots);
  std::vector<int32_t> remaining = std::vector<int32_t>(kSlots);
  std::vector<int32_t> tables = std::vector<int32_t>(kSlots * kTableStride, -1);
};

struct HostInputs {
  std::vector<int32_t> token_ids, positions, starts = {0}, seq_lens, logit_rows, logit_positions,
                                             logit_requests, logit_starts = {0};
  std::vector<int64_t> slot_mapping;
  std::vector<std::vector<int32_t>> tables;  // by request, up to its length
};

class StepInputsTest : public HopperTest<> {
 protected:
  void SetUp() override {
    HopperTest::SetUp();
    std::vector<int32_t> pages(kPages);
    for (int i = 0; i < kPages; ++i) pages[i] = i;
    std::shuffle(pages.begin(), pages.end(), random_);
    size_t next = 0;
    for (int slot = 0; slot < kSlots; ++slot) {
      for (int i = 0; i <= kMaxDrafts; ++i) {
        slots_.tokens[slot * (1 + kMaxDrafts) + i] = static_cast<int32_t>(random_() % kVocab);
      }
      slots_.num_drafts[slot] = static_cast<int32_t>(random_() % (1 + kMaxDrafts));
      slots_.lengths[slot] = static_cast<int32_t>(random_() % 500);
      slots_.remaining[slot] = random_() % 5 == 0 ? static_cast<int32_t>(random_() % 3) : 100;
      const int allotted = (slots_.lengths[slot] + 60) / kPageSize + 1;
      for (int i = 0; i < allotted; ++i) slots_.tables[slot * kTableStride + i] = pages[next++];
    }
  }

  /// Requests in random slots: those that decode first, then pieces of prompts.
  std::vector<StepRequest> MakeRequests(int decoding, int prompts) {
    std::vector<int32_t> order(kSlots);
    for (int i = 0; i < kSlots; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random_);
    std::vector<StepRequest> requests;
    for (int i = 0; i < decoding + prompts; ++i) {
      StepRequest request;
      request.slot = order[i];
      if (i < decoding) {
        request.max_rows = 1 + static_cast<int32_t>(random_() % (1 + kMaxDrafts));
      } else {
        slots_.remaining[request.slot] += 1;  // a prompt whose request still wants tokens
        request.first_position = static_cast<int32_t>(random_() % 20);
        request.prompt_rows = 1 + static_cast<int32_t>(random_() % 40);
        request.first_prompt_token = static_cast<int32_t>(prompt_tokens_.size());
        request.wants_logits = random_() % 2 == 0 ? 1 : 0;
        for (int j = 0; j < request.prompt_rows; ++j) {
          prompt_tokens_.push_back(static_cast<int32_t>(random_() % kVocab));
        }
      }
      requests.push_back(request);
    }
    return requests;
  }

  HostInputs Expected(const std::vector<StepRequest>& requests) const {
    HostInputs inputs;
    for (size_t i = 0; i < requests.size(); ++i) {
      const StepRequest& request = requests[i];
      const int slot = request.slot;
      const bool prompt = request.prompt_rows > 0;
      const int rows =
          prompt
              ? request.prompt_rows
              : std::min({1 + slots_.num_drafts[slot], request.max_rows, slots_.remaining[slot]});
      const int first = prompt ? request.first_position : slots_.lengths[slot];
      for (int j = 0; j < rows; ++j) {
        const int position = first + j;
        const bool wanted = !prompt || (j + 1 == rows && request.wants_logits != 0);
        if (wanted) {
          inputs.logit_rows.push_back(static_cast<int32_t>(inputs.token_ids.size()));
          inputs.logit_positions.push_back(position + 1);
          inputs.logit_requests.push_back(static_cast<int32_t>(i));
        }
        inputs.token_ids.push_back(prompt ? prompt_tokens_[request.first_prompt_token + j]
                                          : slots_.tokens[slot * (1 + kMaxDrafts) + j]);
        inputs.positions.push_back(position);
        inputs.slot_mapping.push_back(
            int64_t{slots_.tables[slot * kTableStride + position / kPageSize]} * kPageSize +
            position % kPageSize);
      }
      inputs.starts.push_back(static_cast<int32_t>(inputs.token_ids.size()));
      inputs.logit_starts.push_back(static_cast<int32_t>(inputs.logit_rows.size()));
      inputs.seq_lens.push_back(first + rows);
      const int pages = rows == 0 ? 0 : (first + rows + kPageSize - 1) / kPageSize;
      inputs.tables.emplace_back(slots_.tables.begin() + slot * kTableStride,
                                 slots_.tables.begin() + slot * kTableStride + pages);
    }
    return inputs;
  }

  HostSlots slots_;
  std::vector<int32_t> prompt_tokens_;
  std::mt19937 random_{51};
};

TEST_F(StepInputsTest, StepsAreMadeAndTheirDraftsVerified) {
  struct Mix {
    int decoding;
    int prompts;
  };
  for (const Mix mix : {Mix{1, 0}, Mix{0, 1}, Mix{3, 2}, Mix{128, 0}, Mix{131, 7}, Mix{260, 40}}) {
    const std::vector<StepRequest> requests = MakeRequests(mix.decoding, mix.prompts);
    const HostInputs wanted = Expected(requests);
    const size_t rows = wanted.token_ids.size();
    const size_t bound = rows + 11;
    const std::string where =
        std::to_string(mix.decoding) + " decode, " + std::to_string(mix.prompts) + " prompts";

    const DeviceArray<StepRequest> d_requests(requests);
    const DeviceArray<int32_t> prompt_tokens(prompt_tokens_), tokens(slots_.tokens),
        num_drafts(slots_.num_drafts), lengths(slots_.lengths), remaining(slots_.remaining),
        tables(slots_.tables);
    const SlotStates states = {.num_slots = kSlots,
                               .max_drafts = kMaxDrafts,
                               .tokens = tokens.data(),
                               .num_drafts = num_drafts.data(),
                               .lengths = lengths.data(),
                               .remaining = remaining.data(),
                               .block_tables = tables.data(),
                               .block_table_stride = kTableStride};
    const DeviceArray<int32_t> token_ids(bound), positions(bound), starts(requests.size() + 1),
        seq_lens(requests.size()), block_tables(requests.size() * kTableStride), num_rows(1),
        logit_rows(bound), logit_positions(bound), logit_requests(bound),
        logit_starts(requests.size() + 1);
    const DeviceArray<int64_t> slot_mapping(bound);
    const StepInputParams params = {.num_requests = static_cast<int>(requests.size()),
                                    .requests = d_requests.data(),
                                    .prompt_tokens = prompt_tokens.data(),
                                    .slots = states,
                                    .page_size = kPageSize,
                                    .num_pages = kPages,
                                    .max_rows = static_cast<int>(bound)};
    const StepArrays inputs = {.token_ids = token_ids.data(),
                               .positions = positions.data(),
                               .slot_mapping = slot_mapping.data(),
                               .query_start_loc = starts.data(),
                               .seq_lens = seq_lens.data(),
                               .block_tables = block_tables.data(),
                               .num_rows = num_rows.data(),
                               .logit_rows = logit_rows.data(),
                               .logit_positions = logit_positions.data(),
                               .logit_requests = logit_requests.data(),
                               .logit_start_loc = logit_starts.data()};
    ReplayAsGraph(
        [&](cudaStream_t stream) {
          CudaOk(MakeStepInputs(params, inputs, stream), "MakeStepInputs");
        },
        2);
    auto compare = [&](const char* what, const auto& device, auto values) {
      auto got = device.Download();
      for (size_t i = values.size(); i < got.size(); ++i) {
        ASSERT_EQ(got[i], -1) << what << " " << i << " past the end, " << where;
      }
      got.resize(values.size());
      EXPECT_EQ(got, values) << what << ", " << where;
    };
    compare("token ids", token_ids, wanted.token_ids);
    compare("positions", positions, wanted.positions);
    compare("slot mapping", slot_mapping, wanted.slot_mapping);
    compare("query starts", starts, wanted.starts);
    compare("lengths", seq_lens, wanted.seq_lens);
    compare("rows", num_rows, std::vector<int32_t>{static_cast<int32_t>(rows)});
    compare("logit rows", logit_rows, wanted.logit_rows);
    compare("logit positions", logit_positions, wanted.logit_positions);
    compare("logit requests", logit_requests, wanted.logit_requests);
    compare("logit starts", logit_starts, wanted.logit_starts);
    const std::vector<int32_t> got_tables = block_tables.Download();
    for (size_t i = 0; i < requests.size(); ++i) {
      const std::vector<int32_t>& table = wanted.tables[i];
      EXPECT_TRUE(std::equal(table.begin(), table.end(), got_tables.begin() + i * kTableStride))
          << "table of request " << i << ", " << where;
    }

    // Drawn tokens: mostly the drafts, some others, some that end the request, some none at all.
    std::vector<SlotSampling> sampling(kSlots);
    std::vector<int32_t> stop_tokens;
    for (SlotSampling& slot : sampling) {
      slot.first_stop = static_cast<int32_t>(stop_tokens.size());
      slot.num_stops = static_cast<int32_t>(random_() % 3);
      for (int i = 0; i < slot.num_stops; ++i) {
        stop_tokens.push_back(static_cast<int32_t>(random_() % kVocab));
      }
    }
    std::vector<int32_t> drawn;
    for (size_t i = 0; i < wanted.logit_rows.size(); ++i) {
      const size_t next = static_cast<size_t>(wanted.logit_rows[i]) + 1;
      int32_t token = static_cast<int32_t>(random_() % kVocab);
      if (next < rows && random_() % 5 != 0) token = wanted.token_ids[next];
      if (random_() % 23 == 0) token = random_() % 2 == 0 ? kDrawDeadEnd : kDrawOverflown;
      drawn.push_back(token);
    }
    const DeviceArray<SlotSampling> d_sampling(sampling);
    const DeviceArray<int32_t> d_stops(stop_tokens), d_drawn(drawn), accepted(requests.size()),
        emitted_counts(requests.size()), emitted(requests.size() * (1 + kMaxDrafts)),
        endings(requests.size());
    CudaOk(VerifyDrafts({.num_requests = static_cast<int>(requests.size()),
                         .requests = d_requests.data(),
                         .slots = states,
                         .sampling = d_sampling.data(),
                         .stop_tokens = d_stops.data(),
                         .token_ids = token_ids.data(),
                         .logit_rows = logit_rows.data(),
                         .logit_start_loc = logit_starts.data(),
                         .drawn = d_drawn.data()},
                        {.num_accepted = accepted.data(),
                         .num_emitted = emitted_counts.data(),
                         .emitted = emitted.data(),
                         .endings = endings.data()},
                        nullptr),
           "VerifyDrafts");
    HostSlots after = slots_;
    std::vector<int32_t> wanted_accepted, wanted_emitted, wanted_tokens, wanted_endings;
    for (size_t i = 0; i < requests.size(); ++i) {
      const StepRequest& request = requests[i];
      const int slot = request.slot;
      const int first = wanted.logit_starts[i];
      const int count = wanted.logit_starts[i + 1] - first;
      std::vector<int32_t> tokens_of;
      int num_accepted = 0;
      int ending = kGoesOn;
      for (int j = 0; j < count; ++j) {
        const int32_t token = drawn[first + j];
        if (token < 0) {
          ending = token == kDrawDeadEnd ? kDeadEnd : kOverflow;
          break;
        }
        tokens_of.push_back(token);
        const int row = wanted.logit_rows[first];
        if (j + 1 == count || token != wanted.token_ids[row + 1 + j]) break;
        ++num_accepted;
      }
      const SlotSampling& fields = sampling[slot];
      for (size_t j = 0; j < tokens_of.size(); ++j) {
        const auto* stops = stop_tokens.data() + fields.first_stop;
        if (std::find(stops, stops + fields.num_stops, tokens_of[j]) != stops + fields.num_stops) {
          tokens_of.resize(j + 1);
          ending = kStopToken;
        }
      }
      const int emits = static_cast<int>(tokens_of.size());
      if (count > 0 && ending == kGoesOn && emits >= slots_.remaining[slot]) ending = kNoneRemain;
      after.num_drafts[slot] = 0;
      after.lengths[slot] = request.prompt_rows > 0 ? request.first_position + request.prompt_rows
                                                    : slots_.lengths[slot] + emits;
      after.remaining[slot] = ending == kGoesOn ? slots_.remaining[slot] - emits : 0;
      if (emits > 0) after.tokens[slot * (1 + kMaxDrafts)] = tokens_of.back();
      wanted_accepted.push_back(num_accepted);
      wanted_emitted.push_back(emits);
      wanted_endings.push_back(ending);
      tokens_of.resize(1 + kMaxDrafts, -1);
      wanted_tokens.insert(wanted_tokens.end(), tokens_of.begin(), tokens_of.end());
    }
    EXPECT_EQ(accepted.Download(), wanted_accepted) << where;
    EXPECT_EQ(emitted_counts.Download(), wanted_emitted) << where;
    EXPECT_EQ(emitted.Download(), wanted_tokens) << where;
    EXPECT_EQ(endings.Download(), wanted_endings) << where;
    EXPECT_EQ(tokens.Download(), after.tokens) << where;
    EXPECT_EQ(num_drafts.Download(), after.num_drafts) << where;
    EXPECT_EQ(lengths.Download(), after.lengths) << where;
    EXPECT_EQ(remaining.Download(), after.remaining) << where;
  }
}

TEST(StepInputsArguments, AreRefusedWithWhatWouldBeRight) {
  EXPECT_THROW(static_cast<void>(MakeStepInputs({}, {}, nullptr)), Error);
  EXPECT_THROW(static_cast<void>(VerifyDrafts({}, {}, nullptr)), Error);
  VerifyParams params;
  params.num_requests = 1;
  params.slots.max_drafts = 32;
  EXPECT_THROW(static_cast<void>(VerifyDrafts(params, {}, nullptr)), Error);
}

}  // namespace
}  // namespace outrider::cuda
