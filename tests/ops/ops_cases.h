// Operations that every device has, of latent attention, of experts and of streams, as one table of
// cases. Each is run on rows together and alone, and compared with the reference table: by
// ops_table_test.cc for every table of the CPU, by cuda/cuda_ops_test.cc for a GPU. Longer than
// most files: it is one list.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "outrider/ops/hyper.h"
#include "outrider/ops/mla.h"
#include "outrider/ops/moe.h"
#include "outrider/ops/ops.h"
#include "tests/kernels/kernel_fixture.h"
#include "tests/ops/test_step.h"
#include "tests/ops/token_row_weights.h"

namespace outrider {

/// Sizes of a device's cases: what its kernels take, with ends that do not fill their tiles.
struct OpsSizes {
  int64_t hidden = 0;
  int64_t width = 0;         // of an MLP
  int64_t shared_width = 0;  // of shared experts
  int64_t vocab = 0;
  int64_t matrix = 0;  // rows of a matrix
  MlaShape mla;
};

inline constexpr int64_t kLeftColumns = 192;
inline constexpr int64_t kRightColumns = 40;

/// Random weights, packed by a table.
struct OpsWeights {
  OpsWeights(const Device& device, const OpsSizes& sizes, DType dtype) {
    const auto source = MakeDummyWeights(ModelConfig{}, 5);
    const auto loader = device.ops.MakeWeightLoader(*source, {.compute_dtype = dtype});
    const int64_t hidden = sizes.hidden;
    const MlaShape& mla = sizes.mla;
    loader->Table(&table, "embed_tokens.weight", sizes.vocab, hidden);
    loader->Vector(&norm, "norm", hidden);
    loader->Vector(&latent_norm, "latent_norm", mla.latent);
    loader->Matrix(&matrix, "matrix", sizes.matrix, hidden);
    loader->Stacked(&stacked, {"first", "second"}, 32, hidden, {});
    loader->Matrix(&square, "square", hidden, hidden);
    loader->SideBySide({{&left, "left", kLeftColumns}, {&right, "right", kRightColumns}}, hidden);
    loader->Mlp(&gate_up, &down, {"gate", "up", "down"}, sizes.width, hidden);
    loader->Matrix(&head, "head", sizes.vocab, hidden);
    loader->UnquantizedMatrix(&router, "router", 8, hidden);
    WeightLoader::Experts e = {.width = sizes.width,
                               .shared = {"sg", "su", "sd"},
                               .shared_width = sizes.shared_width,
                               .hidden = hidden};
    for (const char* name : {"0", "1", "2", "3", "4", "5", "6", "7"}) {
      e.routed.push_back(
          {std::string("g") + name, std::string("u") + name, std::string("d") + name});
    }
    loader->MoeExperts(&experts, e);
    e.shared_width = 0;
    loader->MoeExperts(&unshared_experts, e);
    loader->StreamMatrix(&streams, "streams", 24, hidden);
    loader->StreamMatrix(&contraction, "contraction", 4, hidden);
    loader->SplitKvUp(&kv_up, "kv_b", {mla.heads, mla.nope, mla.value, mla.latent});
    EXPECT_GT(SumOf(loader->PackedSizes()), 0);
    memory = loader->Load(device, nullptr);
  }

  TokenTable table;
  const float* norm = nullptr;
  const float* latent_norm = nullptr;
  Weight matrix, stacked, square, left, right, gate_up, down, head, router, streams, contraction;
  ExpertWeights experts, unshared_experts;
  KvUpWeight kv_up;
  std::unique_ptr<WeightMemory> memory;
};

/// A table with what its calls need, and rows on their way between it and the host.
class OpsSide {
 public:
  OpsSide(const Ops& ops, ThreadPool& pool, const OpsSizes& sizes, DType dtype)
      : device_{ops, &pool},
        dtype_(dtype),
        arena_(ops.MakeArena()),
        weights_(device_, sizes, dtype) {}

  Context context() { return {device_, *arena_, dtype_}; }
  const OpsWeights& weights() const { return weights_; }
  /// Of a layer's compressors; made once for their channels.
  const TokenRowWeights& TokenRows(const std::array<int32_t, 2>& channels, int64_t heads,
                                   int64_t input) {
    std::unique_ptr<TokenRowWeights>& weights = token_rows_[channels];
    if (weights == nullptr) {
      weights = std::make_unique<TokenRowWeights>(device_, dtype_, channels, heads, input);
    }
    return *weights;
  }
  Arena& arena() { return *arena_; }
  const Ops& ops() const { return device_.ops; }

