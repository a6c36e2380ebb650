// Every weight that a family declares, cut into 2, 4 and 8: products with the parts are the columns
// of the product with the whole, bit for bit, and each rank reads no more than its part. One
// case per family makes it long.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "outrider/checkpoint/rank_config.h"
#include "outrider/networks/deepseek_v4_weights.h"
#include "outrider/networks/deepseek_weights.h"
#include "outrider/networks/eagle3_weights.h"
#include "outrider/networks/hybrid_weights.h"
#include "outrider/networks/step3p5_weights.h"
#include "outrider/ops/cpu/packed_weights.h"
#include "tests/networks/forwarding_source.h"
#include "tests/networks/loaded_model.h"
#include "tests/networks/quantized_checkpoint.h"
#include "tests/networks/small_hybrid_model.h"
#include "tests/networks/small_sparse_model.h"
#include "tests/networks/small_step_model.h"
#include "tests/temporary_directory.h"

namespace outrider {
namespace {

using nlohmann::json;

/// What a declaration fills.
struct Handles {
  std::array<Weight, 2> matrices;
  ExpertWeights experts;
  KvUpWeight kv_up;
  const float* vector = nullptr;
};

/// A packed matrix in `Handles`: of so many tensors below one another, each cut by `cut`.
struct Part {
  const PackedMatrix* matrix = nullptr;
  Cut cut = Cut::kNone;
  int64_t tensors = 1;
};

/// A declaration that can be made again, of another loader.
struct Declaration {
  std::string name;
  std::function<void(WeightLoader&, Handles&)> make;
  std::function<std::vector<Part>(const Handles&)> parts;  // of a loaded weight; null: none
  int64_t heads = 0;                                       // of a kv_b_proj or vector
  int64_t cols = 1;                                        // values of a head or of a copy's row
  int64_t copied_rows = 0;                                 // of a copy
};

void AddMlp(const cpu::PackedMlp& mlp, std::vector<Part>& parts) {
  parts.push_back({&mlp.gate_up, Cut::kInner, 2});
  parts.push_back({&mlp.down, Cut::kRows, 1});
}

/// Notes what is declared.
class NotingLoader : public WeightLoader {
 public:
  explicit NotingLoader(const WeightSource& source) : WeightLoader(source, {}, 1) {}

  std::vector<Declaration> declarations;

