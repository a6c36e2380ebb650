// The GPU's operations: near the reference table's with operands rounded alike, and each row alone
// against all rows together, in bits. Needs a GPU of compute capability 9.0, and cuDNN. Long
// because all operations are cases of these two comparisons.
#include "outrider/ops/cuda/cuda_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "outrider/kernels/cuda/rows/tensor_rows.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/cuda/cuda_step_inputs.h"
#include "outrider/ops/cuda/cuda_weight_loader.h"
#include "outrider/ops/mla.h"
#include "outrider/ops/moe.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/kernels/kernel_fixture.h"

namespace outrider::cuda {
namespace {

constexpr int64_t kHidden = 256;
constexpr int64_t kWidth = 64;  // of an MLP
constexpr int64_t kVocab = 1000;
constexpr int32_t kBlock = 16;  // tokens per block
constexpr int32_t kLayers = 3;  // that share the pages of a cache
const MlaShape kMla = {.heads = 4,
                       .latent = 512,
                       .nope = 64,
                       .rope = 64,
                       .value = 64,
                       .softmax_scale = 0.09F,
                       .norm_eps = 1e-6F};

/// Random weights, packed by a table.
struct DeviceOpsWeights {
  explicit DeviceOpsWeights(const Device& device) {
    const auto source = MakeDummyWeights(ModelConfig{}, 5);
    const auto loader = device.ops.MakeWeightLoader(*source, {.compute_dtype = DType::kBF16});
    loader->Table(&table, "embed_tokens.weight", kVocab, kHidden);
    loader->Vector(&norm, "norm", kHidden);
    loader->Vector(&latent_norm, "latent_norm", kMla.latent);
    loader->Matrix(&matrix, "matrix", 120, kHidden);
    loader->Stacked(&stacked, {"first", "second"}, 32, kHidden, {});
    loader->Matrix(&square, "square", kHidden, kHidden);
    loader->SideBySide({&left, "left", 192}, {&right, "right", 40}, kHidden);
    loader->Mlp(&gate_up, &down, {"gate", "up", "down"}, kWidth, kHidden);
    loader->Matrix(&head, "head", kVocab, kHidden);
    loader->UnquantizedMatrix(&router, "router", 8, kHidden);
    WeightLoader::Experts e = {.width = kWidth,
                               .shared = {"sg", "su", "sd"},
                               .shared_width = 2 * kWidth,
                               .hidden = kHidden};
    for (const char* name : {"0", "1", "2", "3", "4", "5", "6", "7"}) {
      e.routed.push_back(
          {std::string("g") + name, std::string("u") + name, std::string("d") + name});
    }
    loader->MoeExperts(&experts, e);
    e.shared_width = 0;
    loader->MoeExperts(&unshared_experts, e);
    loader->SplitKvUp(&kv_up, "kv_b", {kMla.heads, kMla.nope, kMla.value, kMla.latent});
    EXPECT_GT(SumOf(loader->PackedSizes()), 0);
    memory = loader->Load(device, nullptr);
  }

  TokenTable table;
  const float* norm = nullptr;
  const float* latent_norm = nullptr;
  Weight matrix, stacked, square, left, right, gate_up, down, head, router;
  ExpertWeights experts, unshared_experts;
  KvUpWeight kv_up;
  std::unique_ptr<WeightMemory> memory;
};

/// A table with what its calls need, and rows on their way between it and the host.
class Side {
 public:
  Side(const Ops& ops, ThreadPool& pool)
      : device_{ops, &pool},
        arena_(ops.MakeArena()),
        weights_(device_),
        on_gpu_(dynamic_cast<const CudaOps*>(&ops)) {}

  Context context() { return {device_, arena_, DType::kBF16}; }
  const DeviceOpsWeights& weights() const { return weights_; }
  Scratch& arena() { return arena_; }
  const Ops& ops() const { return device_.ops; }

  /// A copy in the arena.
  Tensor Put(const TestMatrix& x) {
    const Tensor to = context().Rows(x.view_rows, x.view_cols);
    Copy(to.data, x.values.data(), x.values.size() * sizeof(float));
    return to;
  }
  TestMatrix Get(Tensor x) {
    TestMatrix to(x.rows, x.cols);
    const Tensor dense = context().Rows(x.rows, x.cols);
    device_.ops.Copy(context(), x, dense);
    Copy(to.values.data(), dense.data, to.values.size() * sizeof(float));
    return to;
  }
  void Copy(void* to, const void* from, size_t bytes) {
    if (on_gpu_ == nullptr) {
      std::memcpy(to, from, bytes);
      return;
    }
    CheckCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, on_gpu_->stream()),
              "copy of a test");
    on_gpu_->Synchronize();
  }

