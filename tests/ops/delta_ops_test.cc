// Kimi Delta Attention on the CPU: rows against the recurrence in double, and their bits however
// they are cut into steps, with rejected drafts, beside other requests, from checkpoints.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/delta.h"

namespace outrider {
namespace {

std::vector<Isa> DeltaIsas() {
  std::vector<Isa> isas;
  for (const Isa isa : kAllIsas) {
    if (isa <= DetectIsa()) isas.push_back(isa);
  }
  return isas;
}

struct Sizes {
  int32_t heads = 2;
  int32_t head_dim = 16;
  int32_t conv = 4;
  bool bounded = true;
  float decay_mean = 0;  // of the projected decays
};

/// What the tokens of a request bring, by position.
struct TokenRows {
  int32_t tokens;
  int64_t width;
  int64_t heads;
  std::vector<float> q, k, v, decay, write;

  TokenRows(int32_t tokens_, const Sizes& sizes, uint32_t seed)
      : tokens(tokens_), width(int64_t{sizes.heads} * sizes.head_dim), heads(sizes.heads) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::vector<float>* x : {&q, &k, &v, &decay}) {
      x->resize(static_cast<size_t>(tokens * width));
      for (float& number : *x) number = normal(random);
    }
    for (float& number : k) number += 0.5F;
    for (float& number : decay) number = 2 * number + sizes.decay_mean;
    write.resize(static_cast<size_t>(tokens * heads));
    for (float& number : write) number = normal(random);
  }

  /// Copies token `from` of another request to token `to`.
  void Take(int32_t to, const TokenRows& other, int32_t from) {
    const auto copy = [&](std::vector<float>& x, const std::vector<float>& y, int64_t cols) {
      std::copy_n(y.begin() + from * cols, cols, x.begin() + to * cols);
    };
    copy(q, other.q, width);
    copy(k, other.k, width);
    copy(v, other.v, width);
    copy(decay, other.decay, width);
    copy(write, other.write, heads);
  }
};

/// The weights of a layer.
struct LayerNumbers {
  std::vector<float> q_taps, k_taps, v_taps, decay_log, decay_bias;

  explicit LayerNumbers(const Sizes& sizes) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    const auto width = static_cast<size_t>(sizes.heads * sizes.head_dim);
    for (std::vector<float>* taps : {&q_taps, &k_taps, &v_taps}) {
      taps->resize(width * static_cast<size_t>(sizes.conv));
      for (float& tap : *taps) tap = normal(random);
    }
    for (int32_t h = 0; h < sizes.heads; ++h) {
      decay_log.push_back(std::log(1.0F + static_cast<float>(h)));
    }
    decay_bias.resize(width);
    for (float& bias : decay_bias) bias = 0.3F * normal(random);
  }
};

/// A request and its pages. Heads are those of a second layer: pages hold pieces of both.
struct Request {
  StateTables tables;
  int32_t computed = 0;
  int32_t state_tokens = 0;
  bool restores = false;
};

/// One request's rows in a step: `known` tokens from its end on, then drafts.
struct Part {
  Request* request;
  const TokenRows* rows;  // of the known tokens
  int32_t known;
  const TokenRows* guesses;  // of drafts, by position
  int32_t drafts;
  std::vector<float>* out;  // [positions, width]; written where the rows are
};

class DeltaMachine {
 public:
  DeltaMachine(Isa isa, const Sizes& sizes, int threads = 1)
      : ops_(cpu::GetCpuOps(isa)), pool_(threads), sizes_(sizes), numbers_(sizes) {
    spec_ = {.heads = 2 * sizes.heads, .head_dim = sizes.head_dim, .conv = sizes.conv};
    page_bytes_ = spec_.LeastPageBytes() * 3 / 2;
  }

  const RunningStateSpec& spec() const { return spec_; }

  std::vector<int32_t> Pages(int32_t count) {
    std::vector<int32_t> pages(static_cast<size_t>(count));
    for (int32_t& page : pages) page = next_page_++;
    std::ranges::reverse(pages);
    memory_.resize(static_cast<size_t>(next_page_ * page_bytes_ / 4), NAN);  // what nobody wrote
    return pages;
  }
  std::vector<int32_t> StatePages() { return Pages(spec_.StatePages(page_bytes_)); }

  Request NewRequest() {
    Request request;
    request.tables.state = StatePages();
    request.tables.rows = Pages(spec_.RowPages(page_bytes_));
    return request;
  }

  StateCache State() { return {reinterpret_cast<std::byte*>(memory_.data()), page_bytes_, spec_}; }

