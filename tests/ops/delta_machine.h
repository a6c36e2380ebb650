// Kimi Delta Attention of random numbers on a device, for tests: requests with pages, steps of any
// rows, and the recurrence in double.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/ops/delta.h"
#include "outrider/ops/ops.h"

namespace outrider::delta_test {

struct Sizes {
  int32_t heads = 2;
  int32_t head_dim = 16;
  int32_t conv = 4;
  bool bounded = true;
  float decay_mean = 0;  // of the projected decays
  /// Where the number of a key and a value channel stands in a state; null: in this order.
  int (*state_place)(int key, int value) = nullptr;
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

inline bool EqualBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Layers of linear attention on a device, with requests' pages in its memory. Heads are those of a
/// second layer.
class DeltaMachine {
 public:
  /// compute: the type of the device's operands.
  DeltaMachine(const Ops& ops, DType compute, const Sizes& sizes, int threads = 1)
      : ops_(ops),
        compute_(compute),
        pool_(threads),
        arena_(ops.MakeArena()),
        inputs_(ops.MakeStepInputs()),
        sizes_(sizes),
        numbers_(sizes) {
    spec_ = {.heads = 2 * sizes.heads, .head_dim = sizes.head_dim, .conv = sizes.conv};
    page_bytes_ = spec_.LeastPageBytes() * 3 / 2;
    memory_ = ops.Allocate(static_cast<size_t>(kPages * page_bytes_));
    const LayerNumbers& n = numbers_;
    for (const std::vector<float>* weights :
         {&n.q_taps, &n.k_taps, &n.v_taps, &n.decay_log, &n.decay_bias}) {
      Buffer& copy = weights_.emplace_back(ops.Allocate(weights->size() * sizeof(float)));
      ops.CopyFromHost(std::as_bytes(std::span(*weights)), copy.data());
    }
  }

  const Ops& ops() const { return ops_; }

  std::vector<int32_t> Pages(int32_t count) {
    std::vector<int32_t> pages(static_cast<size_t>(count));
    // What nobody wrote.
    const std::vector<float> nothing(static_cast<size_t>(page_bytes_) / sizeof(float), NAN);
    for (int32_t& page : pages) {
      OUTRIDER_CHECK(next_page_ < kPages);
      page = next_page_++;
      ops_.CopyFromHost(std::as_bytes(std::span(nothing)), memory_.data() + page * page_bytes_);
    }
    std::ranges::reverse(pages);
    return pages;
  }
  std::vector<int32_t> StatePages() { return Pages(spec_.StatePages(page_bytes_)); }

  Request NewRequest() {
    Request request;
    request.tables.state = StatePages();
    request.tables.rows = Pages(spec_.RowPages(page_bytes_));
    return request;
  }

