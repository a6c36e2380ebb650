// Requests whose tokens are known, run through a network step by step: each alone, or all in mixed
// steps.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/networks/cuda/device_run.h"
#include "tests/networks/loaded_model.h"

namespace outrider::cuda {

/// The hidden rows of a request, by position: the target's, then each MTP module's. bf16
/// [length, hidden] each.
using HiddenRows = std::vector<std::vector<uint16_t>>;

/// Gives the requests blocks of these groups, in random order. Block 0 belongs to nobody.
inline void SpreadBlocks(std::mt19937& random, std::vector<KnownRequest>& requests,
                         const std::vector<CacheGroupSpec>& groups) {
  int32_t next_block = 1;
  for (KnownRequest& request : requests) {
    request.tables.assign(groups.size(), {});
    for (size_t g = 0; g < groups.size(); ++g) {
      std::vector<int32_t>& table = request.tables[g];
      for (int32_t i = 0; i < groups[g].BlocksBefore(request.length); ++i) {
        table.push_back(next_block++);
      }
      std::shuffle(table.begin(), table.end(), random);
    }
  }
}

/// Pages of all, and the one that belongs to nobody.
inline int32_t NumBlocks(const std::vector<KnownRequest>& requests) {
  size_t blocks = 1;
  for (const KnownRequest& request : requests) {
    for (const std::vector<int32_t>& table : request.tables) blocks += table.size();
    blocks += request.state.state.size() + request.state.rows.size();
  }
  return static_cast<int32_t>(blocks);
}

/// Gives the requests pages for running states too, behind their blocks.
inline void SpreadStates(std::mt19937& random, std::vector<KnownRequest>& requests,
                         const CacheConfig& config) {
  auto next_page = static_cast<int32_t>(NumBlocks(requests));
  const auto take = [&](int32_t count) {
    std::vector<int32_t> pages(static_cast<size_t>(count));
    for (int32_t& page : pages) page = next_page++;
    std::shuffle(pages.begin(), pages.end(), random);
    return pages;
  };
  for (KnownRequest& request : requests) {
    request.state.state = take(config.StatePages());
    request.state.rows = take(config.StateRowPages());
  }
}

inline std::vector<KnownRequest> RandomRequests(std::mt19937& random, int32_t vocab,
                                                const std::vector<int32_t>& prompts,
                                                int32_t generated,
                                                const std::vector<CacheGroupSpec>& groups) {
  std::vector<KnownRequest> requests;
  for (const int32_t prompt : prompts) {
    KnownRequest request;
    request.prompt = prompt;
    request.length = prompt + generated;
    for (int32_t i = 0; i < request.length + 4; ++i) {
      request.tokens.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(vocab)));
    }
    requests.push_back(std::move(request));
  }
  SpreadBlocks(random, requests, groups);
  return requests;
}

inline std::vector<KnownRequest> RandomRequests(std::mt19937& random, int32_t vocab,
                                                const std::vector<int32_t>& prompts,
                                                int32_t generated, int32_t block_size) {
  return RandomRequests(random, vocab, prompts, generated, FullHistoryCache(1, block_size).groups);
}

/// Gives the requests blocks of another size.
inline std::vector<KnownRequest> WithBlocks(std::mt19937& random,
                                            std::vector<KnownRequest> requests,
                                            int32_t block_size) {
  SpreadBlocks(random, requests, FullHistoryCache(1, block_size).groups);
  return requests;
}

/// Part of a step: positions [first, first + count) of a request.
struct Piece {
  size_t request;
  int32_t first;
  int32_t count;
};

class KnownRun {
 public:
  KnownRun(TestNetwork& network, const std::vector<KnownRequest>& requests, int32_t block_size,
           const CacheNumbers& cache)
      : network_(network),
        requests_(requests),
        cache_(network.MakeCache(NumBlocks(requests), block_size, cache)),
        layout_(cache_.config().groups),
        rows_(requests.size()) {
    const auto kinds = static_cast<size_t>(1 + network.model().num_mtp_modules());
    for (size_t i = 0; i < requests.size(); ++i) {
      rows_[i].resize(kinds);
      for (auto& rows : rows_[i]) {
        rows.resize(static_cast<size_t>(requests[i].length * network.output_width()));
      }
    }
  }

  /// Runs the pieces in one step, then every MTP module over the same positions.
  void Step(const std::vector<Piece>& pieces) {
    Assign(pieces, 0);
    std::vector<uint16_t> hidden = network_.Forward(layout_, cache_);
    Keep(pieces, 0, hidden);
    for (int m = 0; m < network_.model().num_mtp_modules(); ++m) {
      Assign(pieces, m + 1);
      hidden = network_.ForwardMtp(m, layout_, cache_, hidden);
      Keep(pieces, static_cast<size_t>(m) + 1, hidden);
    }
  }

  /// Each request by itself: its prompt in one piece, then token by token.
  void RunAlone() {
    for (size_t i = 0; i < requests_.size(); ++i) {
      const KnownRequest& request = requests_[i];
      if (request.prompt > 0) Step({{i, 0, request.prompt}});
      for (int32_t p = request.prompt; p < request.length; ++p) Step({{i, p, 1}});
    }
  }