  void Stacked(Weight* out, const std::vector<std::string>& names, int64_t rows, int64_t cols,
               const WeightCut& cut) override {
    *out = {static_cast<int64_t>(names.size()) * rows, cols, nullptr, cut};
    Note(
        names[0],
        [=](WeightLoader& l, Handles& h) { l.Stacked(h.matrices.data(), names, rows, cols, cut); },
        [=, n = static_cast<int64_t>(names.size())](const Handles& h) {
          return std::vector<Part>{{&cpu::Packed(h.matrices[0]), cut.rows, n}};
        });
  }
  void UnquantizedMatrix(Weight* /*out*/, const std::string& name, int64_t rows,
                         int64_t cols) override {
    Note(
        name,
        [=](WeightLoader& l, Handles& h) {
          l.UnquantizedMatrix(h.matrices.data(), name, rows, cols);
        },
        First());
  }
  void ExactMatrix(Weight* /*out*/, const std::string& name, int64_t rows, int64_t cols) override {
    Note(
        name,
        [=](WeightLoader& l, Handles& h) { l.ExactMatrix(h.matrices.data(), name, rows, cols); },
        First());
  }
  void StreamMatrix(Weight* /*out*/, const std::string& name, int64_t rows, int64_t cols) override {
    Note(
        name,
        [=](WeightLoader& l, Handles& h) { l.StreamMatrix(h.matrices.data(), name, rows, cols); },
        First());
  }
  void Mlp(Weight* /*gate_up*/, Weight* /*down*/, const MlpTensors& names, int64_t width,
           int64_t hidden) override {
    Note(
        names.gate,
        [=](WeightLoader& l, Handles& h) {
          l.Mlp(h.matrices.data(), &h.matrices[1], names, width, hidden);
        },
        [](const Handles& h) {
          return std::vector<Part>{{&cpu::Packed(h.matrices[0]), Cut::kInner, 2},
                                   {&cpu::Packed(h.matrices[1]), Cut::kRows, 1}};
        });
  }
  void MoeExperts(ExpertWeights* /*out*/, const Experts& experts) override {
    Note(
        experts.routed[0].gate,
        [=](WeightLoader& l, Handles& h) { l.MoeExperts(&h.experts, experts); },
        [](const Handles& h) {
          std::vector<Part> parts;
          const cpu::PackedExperts& packed = cpu::Packed(h.experts);
          for (const cpu::PackedMlp& expert : packed.experts) AddMlp(expert, parts);
          if (h.experts.shared_width > 0) AddMlp(packed.shared, parts);
          return parts;
        });
  }
  void SplitKvUp(KvUpWeight* /*out*/, const std::string& name, const KvUp& sizes) override {
    Note(name, [=](WeightLoader& l, Handles& h) { l.SplitKvUp(&h.kv_up, name, sizes); }, nullptr);
    declarations.back().heads = sizes.heads;
  }
  void Vector(const float** /*out*/, const std::string& name, int64_t size, float added) override {
    Note(
        name, [=](WeightLoader& l, Handles& h) { l.Vector(&h.vector, name, size, added); },
        nullptr);
  }
  void HeadVector(const float** /*out*/, const std::string& name, int64_t size) override {
    Note(name, [=](WeightLoader& l, Handles& h) { l.HeadVector(&h.vector, name, size); }, nullptr);
    declarations.back().heads = size;
  }
  void Values(const float** /*out*/, const std::string& name, int64_t rows, int64_t cols) override {
    Note(
        name, [=](WeightLoader& l, Handles& h) { l.Values(&h.vector, name, rows, cols); }, nullptr);
  }
  void HeadValues(const float** /*out*/, const std::string& name, int64_t rows,
                  int64_t cols) override {
    Note(
        name, [=](WeightLoader& l, Handles& h) { l.HeadValues(&h.vector, name, rows, cols); },
        nullptr);
    declarations.back().heads = rows;
    declarations.back().cols = cols;
  }
  void Integers(const int32_t** /*out*/, const std::string& /*name*/, int64_t /*rows*/,
                int64_t /*cols*/, int64_t /*limit*/) override {}
  void Table(TokenTable* out, const std::string& /*name*/, int64_t rows, int64_t cols) override {
    *out = {rows, cols, nullptr};
  }
  void Copy(const std::string& name, const std::string& original, int64_t rows, int64_t cols,
            std::string_view why) override {
    Note(
        name, [=](WeightLoader& l, Handles&) { l.Copy(name, original, rows, cols, why); }, nullptr);
    declarations.back().cols = cols;
    declarations.back().copied_rows = rows;
  }

 private:
  using Parts = std::function<std::vector<Part>(const Handles&)>;

  static Parts First() {
    return [](const Handles& h) { return std::vector<Part>{{&cpu::Packed(h.matrices[0])}}; };
  }
  void Note(const std::string& name, std::function<void(WeightLoader&, Handles&)> make,
            Parts parts) {
    declarations.push_back({name, std::move(make), std::move(parts)});
  }
  void Begin(ThreadPool& /*pool*/) override {}
  std::unique_ptr<WeightMemory> Finish() override { return nullptr; }
  const void* Keep(std::span<const std::byte> /*values*/) override { return nullptr; }
};

/// A tensor that counts the numbers that are read.
class CountedTensor : public WeightTensor {
 public:
  CountedTensor(std::unique_ptr<WeightTensor> inner, std::atomic<int64_t>& count)
      : WeightTensor(inner->shape()), inner_(std::move(inner)), count_(count) {}

  DType stored_dtype() const override { return inner_->stored_dtype(); }
  int64_t stored_bytes() const override { return inner_->stored_bytes(); }
  bool exact_in_bfloat16() const override { return inner_->exact_in_bfloat16(); }
  const DummyStream* dummy_stream() const override { return inner_->dummy_stream(); }
  const BlockScales* block_scales() const override { return inner_->block_scales(); }
  const GroupScales* group_scales() const override { return inner_->group_scales(); }
  void ReadCodes(int64_t first, int64_t count, uint8_t* out) const override {
    count_ += count * cols();
    inner_->ReadCodes(first, count, out);
  }
  void ReadGroupScales(int64_t first, int64_t count, uint8_t* out) const override {
    count_ += count * cols() / group_scales()->cols;
    inner_->ReadGroupScales(first, count, out);
  }
  void ReadRows(int64_t first, int64_t count, float* out) const override {
    count_ += count * cols();
    inner_->ReadRows(first, count, out);
  }