 private:
  Device device_;
  Scratch arena_;
  DeviceOpsWeights weights_;
  const CudaOps* on_gpu_;
};

/// The rows of a step.
struct OpsRows {
  std::vector<TokenRef> tokens;
  std::vector<int32_t> positions;
  TestMatrix x{0, kHidden};
};

/// Rounds to bfloat16, so that both tables read the same numbers.
TestMatrix Rounded(TestMatrix x) {
  for (float& value : x.values) value = RoundToBFloat16(value);
  return x;
}

struct OpsCase {
  std::string name;
  int64_t cols;  // of its output
  float tolerance;
  std::function<void(Side&, const StepInputs&, Tensor x, Tensor out)> run;
};

Rotary RotaryOf(const Context& c, const StepInputs& inputs) {
  std::array<float, 32> frequencies = {};
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(10000.0F, -static_cast<float>(i) / 32.0F);
  }
  return c.ops.MakeRotary(c, frequencies, 1.5F, true, inputs);
}

/// x + experts(x), or with `normed` the norm of it.
void RunExperts(const Context& c, const DeviceOpsWeights& w, const StepInputs& inputs,
                const ExpertWeights& experts, const RouterSpec& spec, bool normed, Tensor x,
                Tensor out) {
  const Tensor logits = c.Rows(out.rows, 8);
  c.ops.Multiply(c, std::array{Product{.x = x, .w = &w.router, .y = logits, .float32 = true}});
  const Routing& routing = c.ops.moe()->Route(c, spec, inputs, 0, experts, logits, nullptr);
  const ExpertRows inner = c.ops.moe()->ExpertGateUp(c, experts, {}, routing, x);
  const ExpertRows outputs = c.ops.moe()->ExpertDown(c, experts, routing, inner);
  if (!normed) {
    c.ops.Copy(c, x, out);
    return c.ops.moe()->CombineExperts(c, experts, routing, outputs, out, {});
  }
  const Tensor sum = c.Rows(out.rows, out.cols);
  const Tensor norm = c.Activations(out.rows, out.cols);
  c.ops.Copy(c, x, sum);
  c.ops.moe()->CombineExperts(c, experts, routing, outputs, sum, {w.norm, 1e-6F, norm});
  c.ops.Copy(c, norm, out);
}

/// out [rows, 9] = what is told of rows that choose three of eight experts by their first values,
/// in the second of three layers.
void TellExperts(Side& s, const RouterSpec& spec, const StepInputs& inputs, Tensor x, Tensor out) {
  const Context c = s.context();
  const Tensor logits = c.Rows(out.rows, spec.experts);
  c.ops.Copy(c, x.Columns(0, spec.experts), logits);
  const Routing& routing =
      c.ops.moe()->Route(c, spec, inputs, 0, s.weights().experts, logits, nullptr);
  TestMatrix told(static_cast<int32_t>(out.rows), out.cols);
  std::vector<int16_t> ids(told.values.size());
  Buffer memory = c.ops.Allocate(ids.size() * sizeof(int16_t));
  const RoutedShape shape = {.layers = 3, .top_k = spec.top_k};
  const ChosenExpertsOfLayers layers = {memory.as<int16_t>(), shape};
  c.ops.chosen_experts()->ReadChosen(routing, layers.Layer(1));
  c.ops.CopyToHost(memory.data(), std::as_writable_bytes(std::span(ids)));
  std::ranges::copy(ids, told.values.begin());
  c.ops.Copy(c, s.Put(told), out);
}