  /// Parts of one known row run as decodes: a device may round their number up.
  void Run(const std::vector<Part>& parts) {
    const Context context({ops_, &pool_}, *arena_, compute_);
    const Scratch::Frame frame(*arena_);
    BatchLayout layout(1 << 20);
    const std::vector<std::vector<int32_t>> tables = {{0}};
    const std::vector<int32_t> tokens(1024, 1);
    std::vector<RequestWork> work;
    for (const Part& part : parts) {
      const std::span<const int32_t> all = tokens;
      const bool decodes = part.known == 1;
      work.push_back(
          {.slot = static_cast<int32_t>(work.size()),
           .phase = decodes ? Phase::kDecode : Phase::kPromptChunk,
           .context_length = part.request->computed,
           .tokens = all.first(static_cast<size_t>(part.known)),
           .draft_tokens = all.first(static_cast<size_t>(part.drafts)),
           .samples = decodes,
           .block_tables = tables,
           .state = {&part.request->tables, part.request->state_tokens, part.request->restores}});
      part.request->state_tokens = StateTokens(part.request->computed + part.known);
      part.request->restores = false;
    }
    layout.Assign(work);
    AttentionPlan plan(AttentionBackend::kRagged, 64, KvCacheForm::kLatent);
    plan.Assign(layout);
    inputs_->Assign(layout, plan, RowCount::kRounded);

    const int64_t width = int64_t{sizes_.heads} * sizes_.head_dim;
    const auto rows = [&](int64_t cols) { return context.Rows(inputs_->num_rows(), cols); };
    // Lays out what the tokens bring, by rows of the layout.
    const auto put = [&](std::vector<float> TokenRows::* numbers, int64_t cols) {
      std::vector<float> values(static_cast<size_t>(inputs_->num_rows() * cols), NAN);
      for (const RequestRows& r : layout.requests()) {
        const Part& part = parts[static_cast<size_t>(r.work_index)];
        for (int32_t i = 0; i < r.query_length; ++i) {
          const TokenRows& from = i < part.known ? *part.rows : *part.guesses;
          std::copy_n((from.*numbers).begin() + (r.context_length + i) * cols, cols,
                      values.begin() + (r.first_row + i) * cols);
        }
      }
      const Tensor to = rows(cols);
      OUTRIDER_CHECK(to.stride == cols);
      ops_.CopyFromHost(std::as_bytes(std::span(values)), static_cast<std::byte*>(to.data));
      return to;
    };
    const auto weight = [&](size_t i) {
      return reinterpret_cast<const float*>(weights_[i].data());
    };
    const DeltaArgs args = {.q = put(&TokenRows::q, width),
                            .k = put(&TokenRows::k, width),
                            .v = put(&TokenRows::v, width),
                            .q_taps = weight(0),
                            .k_taps = weight(1),
                            .v_taps = weight(2),
                            .decay = put(&TokenRows::decay, width),
                            .decay_log = weight(3),
                            .decay_bias = weight(4),
                            .write = put(&TokenRows::write, sizes_.heads),
                            .state = State(),
                            .out = rows(width)};
    // Decays alone may be overwritten.
    const std::vector<std::pair<const char*, Tensor>> inputs = {
        {"q", args.q}, {"k", args.k}, {"v", args.v}, {"write", args.write}};
    std::vector<std::vector<float>> before;
    for (const auto& [name, tensor] : inputs) before.push_back(ToHost(context, tensor));
    ops_.delta()->DeltaAttention(context,
                                 {.heads = sizes_.heads,
                                  .head_dim = sizes_.head_dim,
                                  .conv = sizes_.conv,
                                  .bounded = sizes_.bounded,
                                  .decay_bound = -5,
                                  .first_head = sizes_.heads},
                                 *inputs_, args);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto& [name, tensor] = inputs[i];
      EXPECT_TRUE(EqualBits(before[i], ToHost(context, tensor))) << name << " is overwritten";
    }
    const std::vector<float> out = ToHost(context, args.out);
    for (const RequestRows& r : layout.requests()) {
      const Part& part = parts[static_cast<size_t>(r.work_index)];
      part.out->resize(std::max(part.out->size(),
                                static_cast<size_t>((r.context_length + r.query_length) * width)));
      std::copy_n(out.begin() + r.first_row * width, r.query_length * width,
                  part.out->begin() + r.context_length * width);
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

  /// The state [heads, D, D] of a request, or of a checkpoint, by key and value channel.
  std::vector<float> StateOf(const std::vector<int32_t>& pages) {
    const auto size = static_cast<size_t>(sizes_.head_dim * sizes_.head_dim);
    std::vector<float> state(static_cast<size_t>(sizes_.heads) * size);
    for (int32_t h = 0; h < sizes_.heads; ++h) {
      const float* const piece = State().State(pages, sizes_.heads + h);
      std::vector<float> numbers(size);
      ops_.CopyToHost(reinterpret_cast<const std::byte*>(piece),
                      std::as_writable_bytes(std::span(numbers)));
      for (size_t i = 0; i < size; ++i) {
        const auto key = static_cast<int>(i) / sizes_.head_dim;
        const auto value = static_cast<int>(i) % sizes_.head_dim;
        const size_t place =
            sizes_.state_place == nullptr ? i : static_cast<size_t>(sizes_.state_place(key, value));
        state[static_cast<size_t>(h) * size + i] = numbers[place];
      }
    }
    return state;
  }

  /// All bytes of these pages.
  std::vector<std::byte> BytesOf(const std::vector<int32_t>& pages) {
    const auto size = static_cast<size_t>(page_bytes_);
    std::vector<std::byte> bytes(pages.size() * size);
    for (size_t i = 0; i < pages.size(); ++i) {
      ops_.CopyToHost(memory_.data() + pages[i] * page_bytes_,
                      std::span(bytes).subspan(i * size, size));
    }
    return bytes;
  }

  const Sizes& sizes() const { return sizes_; }
  const LayerNumbers& numbers() const { return numbers_; }

 private:
  static constexpr int32_t kPages = 600;

  StateCache State() { return {memory_.data(), page_bytes_, spec_}; }
  std::vector<float> ToHost(const Context& context, Tensor x) const {
    std::vector<float> values(static_cast<size_t>(x.rows * x.cols));
    ops_.ToHost(context, x, values);
    return values;
  }

  const Ops& ops_;
  DType compute_;
  ThreadPool pool_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<StepInputs> inputs_;
  Sizes sizes_;
  LayerNumbers numbers_;
  RunningStateSpec spec_;
  int64_t page_bytes_ = 0;
  int32_t next_page_ = 0;
  Buffer memory_;
  std::vector<Buffer> weights_;
};

/// The recurrence token by token, in double.
inline std::vector<double> Recurrence(const TokenRows& rows, const Sizes& s, const LayerNumbers& n,
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

}  // namespace outrider::delta_test