 private:
  std::unique_ptr<WeightTensor> inner_;
  std::atomic<int64_t>& count_;
};

class CountedSource : public ForwardingSource {
 public:
  using ForwardingSource::ForwardingSource;

  mutable std::atomic<int64_t> count = 0;

  std::unique_ptr<WeightTensor> Open(const ExpectedTensor& tensor) const override {
    return std::make_unique<CountedTensor>(ForwardingSource::Open(tensor), count);
  }
};

/// A source with further tensors, which are copies of others.
class RepeatingSource : public ForwardingSource {
 public:
  /// copies: by name the tensor that each repeats.
  RepeatingSource(const WeightSource& inner, const std::map<std::string, std::string>& copies)
      : ForwardingSource(inner), copies_(copies) {}

  bool Has(std::string_view name) const override {
    return copies_.contains(std::string(name)) || ForwardingSource::Has(name);
  }
  std::unique_ptr<WeightTensor> Open(const ExpectedTensor& tensor) const override {
    const auto copy = copies_.find(tensor.name);
    if (copy == copies_.end()) return ForwardingSource::Open(tensor);
    return ForwardingSource::Open({copy->second, tensor.shape});
  }

 private:
  const std::map<std::string, std::string>& copies_;
};

class CutTest {
 public:
  CutTest(const WeightSource& source, const std::vector<Declaration>& declarations)
      : source_(source), declarations_(declarations) {}

  void Run() {
    int64_t num_cut = 0;
    for (const Declaration& declaration : declarations_) {
      SCOPED_TRACE(declaration.name);
      const Loaded whole = Load(declaration, {});
      for (const int32_t ranks : {2, 4, 8}) {
        int64_t read = 0;
        int64_t stored = 0;
        const int64_t copied = declaration.copied_rows;
        bool is_cut = declaration.heads > 0 || copied > 0;
        for (int32_t rank = 0; rank < ranks; ++rank) {
          SCOPED_TRACE(fmt::format("rank {} of {}", rank, ranks));
          const Loaded part = Load(declaration, {rank, ranks});
          read += part.read;
          stored += part.stored;
          if (copied > 0) {
            const Share own = ShareOf(Cut::kRows, copied, {rank, ranks});
            EXPECT_EQ(part.read, 2 * own.count * declaration.cols) << "of copy and original";
          }
          Compare(declaration, whole.handles, part.handles, {rank, ranks}, is_cut);
          if (::testing::Test::HasFailure()) return;
        }
        // A vector is one row of its tensor: it is read whole.
        const bool is_matrix =
            declaration.parts != nullptr || whole.handles.kv_up.packed != nullptr || copied > 0;
        if (is_matrix) {
          EXPECT_EQ(read, is_cut ? whole.read : ranks * whole.read);
          // Each of its tensors' bytes is rounded down.
          EXPECT_NEAR(stored, is_cut ? whole.stored : ranks * whole.stored, 100 * ranks);
        }
        if (is_cut) ++num_cut;
      }
    }
    EXPECT_GT(num_cut, 0);
  }

 private:
  struct Loaded {
    Handles handles;
    std::unique_ptr<WeightMemory> memory;
    int64_t read = 0;    // numbers
    int64_t stored = 0;  // bytes that the loader says it reads
  };

  Loaded Load(const Declaration& declaration, const RankPlace& place) {
    const CountedSource source(source_);
    const auto loader = ops_.MakeWeightLoader(source, {.place = place});
    Loaded loaded;
    // The loader fills the handles where they are.
    auto handles = std::make_unique<Handles>();
    declaration.make(*loader, *handles);
    loaded.stored = loader->StoredBytes();
    loaded.memory = loader->Load({ops_, &pool_}, nullptr);
    loaded.handles = *handles;
    loaded.read = source.count;
    return loaded;
  }