std::vector<OpsCase> Cases() {
  const RouterSpec greedy = {.experts = 8,
                             .top_k = 2,
                             .scoring = RouterScoring::kSoftmax,
                             .method = RouterMethod::kGreedy};
  const RouterSpec grouped = {
      .experts = 8, .top_k = 3, .groups = 4, .top_groups = 2, .scaling_factor = 2.5};
  return {
      {"ChosenExperts", 9, 0,
       [grouped](Side& s, const StepInputs& in, Tensor x, Tensor out) {
         TellExperts(s, grouped, in, x, out);
       }},
      {"Embed", kHidden, 0,
       [](Side& s, const StepInputs& in, Tensor, Tensor out) {
         s.ops().Embed(s.context(), s.weights().table, in, false, out);
       }},
      {"EmbedZeroAtPosition0", kHidden, 0,
       [](Side& s, const StepInputs& in, Tensor, Tensor out) {
         s.ops().Embed(s.context(), s.weights().table, in, true, out);
       }},
      {"Rotary", 64, 2e-5F,
       [](Side& s, const StepInputs& in, Tensor, Tensor out) {
         const Context c = s.context();
         const Rotary rotary = RotaryOf(c, in);
         c.ops.Copy(c, rotary.cos, out.Columns(0, 32));
         c.ops.Copy(c, rotary.sin, out.Columns(32, 32));
       }},
      {"CopyRows", kHidden, 0,
       [](Side& s, const StepInputs&, Tensor x, Tensor out) {
         const Context c = s.context();
         const auto memory = c.ops.MakeRows(out.rows + 3, kHidden);
         RowCopies reverse;
         RowCopies back;
         for (int64_t r = 0; r < out.rows; ++r) {
           reverse.Add(r, out.rows + 2 - r);
           back.Add(out.rows + 2 - r, r);
         }
         c.ops.CopyRows(c, x, memory->rows(), reverse);
         c.ops.CopyRows(c, memory->rows(), out, back);
         c.ops.CopyRows(c, {}, out, {});  // nothing
         s.Get(out);                      // before the memory goes
       }},
      {"Norm", kHidden, 1e-2F,
       [](Side& s, const StepInputs&, Tensor x, Tensor out) {
         s.ops().Norm(s.context(), x, s.weights().norm, 1e-6F, out);
       }},
      {"NormOfColumnsInPlace", kHidden, 1e-2F,
       [](Side& s, const StepInputs&, Tensor x, Tensor out) {
         const Context c = s.context();
         const Tensor pair = c.Rows(out.rows, 2 * kHidden);
         const Tensor half = pair.Columns(kHidden, kHidden);
         c.ops.Copy(c, x, half);
         c.ops.Norm(c, half, s.weights().norm, 1e-6F, half);
         c.ops.Copy(c, half, out);
       }},
      {"Multiply", 120, 1e-3F,
       [](Side& s, const StepInputs&, Tensor x, Tensor out) {
         s.ops().Multiply(s.context(),
                          std::array{Product{.x = x, .w = &s.weights().matrix, .y = out}});
       }},
      {"MultiplyStacked", 64, 1e-3F,
       [](Side& s, const StepInputs&, Tensor x, Tensor out) {
         s.ops().Multiply(s.context(),
                          std::array{Product{.x = x, .w = &s.weights().stacked, .y = out}});
       }},
      {"MultiplyAccumulate", kHidden, 1e-3F,
       [](Side& s, const StepInputs&, Tensor x, Tensor out) {
         const Context c = s.context();
         c.ops.Copy(c, x, out);
         c.ops.Multiply(c, std::array{Product{
                               .x = x, .w = &s.weights().square, .y = out, .accumulate = true}});
       }},
      {"GatedMlp", kHidden, 2e-2F,
       [](Side& s, const StepInputs&, Tensor x, Tensor out) {
         const Context c = s.context();
         const Tensor inner = c.Rows(out.rows, kWidth);
         c.ops.Multiply(c, std::array{Product{
                               .x = x, .w = &s.weights().gate_up, .y = inner, .silu_mul = true}});
         c.ops.Multiply(c, std::array{Product{.x = inner, .w = &s.weights().down, .y = out}});
       }},
      {"Head", kVocab - 7, 1e-3F,
       [](Side& s, const StepInputs&, Tensor x, Tensor out) {
         const Context c = s.context();
         std::vector<int32_t> rows(static_cast<size_t>(out.rows));
         std::iota(rows.begin(), rows.end(), 0);
         c.ops.Head(c, x, rows, s.weights().head, out);
         std::vector<int32_t> tokens(rows.size());
         c.ops.HeadChoice(c, x, rows, s.weights().head, kVocab - 7, tokens);
         const TestMatrix logits = s.Get(out);
         for (int64_t r = 0; r < out.rows; ++r) {
           const float* row = logits.view().row(r);
           EXPECT_EQ(tokens[static_cast<size_t>(r)], std::max_element(row, row + out.cols) - row);
         }
       }},
      {"Experts", kHidden, 2e-2F,
       [greedy](Side& s, const StepInputs& in, Tensor x, Tensor out) {
         RunExperts(s.context(), s.weights(), in, s.weights().unshared_experts, greedy, false, x,
                    out);
       }},
      {"ExpertsOfGroupsWithShared", kHidden, 3e-2F,
       [grouped](Side& s, const StepInputs& in, Tensor x, Tensor out) {
         RunExperts(s.context(), s.weights(), in, s.weights().experts, grouped, false, x, out);
       }},
      {"NormOfExperts", kHidden, 3e-2F,
       [grouped](Side& s, const StepInputs& in, Tensor x, Tensor out) {
         RunExperts(s.context(), s.weights(), in, s.weights().experts, grouped, true, x, out);
       }},
      {"SideBySide", 232, 2e-2F,
       [](Side& s, const StepInputs&, Tensor x, Tensor out) {
         const Context c = s.context();
         const Tensor both = c.Activations(out.rows, 232);
         c.ops.Multiply(
             c, std::array{Product{.x = x, .w = &s.weights().left, .y = both.Columns(0, 192)},
                           Product{.x = x, .w = &s.weights().right, .y = both.Columns(192, 40)}});
         c.ops.Copy(c, both, out);
       }},
      {"AbsorbAndUnabsorb", kMla.heads * kMla.value, 3e-2F,
       [](Side& s, const StepInputs& in, Tensor x, Tensor out) {
         const Context c = s.context();
         const int32_t width = kMla.latent + kMla.rope;
         const int64_t head = kMla.nope + kMla.rope;
         const Tensor q = c.Rows(out.rows, kMla.heads * head);
         const Tensor absorbed = c.Rows(out.rows, int64_t{kMla.heads} * width);
         const Tensor latent = c.Rows(out.rows, int64_t{kMla.heads} * kMla.latent);
         for (int32_t h = 0; h < kMla.heads; ++h) {
           c.ops.Copy(c, x.Columns(h * 8, head), q.Columns(h * head, head));
         }
         c.ops.mla()->Absorb(c, kMla, s.weights().kv_up, RotaryOf(c, in), q, absorbed);
         for (int32_t h = 0; h < kMla.heads; ++h) {
           c.ops.Copy(c, absorbed.Columns(h * width, kMla.latent),
                      latent.Columns(h * kMla.latent, kMla.latent));
         }
         c.ops.mla()->Unabsorb(c, kMla, s.weights().kv_up, latent, out);
         // Behind what is absorbed stands the rotated part: added, so that it counts.
         for (int32_t h = 0; h < kMla.heads; ++h) {
           c.ops.Copy(c, absorbed.Columns(h * width + kMla.latent, kMla.rope),
                      out.Columns(h * kMla.value, kMla.rope));
         }
       }},
  };
}

