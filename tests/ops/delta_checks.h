// What holds of Kimi Delta Attention on every device: the bits of rows and states however rows are
// cut into steps, with rejected drafts, beside other requests, from checkpoints.
#pragma once

#include "tests/ops/delta_machine.h"

namespace outrider::delta_test {

/// Chunks of every size, steps of a few rows, rejected drafts at every phase of a block.
inline void ExpectBitsOfAnySteps(const Ops& ops, DType compute, int32_t head_dim) {
  for (const bool bounded : {true, false}) {
    const Sizes sizes = {.head_dim = head_dim, .bounded = bounded, .decay_mean = -1};
    DeltaMachine machine(ops, compute, sizes);
    const TokenRows rows(224, sizes, 3);
    const TokenRows wrong(300, sizes, 4);
    Request whole = machine.NewRequest();
    const std::vector<float> expected = machine.RunAll(whole, rows, 224);
    const std::vector<float> state = machine.StateOf(whole.tables.state);
    for (const int32_t chunk :
         {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 31, 32, 33, 63, 64, 65}) {
      Request request = machine.NewRequest();
      ASSERT_TRUE(EqualBits(machine.RunAll(request, rows, chunk), expected)) << chunk;
      ASSERT_TRUE(EqualBits(machine.StateOf(request.tables.state), state)) << chunk;
    }
    std::mt19937 random(7);
    int rejected = 0;
    for (int trial = 0; trial < 60; ++trial) {
      Request request = machine.NewRequest();
      std::vector<float> out;
      const int32_t most = trial % 4 == 0 ? kMostStateDrafts : 1 + trial % 7;
      while (request.computed < rows.tokens) {
        const int32_t left = rows.tokens - request.computed;
        const auto drafts = static_cast<int32_t>(random() % static_cast<uint32_t>(most + 1));
        const auto right =
            std::min(left - 1, static_cast<int32_t>(random() % static_cast<uint32_t>(drafts + 1)));
        TokenRows guesses = wrong;
        for (int32_t i = 0; i < right; ++i) {
          guesses.Take(request.computed + 1 + i, rows, request.computed + 1 + i);
        }
        machine.Run({{&request, &rows, 1, &guesses, drafts, &out}});
        request.computed += 1 + right;
        rejected += drafts - right;
      }
      // Drafts behind the last token left rows of theirs.
      out.resize(expected.size());
      ASSERT_TRUE(EqualBits(out, expected)) << trial;
      // One more step takes the last block, if a draft had completed it.
      TokenRows more(225, sizes, 3);
      machine.Run({{&request, &more, 1, nullptr, 0, &out}});
      ASSERT_TRUE(EqualBits(machine.StateOf(request.tables.state), state)) << trial;
    }
    EXPECT_GT(rejected, 5000);
  }
}

/// Requests in random company. One that is in no step has the first pages, where rows without a
/// request would write: they stay as they are.
inline void ExpectRequestsApart(const Ops& ops, DType compute, int32_t head_dim) {
  const Sizes sizes = {.head_dim = head_dim, .decay_mean = -2};
  DeltaMachine machine(ops, compute, sizes, /*threads=*/2);
  Request idle = machine.NewRequest();
  machine.RunAll(idle, TokenRows(37, sizes, 19), 37);
  const std::vector<std::byte> state = machine.BytesOf(idle.tables.state);
  const std::vector<std::byte> kept = machine.BytesOf(idle.tables.rows);
  std::vector<TokenRows> rows;
  std::vector<std::vector<float>> alone;
  for (uint32_t i = 0; i < 5; ++i) {
    rows.emplace_back(90, sizes, 20 + i);
    Request request = machine.NewRequest();
    alone.push_back(machine.RunAll(request, rows.back(), 90));
  }
  std::vector<Request> requests;
  for (size_t i = 0; i < rows.size(); ++i) requests.push_back(machine.NewRequest());
  std::vector<std::vector<float>> out(rows.size());
  std::mt19937 random(9);
  for (bool busy = true; busy;) {
    std::vector<Part> parts;
    for (size_t i = 0; i < rows.size(); ++i) {
      Request& request = requests[i];
      if (request.computed == 90 || random() % 3 == 0) continue;
      const int32_t known = std::min<int32_t>(90 - request.computed, 1 + random() % 20);
      parts.push_back({&request, &rows[i], known, nullptr, 0, &out[i]});
    }
    std::ranges::shuffle(parts, random);
    if (!parts.empty()) machine.Run(parts);
    for (const Part& part : parts) part.request->computed += part.known;
    busy = std::ranges::any_of(requests, [](const Request& r) { return r.computed < 90; });
  }
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_TRUE(EqualBits(out[i], alone[i])) << i;
  EXPECT_EQ(machine.BytesOf(idle.tables.state), state);
  EXPECT_EQ(machine.BytesOf(idle.tables.rows), kept);
}

/// After `count` tokens of one request its state is still near float64's.
inline void ExpectStateOfManyTokens(const Ops& ops, DType compute, const Sizes& sizes,
                                    int32_t count) {
  DeltaMachine machine(ops, compute, sizes);
  const TokenRows rows(count, sizes, 12);
  Request request = machine.NewRequest();
  machine.RunAll(request, rows, 1000);
  std::vector<double> state;
  Recurrence(rows, sizes, machine.numbers(), &state);
  const std::vector<float> own = machine.StateOf(request.tables.state);
  for (size_t i = 0; i < own.size(); ++i) ASSERT_NEAR(own[i], state[i], 1e-5) << i;
}

/// A checkpoint inside a chunk is the state of just its tokens; what starts from it goes on alike,
/// and leaves it as it is.
inline void ExpectCheckpointsGoOn(const Ops& ops, DType compute, int32_t head_dim) {
  const Sizes sizes = {.head_dim = head_dim, .bounded = false, .decay_mean = -1};
  DeltaMachine machine(ops, compute, sizes);
  const TokenRows rows(160, sizes, 31);
  Request whole = machine.NewRequest();
  for (const int32_t tokens : {48, 96, 112}) {
    whole.tables.checkpoints.push_back({tokens, machine.StatePages()});
  }
  const std::vector<float> expected = machine.RunAll(whole, rows, 60);
  for (const StateCheckpoint& checkpoint : whole.tables.checkpoints) {
    TokenRows prefix = rows;
    prefix.tokens = checkpoint.tokens;
    Request shorter = machine.NewRequest();
    machine.RunAll(shorter, prefix, 37);
    const std::vector<float> kept = machine.StateOf(checkpoint.pages);
    const std::vector<std::byte> bytes = machine.BytesOf(checkpoint.pages);
    ASSERT_TRUE(EqualBits(machine.StateOf(shorter.tables.state), kept));
    for (const int32_t chunk : {1, 5, 16, 40}) {
      Request request = machine.NewRequest();
      request.tables.restored = checkpoint.pages;
      request.computed = request.state_tokens = checkpoint.tokens;
      request.restores = true;
      std::vector<float> out = machine.RunAll(request, rows, chunk);
      const auto first = static_cast<size_t>(checkpoint.tokens) * static_cast<size_t>(rows.width);
      ASSERT_TRUE(std::equal(out.begin() + static_cast<std::ptrdiff_t>(first), out.end(),
                             expected.begin() + static_cast<std::ptrdiff_t>(first)))
          << checkpoint.tokens << " " << chunk;
      ASSERT_TRUE(
          EqualBits(machine.StateOf(request.tables.state), machine.StateOf(whole.tables.state)));
      ASSERT_EQ(machine.BytesOf(checkpoint.pages), bytes);
    }
  }
}

}  // namespace outrider::delta_test