  void Compare(const Declaration& declaration, const Handles& whole, const Handles& part,
               const RankPlace& place, bool& is_cut) {
    if (declaration.parts != nullptr) {
      const std::vector<Part> wholes = declaration.parts(whole);
      const std::vector<Part> parts = declaration.parts(part);
      ASSERT_EQ(wholes.size(), parts.size());
      for (size_t i = 0; i < parts.size(); ++i) {
        is_cut |= parts[i].cut != Cut::kNone;
        CompareMatrix(wholes[i], *parts[i].matrix, place);
      }
    } else if (whole.kv_up.packed != nullptr) {
      const Share heads = ShareOf(Cut::kHeads, declaration.heads, place);
      const cpu::PackedKvUp& of_whole = cpu::Packed(whole.kv_up);
      const cpu::PackedKvUp& of_part = cpu::Packed(part.kv_up);
      ASSERT_EQ(std::ssize(of_part.key_up), heads.count);
      for (int64_t h = 0; h < heads.count; ++h) {
        const auto w = static_cast<size_t>(heads.first + h);
        const auto p = static_cast<size_t>(h);
        CompareMatrix({&of_whole.key_up[w]}, of_part.key_up[p], {});
        CompareMatrix({&of_whole.key_up_t[w]}, of_part.key_up_t[p], {});
        CompareMatrix({&of_whole.value_up[w]}, of_part.value_up[p], {});
      }
    } else if (declaration.heads > 0) {
      const Share heads = ShareOf(Cut::kHeads, declaration.heads, place);
      for (int64_t i = 0; i < heads.count * declaration.cols; ++i) {
        EXPECT_EQ(part.vector[i], whole.vector[heads.first * declaration.cols + i]);
      }
    }
  }

  void CompareMatrix(const Part& whole, const PackedMatrix& part, const RankPlace& place) {
    const int64_t rows = whole.matrix->rows / whole.tensors;
    const Share share = ShareOf(whole.cut, rows, place);
    ASSERT_EQ(part.rows, share.count * whole.tensors);
    ASSERT_EQ(part.format.dtype, whole.matrix->format.dtype);
    const std::vector<float> all = Product(*whole.matrix);
    const std::vector<float> own = Product(part);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t t = 0; t < whole.tensors; ++t) {
        for (int64_t i = 0; i < share.count; ++i) {
          ASSERT_EQ(own[static_cast<size_t>(r * part.rows + t * share.count + i)],
                    all[static_cast<size_t>(r * whole.matrix->rows + t * rows + share.first + i)])
              << "row " << i << " of tensor " << t;
        }
      }
    }
  }

  std::vector<float> Product(const PackedMatrix& w) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<size_t>(kRows * w.cols));
    for (float& value : x) value = normal(random);
    std::vector<float> y(static_cast<size_t>(kRows * w.rows));
    ops_.kernels().matmul(pool_,
                          std::array{MatMulJob{.x = MatrixView<float>(x.data(), kRows, w.cols),
                                               .w = &w,
                                               .y = {y.data(), kRows, w.rows}}},
                          DType::kBF16);
    return y;
  }

  static constexpr int64_t kRows = 3;
  const cpu::CpuOps& ops_ = cpu::GetCpuOps(SelectIsa());
  ThreadPool pool_{1};
  const WeightSource& source_;
  const std::vector<Declaration>& declarations_;
};

/// copies: tensors that the family may repeat, by name the original.
template <typename Weights>
void CutAll(const WeightSource& own, const ModelConfig& config, int modules,
            const std::map<std::string, std::string>& copies = {}) {
  CheckRanks(config, 8, "ranks");
  const RepeatingSource source(own, copies);
  NotingLoader loader(source);
  Weights weights;
  weights.Declare(loader, config, modules);
  EXPECT_EQ(std::ranges::count_if(loader.declarations,
                                  [](const Declaration& d) { return d.copied_rows > 0; }),
            std::ssize(copies));
  CutTest(source, loader.declarations).Run();
}

/// That of a directory with some keys changed.
ModelConfig ChangedConfig(const std::filesystem::path& from, const json& changes) {
  json config = ReadJson(from / "config.json");
  config.update(changes);
  return ReadModelConfig(ModelDirectory(config).directory());
}

TEST(WeightCutTest, DeepSeekV3InFp8) {
  const ModelConfig config = ReadModelConfig(TinyModelDirectory());
  CutAll<DeepSeekWeights>(*OpenCheckpoint(TinyModelDirectory(), config), config, 3,
                          {{"model.layers.5.embed_tokens.weight", "model.embed_tokens.weight"},
                           {"model.layers.6.shared_head.head.weight", "lm_head.weight"}});
}

TEST(WeightCutTest, DeepSeekV32) {
  const SmallSparseModel model(1600);
  const ModelConfig config =
      ChangedConfig(model.directory(), {{"num_attention_heads", 8}, {"num_key_value_heads", 8}});
  CutAll<DeepSeekWeights>(*MakeDummyWeights(config, 1), config, 1);
}