  void Run(const std::vector<Part>& parts) {
    const Device device = {ops_, &pool_};
    Scratch arena = ops_.MakeArena();
    const Context context(device, arena, DType::kF32);
    BatchLayout layout(1 << 20);
    const std::vector<std::vector<int32_t>> tables = {{0}};
    std::vector<int32_t> tokens(1024, 1);
    std::vector<RequestWork> work;
    for (const Part& part : parts) {
      const std::span<const int32_t> all = tokens;
      work.push_back(
          {.slot = static_cast<int32_t>(work.size()),
           .phase = part.drafts > 0 ? Phase::kDecode : Phase::kPromptChunk,
           .context_length = part.request->computed,
           .tokens = all.first(static_cast<size_t>(part.known)),
           .draft_tokens = all.first(static_cast<size_t>(part.drafts)),
           .samples = part.drafts > 0,
           .block_tables = tables,
           .state = {&part.request->tables, part.request->state_tokens, part.request->restores}});
      part.request->state_tokens = StateTokens(part.request->computed + part.known);
      part.request->restores = false;
    }
    layout.Assign(work);
    AttentionPlan plan(AttentionBackend::kRagged, 64, KvCacheForm::kHeads);
    plan.Assign(layout);
    const auto inputs = ops_.MakeStepInputs();
    inputs->Assign(layout, plan, RowCount::kExact);

    const int64_t width = int64_t{sizes_.heads} * sizes_.head_dim;
    const auto rows = [&](int64_t cols) { return context.Rows(layout.num_rows(), cols); };
    DeltaArgs args = {.q = rows(width),
                      .k = rows(width),
                      .v = rows(width),
                      .q_taps = numbers_.q_taps.data(),
                      .k_taps = numbers_.k_taps.data(),
                      .v_taps = numbers_.v_taps.data(),
                      .decay = rows(width),
                      .decay_log = numbers_.decay_log.data(),
                      .decay_bias = numbers_.decay_bias.data(),
                      .write = rows(sizes_.heads),
                      .state = State(),
                      .out = rows(width)};
    for (const RequestRows& r : layout.requests()) {
      const Part& part = parts[static_cast<size_t>(r.work_index)];
      for (int32_t i = 0; i < r.query_length; ++i) {
        const TokenRows& from = i < part.known ? *part.rows : *part.guesses;
        const int64_t position = r.context_length + i;
        const auto copy = [&](const std::vector<float>& x, Tensor to) {
          std::copy_n(x.begin() + position * to.cols, to.cols, to.floats().row(r.first_row + i));
        };
        copy(from.q, args.q);
        copy(from.k, args.k);
        copy(from.v, args.v);
        copy(from.decay, args.decay);
        copy(from.write, args.write);
      }
    }
    const std::vector<float> q(args.q.floats().data, args.q.floats().data + args.q.rows * width);
    const std::vector<float> v(args.v.floats().data, args.v.floats().data + args.v.rows * width);
    ops_.DeltaAttention(context,
                        {.heads = sizes_.heads,
                         .head_dim = sizes_.head_dim,
                         .conv = sizes_.conv,
                         .bounded = sizes_.bounded,
                         .decay_bound = -5,
                         .first_head = sizes_.heads},
                        *inputs, args);
    EXPECT_TRUE(std::equal(q.begin(), q.end(), args.q.floats().data));  // inputs stay as they are
    EXPECT_TRUE(std::equal(v.begin(), v.end(), args.v.floats().data));
    for (const RequestRows& r : layout.requests()) {
      const Part& part = parts[static_cast<size_t>(r.work_index)];
      part.out->resize(std::max(part.out->size(),
                                static_cast<size_t>((r.context_length + r.query_length) * width)));
      for (int32_t i = 0; i < r.query_length; ++i) {
        std::copy_n(args.out.floats().row(r.first_row + i), width,
                    part.out->begin() + (r.context_length + i) * width);
      }
    }
  }

  /// A prompt in chunks of so many tokens.
  std::vector<float> RunAll(Request& request, const TokenRows& rows, int32_t chunk) {
    std::vector<float> out;
    while (request.computed < rows.tokens) {
      const int32_t known = std::min(chunk, rows.tokens - request.computed);
      Run({{&request, &rows, known, nullptr, 0, &out}});
      request.computed += known;
    }
    return out;
  }