  /// A copy in the arena.
  Tensor Put(const TestMatrix& x) {
    const Tensor to = context().Rows(x.view_rows, x.view_cols);
    ops().CopyFromHost(std::as_bytes(std::span(x.values)), static_cast<std::byte*>(to.data));
    return to;
  }
  TestMatrix Get(Tensor x) {
    TestMatrix to(x.rows, x.cols);
    const Tensor dense = context().Rows(x.rows, x.cols);
    ops().Copy(context(), x, dense);
    ops().CopyToHost(static_cast<const std::byte*>(dense.data),
                     std::as_writable_bytes(std::span(to.values)));
    return to;
  }

 private:
  Device device_;
  DType dtype_;
  std::unique_ptr<Arena> arena_;
  OpsWeights weights_;
  std::map<std::array<int32_t, 2>, std::unique_ptr<TokenRowWeights>> token_rows_;
};

/// The rows of a step, each of a request of its own.
struct OpsRows {
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;
  TestMatrix x;  // [rows, hidden]

  OpsRows Part(int32_t first, int32_t count) const {
    OpsRows part{{tokens.begin() + first, tokens.begin() + first + count},
                 {positions.begin() + first, positions.begin() + first + count},
                 TestMatrix(count, x.view_cols)};
    std::copy_n(x.view().row(first), part.x.values.size(), part.x.values.begin());
    return part;
  }
};

/// What a case is given: a table, the rows of a step and what it reads of them, and the rows of x
/// and of its output in the device's memory.
struct OpsCall {
  OpsSide& side;
  const OpsRows& in;
  const StepInputs& inputs;
  Tensor x;
  Tensor out;
  Context c = side.context();