/// One request that is alone in a step, with its pages in the order of `blocks`.
struct OneRequest {
  OneRequest(TokenRefs tokens, int32_t context, Phase phase, const std::vector<int32_t>& blocks)
      : layout(kBlock), plan(AttentionBackend::kRagged, 32) {
    layout.Assign(std::vector{RequestWork{.slot = 0,
                                          .phase = phase,
                                          .context_length = context,
                                          .tokens = tokens,
                                          .draft_tokens = {},
                                          .samples = false,
                                          .block_tables = {&blocks, 1}}});
    plan.Assign(layout);
  }
  BatchLayout layout;
  AttentionPlan plan;
};

class CudaOpsTest : public HopperTest<> {
 protected:
  void SetUp() override {
    HopperTest<>::SetUp();
    if (IsSkipped()) return;
    ops_ = std::make_unique<CudaOps>();
    gpu_ = std::make_unique<Side>(*ops_, pool_);
    cpu_ = std::make_unique<Side>(cpu::GetCpuOps(Isa::kReference), pool_);
  }

  OpsRows MakeRows(int32_t rows) {
    OpsRows in;
    in.x = Rounded(TestMatrix::Random(rows, kHidden, random_));
    for (int32_t r = 0; r < rows; ++r) {
      in.tokens.push_back(std::uniform_int_distribution<int32_t>(0, kVocab - 1)(random_));
    }
    return in;
  }