TEST(WeightCutTest, DeepSeekV4WithItsModuleAndWithDSpark) {
  for (const auto& directory : {TinyV4Directory(), TinyDSparkDirectory()}) {
    // Of shared experts in FP8 each rank has 16 rows at least.
    const ModelConfig config = ChangedConfig(
        directory, {{"o_groups", 8}, {"num_attention_heads", 8}, {"moe_intermediate_size", 128}});
    CutAll<DeepSeekV4Weights>(
        *MakeDummyWeights(config, 1), config, 1,
        {{"mtp.0.embed.weight", "embed.weight"}, {"mtp.0.head.weight", "head.weight"}});
  }
}

TEST(WeightCutTest, Step3p5) {
  const SmallStepModel model(1600, 20, {.heads = 8, .kv_heads = 8});
  const ModelConfig config = ReadModelConfig(model.directory());
  CutAll<Step3p5Weights>(*MakeDummyWeights(config, 1), config, 3,
                         {{"model.layers.5.embed_tokens.weight", "model.embed_tokens.weight"}});
}

TEST(WeightCutTest, LinearAttention) {
  // In FP8 the gate of each head is a row, and all of them lie in one block.
  json in_fp8 = SmallFp4LingConfig(1600);
  in_fp8["moe_intermediate_size"] = 128;
  for (const json& small : {SmallLingConfig(1600), SmallKimiConfig(1600), in_fp8}) {
    const ModelDirectory model(WithHeads(small, 8));
    const ModelConfig config = ReadModelConfig(model.directory());
    CutAll<HybridWeights>(*MakeDummyWeights(config, 1), config, config.num_nextn_predict_layers);
  }
}

TEST(WeightCutTest, Eagle3) {
  const ModelConfig config = ReadModelConfig(TinyEagle3Directory());
  // A source with any name: what is noted is checked as if nothing were declared.
  const auto source = MakeDummyWeights(config, 1);
  NotingLoader loader(*source);
  Eagle3Weights weights;
  weights.Declare(loader, config);
  CutTest(*source, loader.declarations).Run();
}

// Every scale is another one, so a part with the scales of other rows has other values.
TEST(WeightCutTest, EveryStoredFormat) {
  constexpr int64_t kInner = 256;
  constexpr int64_t kHidden = 128;
  std::mt19937 random(5);
  for (const test_checkpoints::StoredAs stored : test_checkpoints::kAllStored) {
    SCOPED_TRACE(test_checkpoints::NameOf(stored));
    std::vector<test_checkpoints::TensorToWrite> tensors;
    const auto add = [&](const std::string& name, int64_t rows, int64_t cols) {
      test_checkpoints::QuantizedMatrix matrix =
          test_checkpoints::RandomQuantized(stored, name, rows, cols, 0.1, random);
      std::ranges::move(matrix.tensors, std::back_inserter(tensors));
    };
    for (const char* mlp : {"", "0.", "1."}) {
      add(std::string(mlp) + "gate", kInner, kHidden);
      add(std::string(mlp) + "up", kInner, kHidden);
      add(std::string(mlp) + "down", kHidden, kInner);
    }
    add("o", kHidden, kInner);
    const TemporaryDirectory directory;
    test_checkpoints::WriteSafetensors(directory.path() / "model.safetensors", tensors);
    ModelConfig config;
    config.quantization.method = "compressed-tensors";
    const auto source = OpenCheckpoint(directory.path(), config);
    const auto declare = [&](WeightLoader& loader, Handles& handles) {
      loader.Mlp(handles.matrices.data(), &handles.matrices[1],
                 {"gate.weight", "up.weight", "down.weight"}, kInner, kHidden);
      loader.MoeExperts(&handles.experts,
                        {.routed = {{"0.gate.weight", "0.up.weight", "0.down.weight"},
                                    {"1.gate.weight", "1.up.weight", "1.down.weight"}},
                         .width = kInner,
                         .hidden = kHidden});
    };
    Handles handles;
    const auto whole = cpu::GetCpuOps(SelectIsa()).MakeWeightLoader(*source, {});
    declare(*whole, handles);
    const WeightSizes sizes = whole->PackedSizes();
    ASSERT_EQ(sizes.size(), 1U);
    EXPECT_TRUE(sizes.contains(DType::kI4) || sizes.contains(DType::kF4E2M1) ||
                sizes.contains(DType::kF8E4M3));
    NotingLoader loader(*source);
    declare(loader, handles);
    loader.Matrix(handles.matrices.data(), "o.weight", kHidden, kInner, {.rows = Cut::kRows});
    CutTest(*source, loader.declarations).Run();
    if (HasFailure()) return;
  }
}