  /// The state [heads, D, D] of a request, or of a checkpoint.
  std::vector<float> StateOf(const std::vector<int32_t>& pages) {
    std::vector<float> state;
    for (int32_t h = 0; h < sizes_.heads; ++h) {
      const float* piece = State().State(pages, sizes_.heads + h);
      state.insert(state.end(), piece, piece + sizes_.head_dim * sizes_.head_dim);
    }
    return state;
  }

  const Sizes& sizes() const { return sizes_; }
  const LayerNumbers& numbers() const { return numbers_; }

 private:
  const cpu::CpuOps& ops_;
  ThreadPool pool_;
  Sizes sizes_;
  LayerNumbers numbers_;
  RunningStateSpec spec_;
  int64_t page_bytes_ = 0;
  int32_t next_page_ = 0;
  std::vector<float> memory_;
};

bool EqualBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// The recurrence token by token, in double.
std::vector<double> Recurrence(const TokenRows& rows, const Sizes& s, const LayerNumbers& n,
                               std::vector<double>* last_state = nullptr) {
  const int64_t width = rows.width;
  std::vector<double> out(static_cast<size_t>(rows.tokens * width));
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  for (int32_t h = 0; h < s.heads; ++h) {
    const auto dim = static_cast<size_t>(s.head_dim);
    std::vector<double> state(dim * dim);
    for (int32_t t = 0; t < rows.tokens; ++t) {
      const auto convolved = [&](const std::vector<float>& x, const std::vector<float>& taps) {
        std::vector<double> y(dim);
        for (size_t i = 0; i < dim; ++i) {
          const size_t channel = static_cast<size_t>(h) * dim + i;
          for (int32_t w = 0; w < s.conv; ++w) {
            const int32_t from = t - s.conv + 1 + w;
            if (from < 0) continue;
            y[i] += double{taps[channel * static_cast<size_t>(s.conv) + static_cast<size_t>(w)]} *
                    double{x[static_cast<size_t>(from * width) + channel]};
          }
          y[i] *= sigmoid(y[i]);
        }
        return y;
      };
      auto q = convolved(rows.q, n.q_taps);
      auto k = convolved(rows.k, n.k_taps);
      const auto v = convolved(rows.v, n.v_taps);
      const double q_length = std::sqrt(std::inner_product(q.begin(), q.end(), q.begin(), 1e-6));
      const double k_length = std::sqrt(std::inner_product(k.begin(), k.end(), k.begin(), 1e-6));
      for (double& x : q) x /= q_length * std::sqrt(static_cast<double>(dim));
      for (double& x : k) x /= k_length;
      const double beta = sigmoid(double{rows.write[static_cast<size_t>(t * s.heads + h)]});
      std::vector<double> u(dim);
      for (size_t d = 0; d < dim; ++d) {
        const size_t channel = static_cast<size_t>(h) * dim + d;
        const double x = double{rows.decay[static_cast<size_t>(t * width) + channel]} +
                         double{n.decay_bias[channel]};
        const double a = std::exp(double{n.decay_log[static_cast<size_t>(h)]});
        const double g = s.bounded ? -5 * sigmoid(a * x) : -a * std::log1p(std::exp(x));
        for (size_t c = 0; c < dim; ++c) {
          state[d * dim + c] *= std::exp(g);
          u[c] += state[d * dim + c] * k[d];
        }
      }
      for (size_t c = 0; c < dim; ++c) u[c] = beta * (v[c] - u[c]);
      for (size_t d = 0; d < dim; ++d) {
        for (size_t c = 0; c < dim; ++c) {
          state[d * dim + c] += k[d] * u[c];
          out[static_cast<size_t>(t * width) + static_cast<size_t>(h) * dim + c] +=
              state[d * dim + c] * q[d];
        }
      }
    }
    if (last_state != nullptr) last_state->insert(last_state->end(), state.begin(), state.end());
  }
  return out;
}

class DeltaTest : public testing::TestWithParam<Isa> {};

TEST_P(DeltaTest, RowsAndStateFollowTheRecurrence) {
  for (const bool bounded : {true, false}) {
    for (const float decay_mean : {2.0F, -1.0F, -6.0F}) {
      for (const int32_t dim : {16, 24, 128}) {
        const Sizes sizes = {.head_dim = dim, .bounded = bounded, .decay_mean = decay_mean};
        DeltaMachine machine(GetParam(), sizes);
        const TokenRows rows(dim == 128 ? 160 : 400, sizes, 11);
        Request request = machine.NewRequest();
        const std::vector<float> out = machine.RunAll(request, rows, 100);
        std::vector<double> state;
        const std::vector<double> expected = Recurrence(rows, sizes, machine.numbers(), &state);
        ASSERT_EQ(out.size(), expected.size());
        for (size_t i = 0; i < out.size(); ++i) {
          ASSERT_NEAR(out[i], expected[i], 2e-6) << bounded << " " << decay_mean << " " << i;
        }
        const std::vector<float> own = machine.StateOf(request.tables.state);
        ASSERT_EQ(own.size(), state.size());
        for (size_t i = 0; i < own.size(); ++i) ASSERT_NEAR(own[i], state[i], 1e-5) << i;
      }
    }
  }
}