  /// Rows [first, first + count) at the positions that they have in the whole.
  static TestMatrix Run(const OpsCase& test, Side& side, OpsRows& in, int32_t first,
                        int32_t count) {
    const Scratch::Frame frame(side.arena());
    const std::vector<int32_t> blocks = {3, 1, 2, 0, 4, 5, 6, 7};
    const TokenRefs tokens =
        std::span(in.tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    const OneRequest request(tokens, first, Phase::kDecode, blocks);
    const auto inputs = side.ops().MakeStepInputs();
    inputs->Assign(request.layout, request.plan, RowCount::kExact);
    TestMatrix rows(count, kHidden);
    std::copy_n(in.x.view().row(first), count * kHidden, rows.values.data());
    const Tensor out = side.context().Rows(count, test.cols);
    test.run(side, *inputs, side.Put(rows), out);
    return side.Get(out);
  }

  ThreadPool pool_{4};
  std::mt19937 random_{20240607};
  std::unique_ptr<CudaOps> ops_;
  std::unique_ptr<Side> gpu_;
  std::unique_ptr<Side> cpu_;
};

TEST_F(CudaOpsTest, EveryRowAloneAndTheReference) {
  constexpr int32_t kRows = 67;
  for (const OpsCase& test : Cases()) {
    OpsRows in = MakeRows(kRows);
    const TestMatrix all = Run(test, *gpu_, in, 0, kRows);
    for (int32_t r = 0; r < kRows; ++r) {
      const TestMatrix alone = Run(test, *gpu_, in, r, 1);
      ASSERT_TRUE(SameBits(alone.view().row(0), all.view().row(r), test.cols))
          << test.name << " row " << r;
    }
    const TestMatrix want = Run(test, *cpu_, in, 0, kRows);
    for (int32_t r = 0; r < kRows; ++r) {
      for (int64_t i = 0; i < test.cols; ++i) {
        const float expected = want.view().row(r)[i];
        ASSERT_NEAR(all.view().row(r)[i], expected, test.tolerance * (1 + std::fabs(expected)))
            << test.name << " row " << r << " column " << i;
      }
    }
  }
}

TEST_F(CudaOpsTest, TokensOnTheDeviceAreEmbedded) {
  OpsRows in = MakeRows(40);
  const OpsCase embed = Cases().front();
  const TestMatrix want = Run(embed, *gpu_, in, 0, 40);
  ops_->KeepTokens(40);
  gpu_->Copy(ops_->results().tokens(), in.tokens.data(), 40 * sizeof(int32_t));
  for (int32_t i = 0; i < 40; i += 3) in.tokens[static_cast<size_t>(i)] = TokenRef::At(i);
  const TestMatrix got = Run(embed, *gpu_, in, 0, 40);
  EXPECT_EQ(got.values, want.values);
}

// Rows go back by what the device keeps to where a layout that knows it has them.
TEST_F(CudaOpsTest, RowsMoveToWhereTheDeviceKnows) {
  constexpr int32_t kCount = 150;
  const LayerCache cache = {.block_size = kBlock,
                            .width = 576,
                            .block_stride = int64_t{kLayers} * kBlock * 576,
                            .num_blocks = 8 * kCount};
  std::vector<int32_t> kept(2 * kCount);
  std::vector<std::vector<int32_t>> blocks(kCount);
  std::vector<RequestWork> late;
  std::vector<RequestWork> known;
  std::vector<int32_t> places;
  const std::vector<int32_t> token = {3};
  for (int32_t r = 0; r < kCount; ++r) {
    const int32_t context = 20 + (r * 37) % 90;
    const int32_t back = r % 3 == 0 ? 0 : r % 6;
    places.push_back(r % 3 == 0 ? -1 : 2 * kCount - 1 - r);
    if (places.back() >= 0) kept[static_cast<size_t>(places.back())] = back;
    for (int32_t b = 0; b < 8; ++b) blocks[static_cast<size_t>(r)].push_back((r * 8 + b * 5) % 977);
    late.push_back({.slot = r,
                    .context_length = context,
                    .tokens = token,
                    .draft_tokens = {},
                    .samples = false,
                    .block_tables = {&blocks[static_cast<size_t>(r)], 1}});
    known.push_back(late.back());
    known.back().context_length -= back;
  }
  ops_->KeepTokens(2 * kCount);
  gpu_->Copy(ops_->results().tokens(), kept.data(), kept.size() * sizeof(int32_t));
  struct Rows {
    std::vector<int32_t> positions = std::vector<int32_t>(kCount);
    std::vector<int32_t> seq_lens = std::vector<int32_t>(kCount);
    std::vector<int64_t> slots = std::vector<int64_t>(kCount);
    bool operator==(const Rows&) const = default;
  };
  BatchLayout layout(kBlock);
  AttentionPlan plan(AttentionBackend::kRagged, 1);
  const auto assign = [&](StepInputs& inputs, const std::vector<RequestWork>& work, bool moved) {
    layout.Assign(work);
    plan.Assign(layout);
    if (moved) {
      inputs.AssignMoved(layout, plan, RowCount::kRounded, places);
    } else {
      inputs.Assign(layout, plan, RowCount::kRounded);
    }
    Rows rows;
    const CacheInputs& of_cache = Cast(inputs).Of(cache);
    gpu_->Copy(rows.positions.data(), Cast(inputs).positions(), kCount * sizeof(int32_t));
    gpu_->Copy(rows.seq_lens.data(), of_cache.decode.seq_lens, kCount * sizeof(int32_t));
    gpu_->Copy(rows.slots.data(), of_cache.slots, kCount * sizeof(int64_t));
    return rows;
  };
  const auto inputs = ops_->MakeStepInputs();
  const Rows want = assign(*ops_->MakeStepInputs(), known, false);
  // First with a cache whose geometry is not known before, then with one that is.
  EXPECT_EQ(assign(*inputs, late, true), want);
  EXPECT_EQ(assign(*inputs, late, true), want);
  EXPECT_NE(assign(*inputs, late, false), want);
}

// Few rows go with the launch, more through memory.
TEST_F(CudaOpsTest, CopiesFewAndManyRows) {
  for (const int32_t count : {1, kMostListedRows, kMostListedRows + 1, 700}) {
    const Scratch::Frame frame(gpu_->arena());
    const OpsRows in = MakeRows(count);
    const Tensor from = gpu_->Put(in.x);
    const Tensor to = gpu_->context().Rows(count + 2, kHidden);
    RowCopies copies;
    // The device keeps the number of every fourth.
    std::vector<int32_t> numbers(static_cast<size_t>(count));
    std::iota(numbers.begin(), numbers.end(), 0);
    ops_->KeepTokens(700);
    gpu_->Copy(ops_->results().tokens(), numbers.data(), numbers.size() * sizeof(int32_t));
    for (int32_t r = 0; r < count; ++r) {
      if (r % 4 == 3) {
        copies.AddFromPlace(r, count + 1 - r);
      } else {
        copies.Add(r, count + 1 - r);
      }
    }
    ops_->SetZero(gpu_->context(), to);
    ops_->CopyRows(gpu_->context(), from, to, copies);
    const TestMatrix got = gpu_->Get(to);
    for (int32_t r = 0; r < count; ++r) {
      ASSERT_TRUE(SameBits(got.view().row(count + 1 - r), in.x.view().row(r), kHidden)) << r;
    }
    EXPECT_TRUE(std::all_of(got.view().row(0), got.view().row(2), [](float v) { return v == 0; }));
  }
  const CopyRowsParams params = {.num_rows = 1, .cols = 4, .from_size = 3, .to_size = 3};
  for (const auto& [from, to] : {std::pair(-1, 0), {-2, 0}, {3, 0}, {0, -1}, {0, 3}}) {
    EXPECT_THROW(static_cast<void>(CopyListedRows(params, {&from, 1}, {&to, 1}, nullptr)), Error);
  }
  const std::vector<int32_t> many(kMostListedRows + 1);
  EXPECT_THROW(
      static_cast<void>(CopyListedRows({.num_rows = kMostListedRows + 1}, many, many, nullptr)),
      Error);
}

/// One call of each in a few rows: what the tools of compute-sanitizer look at.
TEST_F(CudaOpsTest, SmallForTheSanitizers) {
  constexpr int32_t kRows = 5;
  for (const OpsCase& test : Cases()) {
    OpsRows in = MakeRows(kRows);
    const TestMatrix rows = Run(test, *gpu_, in, 0, kRows);
    EXPECT_TRUE(std::ranges::all_of(rows.values, [](float v) { return std::isfinite(v); }))
        << test.name;
  }
}

TEST_F(CudaOpsTest, ProductsSideBySideHaveTheBitsOfEachAlone) {
  OpsRows in = MakeRows(9);
  const Scratch::Frame frame(gpu_->arena());
  const Context c = gpu_->context();
  const Tensor x = gpu_->Put(in.x);
  const Tensor both = c.Activations(9, 232);
  const Tensor left = c.Activations(9, 192);
  const Tensor right = c.Activations(9, 40);
  const Weight& a = gpu_->weights().left;
  const Weight& b = gpu_->weights().right;
  c.ops.Multiply(c, std::array{Product{.x = x, .w = &a, .y = both.Columns(0, 192)},
                               Product{.x = x, .w = &b, .y = both.Columns(192, 40)}});
  c.ops.Multiply(c, std::array{Product{.x = x, .w = &a, .y = left}});
  c.ops.Multiply(c, std::array{Product{.x = x, .w = &b, .y = right}});
  const TestMatrix together = gpu_->Get(both);
  const TestMatrix first = gpu_->Get(left);
  const TestMatrix second = gpu_->Get(right);
  for (int32_t r = 0; r < 9; ++r) {
    EXPECT_TRUE(SameBits(together.view().row(r), first.view().row(r), 192)) << r;
    EXPECT_TRUE(SameBits(together.view().row(r) + 192, second.view().row(r), 40)) << r;
  }
}

TEST_F(CudaOpsTest, TheLargestIsTheLowestOfEqualsAndFinite) {
  constexpr int64_t kCols = 1000;
  TestMatrix rows(6, kCols);
  for (int64_t i = 0; i < kCols; ++i) {
    rows.view().row(0)[i] = i == 300 || i == 301 || i == 999 ? 2.0F : -1.0F;
    rows.view().row(1)[i] = kNaN;
    rows.view().row(2)[i] = i == 7 ? INFINITY : 1.0F;
    rows.view().row(3)[i] = -INFINITY;
    rows.view().row(4)[i] = i == 640 ? -5.0F : -INFINITY;
    rows.view().row(5)[i] = i == 640 ? kNaN : 1.0F;
  }
  const Scratch::Frame frame(gpu_->arena());
  const Tensor on_device = gpu_->Put(rows);
  auto* const places = gpu_->arena().Take<int32_t>(6);
  CheckCuda(FindLargest(static_cast<const float*>(on_device.data), 6, kCols, kCols, places,
                        ops_->stream()),
            "largest");
  std::array<int32_t, 6> got = {};
  gpu_->Copy(got.data(), places, sizeof(got));
  EXPECT_EQ(got, (std::array<int32_t, 6>{300, -1, -1, -1, 640, -1}));
}

/// Entries of a request's positions and attention to them, in pieces that end at `ends`.
TestMatrix RunAttention(Side& side, const TestMatrix& kv, const TestMatrix& q, Phase phase,
                        DType cache_type, const std::vector<int32_t>& ends) {
  const Scratch::Frame frame(side.arena());
  const Context c = side.context();
  const Ops& ops = side.ops();
  const auto positions = static_cast<int32_t>(kv.view_rows);
  const int32_t width = kMla.latent + kMla.rope;
  const int64_t layer = int64_t{kBlock} * width;
  const std::vector<int32_t> blocks = {2, 0, 3, 7, 5, 1};
  const size_t size = DTypeSize(cache_type);
  Buffer memory = ops.Allocate(static_cast<size_t>(8 * kLayers * layer) * size);
  const LayerCache cache = {
      .data = memory.data() + static_cast<size_t>((kLayers - 1) * layer) * size,
      .dtype = cache_type,
      .block_size = kBlock,
      .width = width,
      .block_stride = kLayers * layer,
      .num_blocks = 8};
  const Tensor all_kv = side.Put(kv);
  const Tensor all_q = side.Put(q);
  TestMatrix result(positions, kMla.heads * kMla.value);
  int32_t first = 0;
  for (const int32_t end : ends) {
    const int32_t count = end - first;
    const std::vector<int32_t> tokens(static_cast<size_t>(count), 0);
    const OneRequest request(tokens, first, phase, blocks);
    const auto inputs = ops.MakeStepInputs();
    inputs->Assign(request.layout, request.plan, RowCount::kExact);
    const Tensor kv_rows = c.Rows(count, width);
    ops.Copy(c, all_kv.Rows(first, count), kv_rows);
    const Rotary rotary = RotaryOf(c, *inputs);
    ops.mla()->WriteLatentEntries(
        c, kMla, *inputs,
        {.kv = kv_rows, .norm = side.weights().latent_norm, .rotary = rotary, .cache = cache});
    const Tensor queries = c.Rows(count, q.view_cols);
    ops.Copy(c, all_q.Rows(first, count), queries);
    const Tensor out = c.Rows(count, kMla.heads * kMla.value);
    if (phase == Phase::kDecode) {
      const Tensor absorbed = c.Rows(count, int64_t{kMla.heads} * width);
      const Tensor latent = c.Rows(count, int64_t{kMla.heads} * kMla.latent);
      ops.mla()->Absorb(c, kMla, side.weights().kv_up, rotary, queries, absorbed);
      // Twice: the plan of the first call serves the second.
      for (int layer_call = 0; layer_call < 2; ++layer_call) {
        ops.mla()->DecodeAttention(c, kMla, *inputs,
                                   {.q = absorbed, .out = latent, .cache = cache});
      }
      ops.mla()->Unabsorb(c, kMla, side.weights().kv_up, latent, out);
    } else {
      ops.Rotate(c, queries, kMla.heads, kMla.nope, rotary);
      ops.mla()->PromptAttention(c, kMla, side.weights().kv_up, *inputs,
                                 {.q = queries, .out = out, .cache = cache});
    }
    const TestMatrix rows = side.Get(out);
    std::copy_n(rows.values.data(), rows.values.size(), result.view().row(first));
    first = end;
  }
  return result;
}

TEST_F(CudaOpsTest, EntriesAndAttentionInPieces) {
  constexpr int32_t kPositions = 83;
  const TestMatrix kv = Rounded(TestMatrix::Random(kPositions, kMla.latent + kMla.rope, random_));
  const TestMatrix q =
      Rounded(TestMatrix::Random(kPositions, kMla.heads * (kMla.nope + kMla.rope), random_));
  for (const Phase phase : {Phase::kDecode, Phase::kPromptChunk}) {
    const TestMatrix want = RunAttention(*cpu_, kv, q, phase, DType::kBF16, {kPositions});
    for (const DType type : {DType::kBF16, DType::kF8E4M3}) {
      const std::string form =
          fmt::format("{}, {}", phase == Phase::kDecode ? "absorbed" : "expanded", DTypeName(type));
      const TestMatrix whole = RunAttention(*gpu_, kv, q, phase, type, {kPositions});
      const TestMatrix pieces =
          RunAttention(*gpu_, kv, q, phase, type, {1, 2, 17, 48, 80, kPositions});
      // Three bits of mantissa: entries are off by up to a sixteenth.
      const float tolerance = type == DType::kBF16 ? 3e-2F : 0.2F;
      for (int32_t r = 0; r < kPositions; ++r) {
        ASSERT_TRUE(SameBits(pieces.view().row(r), whole.view().row(r), whole.view_cols))
            << form << " row " << r;
        for (int64_t i = 0; i < want.view_cols; ++i) {
          const float expected = want.view().row(r)[i];
          ASSERT_NEAR(whole.view().row(r)[i], expected, tolerance * (1 + std::fabs(expected)))
              << form << " row " << r << " column " << i;
        }
      }
    }
  }
}

TEST_F(CudaOpsTest, WhatFailsWhilePromptsArePreparedIsThrownWherePromptsWait) {
  MlaShape wide = kMla;
  wide.nope = 224;  // with the rotated part more than cuDNN takes
  wide.q_lora = 64;
  ops_->mla()->PreparePrompts(wide);
  ops_->mla()->PreparePrompts(wide);
  const Scratch::Frame frame(gpu_->arena());
  const Context c = gpu_->context();
  const std::vector<int32_t> tokens(3, 0);
  const std::vector<int32_t> blocks = {0};
  const OneRequest request(tokens, 0, Phase::kPromptChunk, blocks);
  const auto inputs = ops_->MakeStepInputs();
  inputs->Assign(request.layout, request.plan, RowCount::kExact);
  const int32_t width = kMla.latent + kMla.rope;
  Buffer memory = ops_->Allocate(size_t{kBlock} * width * sizeof(BFloat16));
  const LayerCache cache = {.data = memory.data(),
                            .dtype = DType::kBF16,
                            .block_size = kBlock,
                            .width = width,
                            .block_stride = int64_t{kBlock} * width,
                            .num_blocks = 1};
  const AttentionArgs args = {.q = c.Activations(3, wide.query_stride()),
                              .out = c.Activations(3, kMla.heads * kMla.value),
                              .cache = cache};
  for (int call = 0; call < 2; ++call) {
    EXPECT_THROW(ops_->mla()->PromptAttention(c, wide, gpu_->weights().kv_up, *inputs, args),
                 Error);
  }
}

TEST(CudaWeights, FormsThatTheKernelsDoNotReadAreRefused) {
  const auto source = MakeDummyWeights(ModelConfig{}, 5);
  const auto refused = [&](const WeightForm& form, const std::string& part) {
    try {
      const CudaWeightLoader loader(*source, form, nullptr);
      ADD_FAILURE() << "not refused: " << part;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  refused({.compute_dtype = DType::kF32}, "--dtype bfloat16");
  refused({.quantization = WeightQuantization::kInt8}, "--quantization int8");
}

}  // namespace
}  // namespace outrider::cuda