TEST(WeightCutTest, ARowThatIsNoCopyIsFoundByTheRankThatComparesIt) {
  constexpr int64_t kRows = 40;
  constexpr int64_t kCols = 4;
  const std::vector<float> original(kRows * kCols, 1);
  std::vector<test_checkpoints::TensorToWrite> tensors = {
      {"original", "F32", {kRows, kCols}, test_checkpoints::Bytes(original)}};
  for (int64_t row = 0; row < kRows; ++row) {
    std::vector<float> copy = original;
    copy[static_cast<size_t>(row * kCols + 3)] = 2;
    tensors.push_back(
        {fmt::format("copy{}", row), "F32", {kRows, kCols}, test_checkpoints::Bytes(copy)});
  }
  const TemporaryDirectory directory;
  test_checkpoints::WriteSafetensors(directory.path() / "model.safetensors", tensors);
  const auto source = OpenCheckpoint(directory.path(), ModelConfig{});
  const cpu::CpuOps& ops = cpu::GetCpuOps(SelectIsa());
  ThreadPool pool(1);
  for (const int32_t ranks : {1, 2, 4, 8}) {
    for (int64_t row = 0; row < kRows; ++row) {
      for (int32_t rank = 0; rank < ranks; ++rank) {
        const auto loader = ops.MakeWeightLoader(*source, {.place = {rank, ranks}});
        loader->Copy(fmt::format("copy{}", row), "original", kRows, kCols, "it may not");
        const Share own = ShareOf(Cut::kRows, kRows, {rank, ranks});
        const std::string error =
            test_checkpoints::ErrorOf([&] { loader->Load({ops, &pool}, nullptr); });
        EXPECT_EQ(error.ends_with(fmt::format("in row {}, but it may not", row)),
                  own.first <= row && row < own.end())
            << error << ": row " << row << ", rank " << rank << " of " << ranks;
      }
    }
  }
}

TEST(WeightCutTest, Fp8RowsThatCannotBeCutAreRefused) {
  const ModelConfig config = ReadModelConfig(TinyModelDirectory());
  const auto source = OpenCheckpoint(TinyModelDirectory(), config);
  const auto loader = cpu::GetCpuOps(SelectIsa())
                          .MakeWeightLoader(*source, {.place = {18, 37}});  // rows 124 to 131
  Weight weight;
  loader->Matrix(&weight, "model.layers.0.self_attn.o_proj.weight", 256, 512, {.rows = Cut::kRows});
  try {
    loader->PackedSizes();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::EndsWith(
                                  "o_proj.weight has too few rows for 37 ranks: its blocks of 128 "
                                  "FP8 rows are cut at multiples of 16; 36 can share it"));
  }
}

TEST(RankConfigTest, NumbersOfRanksThatDoNotFitAreRefusedWithThoseThatDo) {
  const ModelConfig v3 = ReadModelConfig(TinyModelDirectory());
  const auto error_of = [](const ModelConfig& config, int32_t ranks) -> std::string {
    try {
      CheckRanks(config, ranks, "--tensor-parallel-size");
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  for (const int32_t ranks : {1, 2, 4, 8}) EXPECT_EQ(error_of(v3, ranks), "");
  EXPECT_EQ(error_of(v3, 3),
            "--tensor-parallel-size is 3: that many ranks cannot share 8 heads; use 1, 2, 4, 8");
  EXPECT_EQ(error_of(v3, 16),
            "--tensor-parallel-size is 16: that many ranks cannot share the model; use 1, 2, 4, 8");
  EXPECT_EQ(
      error_of(ChangedConfig(TinyV4Directory(), {{"o_groups", 2}}), 4),
      "--tensor-parallel-size is 4: that many ranks cannot share 2 groups of heads; use 1, 2");
  const SmallStepModel step(1600);
  EXPECT_EQ(error_of(ReadModelConfig(step.directory()), 2),
            "--tensor-parallel-size is 2: that many ranks cannot share 1 heads of keys and values; "
            "use 1");
}

}  // namespace
}  // namespace outrider