TEST_P(DeltaTest, TheStateStaysRightOverManyTokens) {
  const Sizes sizes = {.heads = 1, .decay_mean = -4};
  DeltaMachine machine(GetParam(), sizes);
  const TokenRows rows(32'000, sizes, 12);
  Request request = machine.NewRequest();
  machine.RunAll(request, rows, 1000);
  std::vector<double> state;
  Recurrence(rows, sizes, machine.numbers(), &state);
  const std::vector<float> own = machine.StateOf(request.tables.state);
  for (size_t i = 0; i < own.size(); ++i) ASSERT_NEAR(own[i], state[i], 1e-5) << i;
}

// Chunks of every size, steps of a few rows, rejected drafts at every phase of a block.
TEST_P(DeltaTest, BitsDoNotDependOnStepsOrDrafts) {
  for (const bool bounded : {true, false}) {
    const Sizes sizes = {.bounded = bounded, .decay_mean = -1};
    DeltaMachine machine(GetParam(), sizes);
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

TEST_P(DeltaTest, RequestsDoNotSeeEachOther) {
  const Sizes sizes = {.decay_mean = -2};
  DeltaMachine machine(GetParam(), sizes, /*threads=*/2);
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
}

// A checkpoint inside a chunk is the state of just its tokens; what starts from it goes on alike,
// and leaves it as it is.
TEST_P(DeltaTest, ARequestGoesOnFromACheckpoint) {
  const Sizes sizes = {.bounded = false, .decay_mean = -1};
  DeltaMachine machine(GetParam(), sizes);
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
      ASSERT_TRUE(EqualBits(machine.StateOf(checkpoint.pages), kept));
    }
  }
}

TEST_P(DeltaTest, NormAndGates) {
  const cpu::CpuOps& ops = cpu::GetCpuOps(GetParam());
  ThreadPool pool(2);
  Scratch arena = ops.MakeArena();
  const Context context({ops, &pool}, arena, DType::kF32);
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  const Tensor x = context.Rows(7, 3 * 20);
  const Tensor gates = context.Rows(7, 3 * 20);
  const Tensor head_gates = context.Rows(7, 3);
  std::vector<float> norm(20);
  for (float& w : norm) w = 1 + 0.1F * normal(random);
  for (int64_t r = 0; r < 7; ++r) {
    for (int64_t i = 0; i < x.cols; ++i) {
      x.floats().row(r)[i] = normal(random);
      gates.floats().row(r)[i] = 3 * normal(random);
    }
    for (int64_t h = 0; h < 3; ++h) head_gates.floats().row(r)[h] = normal(random);
  }
  std::vector<double> expected;
  for (int64_t r = 0; r < 7; ++r) {
    for (int64_t i = 0; i < x.cols; ++i) {
      const float* head = x.floats().row(r) + i / 20 * 20;
      double squares = 0;
      for (int64_t j = 0; j < 20; ++j) squares += double{head[j]} * double{head[j]};
      const double value = double{x.floats().row(r)[i]} / std::sqrt(squares / 20 + 1e-6) *
                           double{norm[static_cast<size_t>(i % 20)]};
      const auto sigmoid = [](float g) { return 1 / (1 + std::exp(-double{g})); };
      expected.push_back(value * sigmoid(gates.floats().row(r)[i]) *
                         sigmoid(head_gates.floats().row(r)[i / 20]));
    }
  }
  ops.NormGate(context,
               {.x = x, .heads = 3, .norm = norm.data(), .norm_eps = 1e-6F, .gates = gates});
  ops.GateHeads(context, head_gates, x);
  for (int64_t r = 0; r < 7; ++r) {
    for (int64_t i = 0; i < x.cols; ++i) {
      EXPECT_NEAR(x.floats().row(r)[i], expected[static_cast<size_t>(r * x.cols + i)], 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, DeltaTest, testing::ValuesIn(DeltaIsas()),
                         [](const auto& isa) { return std::string(IsaName(isa.param)); });

}  // namespace
}  // namespace outrider