  const OpsWeights& weights() const { return side.weights(); }
};

/// An operation, or a few that belong together, from input rows to output rows.
struct OpsCase {
  std::string name;
  int64_t cols;     // of its output
  bool exact;       // all tables of the CPU give the reference's bits with float32 operands
  float tolerance;  // of a GPU, from x in bfloat16: beside 1 + |the reference's value|
  std::function<void(const OpsCall&)> run;
};

inline Rotary RotaryOf(const Context& c, const MlaShape& mla, const StepInputs& inputs) {
  std::vector<float> frequencies(static_cast<size_t>(mla.rope / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] =
        std::pow(10000.0F, -static_cast<float>(i) / static_cast<float>(frequencies.size()));
  }
  return c.ops.MakeRotary(c, frequencies, 1.5F, true, inputs);
}

inline void MultiplyBy(const OpsCall& call, const Weight& w, Tensor x, Tensor y) {
  call.c.ops.Multiply(call.c, std::array{Product{.x = x, .w = &w, .y = y}});
}

inline std::vector<OpsCase> CasesOfRows(const OpsSizes& sizes) {
  const int64_t hidden = sizes.hidden;
  const MlaShape& mla = sizes.mla;
  const auto embeds = [hidden](bool zero_first) {
    return [=](const OpsCall& call) {
      call.c.ops.Embed(call.c, call.weights().table, call.inputs, zero_first, call.out);
      const TestMatrix rows = call.side.Get(call.out);
      for (int64_t r = 0; r < call.out.rows; ++r) {
        const float* row = rows.view().row(r);
        const bool zero = std::all_of(row, row + hidden, [](float v) { return v == 0; });
        EXPECT_EQ(zero, zero_first && call.in.positions[static_cast<size_t>(r)] == 0);
      }
    };
  };
  return {
      {"Embed", hidden, true, 0, embeds(false)},
      {"EmbedZeroAtPosition0", hidden, true, 0, embeds(true)},
      {"Rotary", mla.rope, true, 2e-5F,
       [mla](const OpsCall& call) {
         const Rotary rotary = RotaryOf(call.c, mla, call.inputs);
         call.c.ops.Copy(call.c, rotary.cos, call.out.Columns(0, mla.rope / 2));
         call.c.ops.Copy(call.c, rotary.sin, call.out.Columns(mla.rope / 2, mla.rope / 2));
       }},
      {"CopyRows", hidden, true, 0,
       [hidden](const OpsCall& call) {
         const Context& c = call.c;
         const auto memory = c.ops.MakeRows(call.out.rows + 3, hidden);
         RowCopies reverse;
         RowCopies back;
         for (int64_t r = 0; r < call.out.rows; ++r) {
           reverse.Add(r, call.out.rows + 2 - r);
           back.Add(call.out.rows + 2 - r, r);
         }
         c.ops.CopyRows(c, call.x, memory->rows(), reverse);
         c.ops.CopyRows(c, memory->rows(), call.out, back);
         c.ops.CopyRows(c, {}, call.out, {});  // nothing
         const TestMatrix rows = call.side.Get(call.out);
         EXPECT_TRUE(
             SameBits(rows.values.data(), call.in.x.values.data(), std::ssize(rows.values)));
       }},
      {"Norm", hidden, false, 1e-2F,
       [](const OpsCall& call) {
         call.c.ops.Norm(call.c, call.x, call.weights().norm, 1e-6F, call.out);
       }},
      {"NormOfColumnsInPlace", hidden, false, 1e-2F,
       [hidden](const OpsCall& call) {
         const Context& c = call.c;
         const Tensor half = c.Rows(call.out.rows, 2 * hidden).Columns(hidden, hidden);
         c.ops.Copy(c, call.x, half);
         c.ops.Norm(c, half, call.weights().norm, 1e-6F, half);
         c.ops.Copy(c, half, call.out);
       }},
      {"Multiply", sizes.matrix, true, 1e-3F,
       [](const OpsCall& call) { MultiplyBy(call, call.weights().matrix, call.x, call.out); }},
      {"MultiplyStacked", 64, true, 1e-3F,
       [](const OpsCall& call) { MultiplyBy(call, call.weights().stacked, call.x, call.out); }},
      {"MultiplyAccumulate", hidden, true, 1e-3F,
       [](const OpsCall& call) {
         const Context& c = call.c;
         c.ops.Copy(c, call.x, call.out);
         c.ops.Multiply(
             c, std::array{Product{
                    .x = call.x, .w = &call.weights().square, .y = call.out, .accumulate = true}});
       }},
      {"SideBySide", kLeftColumns + kRightColumns, true, 2e-2F,
       [](const OpsCall& call) {
         const Context& c = call.c;
         const Tensor both = c.Activations(call.out.rows, kLeftColumns + kRightColumns);
         c.ops.Multiply(c, std::array{Product{.x = call.x,
                                              .w = &call.weights().left,
                                              .y = both.Columns(0, kLeftColumns)},
                                      Product{.x = call.x,
                                              .w = &call.weights().right,
                                              .y = both.Columns(kLeftColumns, kRightColumns)}});
         c.ops.Copy(c, both, call.out);
       }},
      {"GatedMlp", hidden, false, 2e-2F,
       [width = sizes.width](const OpsCall& call) {
         const Context& c = call.c;
         const Tensor inner = c.Rows(call.out.rows, width);
         c.ops.Multiply(
             c, std::array{Product{
                    .x = call.x, .w = &call.weights().gate_up, .y = inner, .silu_mul = true}});
         MultiplyBy(call, call.weights().down, inner, call.out);
       }},
      {"GatedMlpWithALimit", sizes.width, false, 2e-2F,
       [](const OpsCall& call) {
         call.c.ops.Multiply(call.c, std::array{Product{.x = call.x,
                                                        .w = &call.weights().gate_up,
                                                        .y = call.out,
                                                        .silu_mul = true,
                                                        .limit = 0.25F}});
         for (const float value : call.side.Get(call.out).values) {
           EXPECT_LE(std::fabs(value), 0.28F * 0.25F);
         }
       }},
      {"Head", sizes.vocab - 7, true, 1e-3F,
       [vocab = static_cast<int32_t>(sizes.vocab)](const OpsCall& call) {
         const Context& c = call.c;
         std::vector<int32_t> rows(static_cast<size_t>(call.out.rows));
         std::iota(rows.begin(), rows.end(), 0);
         c.ops.Head(c, call.x, rows, call.weights().head, call.out);
         std::vector<int32_t> tokens(rows.size());
         c.ops.HeadChoice(c, call.x, rows, call.weights().head, vocab - 7, tokens);
         const TestMatrix logits = call.side.Get(call.out);
         for (int64_t r = 0; r < call.out.rows; ++r) {
           const float* row = logits.view().row(r);
           EXPECT_EQ(tokens[static_cast<size_t>(r)],
                     std::max_element(row, row + logits.view_cols) - row);
         }
       }},
  };
}

/// out = x + experts(x), or with `normed` the norm of it. With `table` [vocabulary, top_k] experts
/// are chosen by token.
inline void RunExperts(const OpsCall& call, const ExpertWeights& experts, const RouterSpec& spec,
                       Tensor out, const ExpertLimits& limits = {}, bool normed = false,
                       const int32_t* table = nullptr) {
  const Context& c = call.c;
  const MoeOps& moe = *c.ops.moe();
  const Tensor logits = c.Rows(out.rows, spec.experts);
  c.ops.Multiply(c, std::array{Product{
                        .x = call.x, .w = &call.weights().router, .y = logits, .float32 = true}});
  const Routing& routing =
      table == nullptr
          ? moe.Route(c, spec, call.inputs, 0, experts, logits, nullptr)
          : c.ops.token_router()->RouteByToken(c, spec, call.inputs, 0, experts, logits, table);
  const ExpertRows inner = moe.ExpertGateUp(c, experts, limits, routing, call.x);
  const ExpertRows outputs = moe.ExpertDown(c, experts, routing, inner);
  if (!normed) {
    c.ops.Copy(c, call.x, out);
    return moe.CombineExperts(c, experts, routing, outputs, out, {});
  }
  const Tensor sum = c.Rows(out.rows, out.cols);
  const Tensor norm = c.Activations(out.rows, out.cols);
  c.ops.Copy(c, call.x, sum);
  moe.CombineExperts(c, experts, routing, outputs, sum, {call.weights().norm, 1e-6F, norm});
  c.ops.Copy(c, norm, out);
}

/// out [rows, 9] = what is told of rows that choose three of eight experts by their first values,
/// in the second of three layers.
inline void TellExperts(const OpsCall& call, const RouterSpec& spec) {
  const Context& c = call.c;
  const Tensor logits = c.Rows(call.out.rows, spec.experts);
  c.ops.Copy(c, call.x.Columns(0, spec.experts), logits);
  const Routing& routing =
      c.ops.moe()->Route(c, spec, call.inputs, 0, call.weights().experts, logits, nullptr);
  TestMatrix told(call.out.rows, call.out.cols);
  std::vector<int16_t> ids(told.values.size());
  Buffer memory = c.ops.Allocate(ids.size() * sizeof(int16_t));
  const RoutedShape shape = {.layers = 3, .top_k = spec.top_k};
  const ChosenExpertsOfLayers layers = {memory.as<int16_t>(), shape};
  c.ops.chosen_experts()->ReadChosen(routing, layers.Layer(1));
  c.ops.CopyToHost(memory.data(), std::as_writable_bytes(std::span(ids)));
  std::ranges::copy(ids, told.values.begin());
  c.ops.Copy(c, call.side.Put(told), call.out);
}

/// As RunExperts, of a table that gives every token three of eight experts.
inline void RunExpertsByToken(const OpsCall& call, RouterSpec spec) {
  spec.method = RouterMethod::kTokenTable;
  spec.scoring = RouterScoring::kSqrtSoftplus;
  spec.groups = spec.top_groups = 1;
  std::vector<int32_t> experts;
  for (int64_t token = 0; token < call.weights().table.rows; ++token) {
    for (int64_t i = 0; i < spec.top_k; ++i) {
      experts.push_back(static_cast<int32_t>((5 * token + 3 * i) % spec.experts));
    }
  }
  Buffer table = call.c.ops.Allocate(experts.size() * sizeof(int32_t));
  call.c.ops.CopyFromHost(std::as_bytes(std::span(experts)), table.data());
  RunExperts(call, call.weights().experts, spec, call.out, {}, /*normed=*/false,
             table.as<int32_t>());
  call.side.Get(call.out);  // the table is read
}

inline std::vector<OpsCase> CasesOfExperts(const OpsSizes& sizes) {
  const int64_t hidden = sizes.hidden;
  const RouterSpec greedy = {.experts = 8,
                             .top_k = 2,
                             .scoring = RouterScoring::kSoftmax,
                             .method = RouterMethod::kGreedy};
  const RouterSpec grouped = {
      .experts = 8, .top_k = 3, .groups = 4, .top_groups = 2, .scaling_factor = 2.5};
  return {
      {"ChosenExperts", 9, true, 0, [grouped](const OpsCall& call) { TellExperts(call, grouped); }},
      {"Experts", hidden, false, 2e-2F,
       [greedy](const OpsCall& call) {
         RunExperts(call, call.weights().unshared_experts, greedy, call.out);
       }},
      {"ExpertsOfGroupsWithAShared", hidden, false, 3e-2F,
       [grouped](const OpsCall& call) {
         RunExperts(call, call.weights().experts, grouped, call.out);
       }},
      {"ExpertsWithLimits", hidden, false, 3e-2F,
       [grouped, hidden](const OpsCall& call) {
         RunExperts(call, call.weights().experts, grouped, call.out,
                    {.routed = 0.1F, .shared = 0.2F});
         const Tensor free = call.c.Rows(call.out.rows, hidden);
         RunExperts(call, call.weights().experts, grouped, free);
         EXPECT_NE(call.side.Get(call.out).values, call.side.Get(free).values);
       }},
      {"ExpertsWithLimitsOfGates", hidden, false, 3e-2F,
       [grouped, hidden](const OpsCall& call) {
         const auto run = [&](const ExpertLimits& limits) {
           const Tensor out = call.c.Rows(call.out.rows, hidden);
           RunExperts(call, call.weights().experts, grouped, out, limits);
           return call.side.Get(out).values;
         };
         const ExpertLimits limits = {.routed = 0.1F, .shared = 0.2F, .limits_gate = true};
         RunExperts(call, call.weights().experts, grouped, call.out, limits);
         const std::vector<float> got = call.side.Get(call.out).values;
         EXPECT_EQ(got, run(limits));
         // Each limit cuts, and where it is said to cut.
         EXPECT_NE(got, run({.routed = 0.2F, .shared = 0.2F, .limits_gate = true}));
         EXPECT_NE(got, run({.routed = 0.1F, .shared = 0.1F, .limits_gate = true}));
         EXPECT_NE(got, run({.routed = 0.1F, .shared = 0.2F, .limits_gate = false}));
       }},
      {"ExpertsByToken", hidden, false, 3e-2F,
       [grouped](const OpsCall& call) { RunExpertsByToken(call, grouped); }},
      {"NormOfExperts", hidden, false, 3e-2F,
       [grouped](const OpsCall& call) {
         RunExperts(call, call.weights().experts, grouped, call.out, {}, /*normed=*/true);
       }},
  };
}

inline std::vector<OpsCase> CasesOfLatents(const OpsSizes& sizes) {
  const MlaShape& mla = sizes.mla;
  // Of each head its values, and the rotated part that stands behind what is absorbed.
  return {{"AbsorbAndUnabsorb", int64_t{mla.heads} * (mla.value + mla.rope), false, 3e-2F,
           [mla](const OpsCall& call) {
             const Context& c = call.c;
             const int64_t rows = call.out.rows;
             const int64_t head = mla.nope + mla.rope;
             const int64_t width = mla.latent + mla.rope;
             const Tensor q = c.Rows(rows, mla.heads * head);
             const Tensor absorbed = c.Rows(rows, mla.heads * width);
             const Tensor latent = c.Rows(rows, int64_t{mla.heads} * mla.latent);
             const int64_t values = int64_t{mla.heads} * mla.value;
             for (int64_t h = 0; h < mla.heads; ++h) {
               c.ops.Copy(c, call.x.Columns(h * 8, head), q.Columns(h * head, head));
             }
             c.ops.mla()->Absorb(c, mla, call.weights().kv_up, RotaryOf(c, mla, call.inputs), q,
                                 absorbed);
             for (int64_t h = 0; h < mla.heads; ++h) {
               c.ops.Copy(c, absorbed.Columns(h * width, mla.latent),
                          latent.Columns(h * mla.latent, mla.latent));
               c.ops.Copy(c, absorbed.Columns(h * width + mla.latent, mla.rope),
                          call.out.Columns(values + h * mla.rope, mla.rope));
             }
             const Tensor unabsorbed = c.Rows(rows, values);
             c.ops.mla()->Unabsorb(c, mla, call.weights().kv_up, latent, unabsorbed);
             c.ops.Copy(c, unabsorbed, call.out.Columns(0, values));
           }}};
}

/// Of four streams, which the columns of x are.
inline std::vector<OpsCase> CasesOfStreams(const OpsSizes& sizes) {
  const int64_t hidden = sizes.hidden;
  return {{"Streams", 2 * hidden, false, 2e-2F, [hidden](const OpsCall& call) {
             const Context& c = call.c;
             const HyperOps& ops = *c.ops.hyper();
             const HyperShape shape = {
                 .streams = 4, .iterations = 20, .eps = 1e-6F, .norm_eps = 1e-6F};
             const int64_t rows = call.out.rows;
             const int64_t width = hidden / 4;
             std::mt19937 random(6);
             const auto vector = [&](int64_t count) {
               return static_cast<const float*>(
                   call.side.Put(TestMatrix::Random(1, count, random)).data);
             };
             const Tensor streams = c.Rows(rows, hidden);
             const Tensor y = c.Rows(rows, width);
             const Tensor weights = c.Rows(rows, 20);
             const Tensor mixture = c.Activations(rows, width);
             c.ops.Copy(c, call.x, streams);
             c.ops.Copy(c, call.x.Columns(7, width), y);
             HyperMixArgs args = {.streams = streams,
                                  .fn = &call.weights().streams,
                                  .scale = vector(3),
                                  .base = vector(24),
                                  .norm = vector(width),
                                  .mixture = mixture,
                                  .weights = weights};
             const auto give = [&](Tensor x, int64_t part) {
               c.ops.Copy(c, x, call.out.Columns(part * width, x.cols));
             };
             ops.HyperMix(c, shape, args);
             give(mixture, 0);
             args.add = {.y = y, .weights = weights};  // and a second mixture
             ops.HyperMix(c, shape, args);
             give(mixture, 1);
             ops.HyperAdd(c, shape, args.add, streams);
             give(streams, 4);
             const Tensor contracted = c.Rows(rows, width);
             ops.HyperMix(c, shape,
                          {.streams = streams,
                           .fn = &call.weights().contraction,
                           .scale = args.scale,
                           .base = args.base,
                           .mixture = contracted});
             give(contracted, 2);
             ops.HyperMean(c, shape, streams, mixture);
             give(mixture, 3);
           }}};
}

inline std::vector<OpsCase> OpsCases(const OpsSizes& sizes) {
  std::vector<OpsCase> cases = CasesOfRows(sizes);
  for (const auto& of_facet :
       {CasesOfExperts(sizes), CasesOfLatents(sizes), CasesOfStreams(sizes)}) {
    cases.insert(cases.end(), of_facet.begin(), of_facet.end());
  }
  return cases;
}

/// The output of a case on a table.
inline TestMatrix RunOpsCase(const OpsCase& test, OpsSide& side, const OpsRows& in) {
  constexpr int32_t kBlock = 16;
  const Scratch::Frame frame(side.arena());
  std::vector<StepPart> parts;
  for (size_t r = 0; r < in.tokens.size(); ++r) {
    const auto blocks = static_cast<size_t>(in.positions[r] / kBlock + 1);
    parts.push_back({.context = in.positions[r],
                     .tokens = {in.tokens[r]},
                     .tables = {std::vector<int32_t>(blocks)}});
  }
  const Context c = side.context();
  const TestStep step(c, FullHistoryCache(1, kBlock).groups, std::move(parts));
  const Tensor out = c.Rows(in.x.view_rows, test.cols);
  test.run({side, in, step.inputs(), side.Put(in.x), out});
  return side.Get(out);
}

/// Runs a case on all rows and on each alone, which gives equal bits; the output of all.
inline TestMatrix RunTogetherAndAlone(const OpsCase& test, OpsSide& side, const OpsRows& in) {
  const TestMatrix all = RunOpsCase(test, side, in);
  for (int32_t r = 0; r < all.view_rows; ++r) {
    const TestMatrix alone = RunOpsCase(test, side, in.Part(r, 1));
    EXPECT_TRUE(SameBits(alone.view().row(0), all.view().row(r), test.cols))
        << test.name << " row " << r;
  }
  return all;
}

}  // namespace outrider