  /// Random steps: some of the requests, in any order, prompts in pieces of up to max_piece,
  /// generated rows in windows of up to 4.
  void RunMixed(std::mt19937& random, int32_t max_piece) {
    std::vector<int32_t> done(requests_.size(), 0);
    const auto left = [&] {
      std::vector<size_t> unfinished;
      for (size_t i = 0; i < done.size(); ++i) {
        if (done[i] < requests_[i].length) unfinished.push_back(i);
      }
      return unfinished;
    };
    for (std::vector<size_t> open = left(); !open.empty(); open = left()) {
      std::shuffle(open.begin(), open.end(), random);
      open.resize(1 + random() % open.size());
      std::vector<Piece> pieces;
      for (const size_t i : open) {
        const KnownRequest& request = requests_[i];
        const bool prompt = done[i] < request.prompt;
        const int32_t end = prompt ? request.prompt : request.length;
        const auto most = static_cast<uint32_t>(prompt ? max_piece : 4);
        const int32_t count = std::min(end - done[i], 1 + static_cast<int32_t>(random() % most));
        pieces.push_back({i, done[i], count});
        done[i] += count;
      }
      Step(pieces);
    }
  }

  const std::vector<HiddenRows>& rows() const { return rows_; }

 private:
  void Assign(const std::vector<Piece>& pieces, int32_t shift) {
    std::vector<RequestWork> work;
    for (const Piece& piece : pieces) {
      work.push_back(requests_[piece.request].Work(static_cast<int32_t>(piece.request), piece.first,
                                                   piece.count, shift));
    }
    layout_.Assign(work);
  }

  void Keep(const std::vector<Piece>& pieces, size_t kind, const std::vector<uint16_t>& hidden) {
    const int64_t width = network_.output_width();
    for (const RequestRows& rows : layout_.requests()) {
      const Piece& piece = pieces[static_cast<size_t>(rows.work_index)];
      std::copy_n(hidden.begin() + rows.first_row * width, rows.query_length * width,
                  rows_[piece.request][kind].begin() + piece.first * width);
    }
  }

  TestNetwork& network_;
  const std::vector<KnownRequest>& requests_;
  KvCache cache_;
  BatchLayout layout_;
  std::vector<HiddenRows> rows_;
};

/// Expects that both runs have computed equal rows of every request, by target and modules: finite
/// numbers that are not all 0.
inline void ExpectEqualRows(const KnownRun& got, const KnownRun& expected,
                            const std::string& what = "") {
  ASSERT_EQ(got.rows().size(), expected.rows().size());
  for (size_t i = 0; i < expected.rows().size(); ++i) {
    const HiddenRows& kinds = expected.rows()[i];
    ASSERT_EQ(got.rows()[i].size(), kinds.size());
    for (size_t kind = 0; kind < kinds.size(); ++kind) {
      SCOPED_TRACE(testing::Message()
                   << what << " request " << i << ", module " << static_cast<int>(kind) - 1);
      EXPECT_EQ(got.rows()[i][kind], kinds[kind]);
      const auto is_finite = [](uint16_t bits) { return (bits & 0x7F80) != 0x7F80; };
      EXPECT_TRUE(std::ranges::all_of(kinds[kind], is_finite));
      EXPECT_TRUE(std::ranges::any_of(kinds[kind], [](uint16_t bits) { return bits != 0; }));
    }
  }
}

/// Expects that requests have the same bits alone over blocks of `block` tokens and in mixed steps
/// over blocks of `other_block`.
inline void ExpectBitsOfAnyStep(TestNetwork& network, int32_t vocab, const CacheNumbers& cache,
                                int32_t block, int32_t other_block, const std::string& what = "") {
  std::mt19937 random(7);
  std::vector<KnownRequest> requests =
      RandomRequests(random, vocab, {1, 65, 130, 400}, 12, network.Groups(block, cache));
  KnownRun alone(network, requests, block, cache);
  alone.RunAlone();
  SpreadBlocks(random, requests, network.Groups(other_block, cache));
  KnownRun mixed(network, requests, other_block, cache);
  mixed.RunMixed(random, 150);
  ExpectEqualRows(mixed, alone, what);
}

/// The rows of a text by itself, in steps of `chunk` tokens: as a prompt's or as generated ones.
inline HiddenRows RowsOfText(TestNetwork& network, const std::vector<int32_t>& ids, Phase phase,
                             int32_t chunk, int32_t block_size) {
  KnownRequest request;
  request.tokens = ids;
  request.length = static_cast<int32_t>(ids.size());
  request.prompt = phase == Phase::kDecode ? 0 : request.length;
  request.tables = {FirstBlocks((request.length + block_size - 1) / block_size + 1)};
  request.tokens.resize(ids.size() + 4, 0);  // what modules read behind the end is of no use
  const std::vector<KnownRequest> requests = {request};
  KnownRun run(network, requests, block_size, DType::kBF16);
  for (int32_t first = 0; first < request.length; first += chunk) {
    run.Step({{0, first, std::min(chunk, request.length - first)}});
  }
  return run.rows()[0];
}

}  // namespace outrider::cuda
