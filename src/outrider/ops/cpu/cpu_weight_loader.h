// The CPU's weight loader: packs a checkpoint's tensors into panels, in one block of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "outrider/base/buffer.h"
#include "outrider/ops/cpu/packed_weights.h"
#include "outrider/ops/cpu/weight_format.h"
#include "outrider/ops/weight_loader.h"

namespace outrider::cpu {

class CpuWeightLoader : public WeightLoader {
 public:
  /// The source must outlive the loader.
  CpuWeightLoader(const WeightSource& source, const WeightForm& form);

  void Stacked(Weight* out, const std::vector<std::string>& names, int64_t rows, int64_t cols,
               const WeightCut& cut) override;
  void UnquantizedMatrix(Weight* out, const std::string& name, int64_t rows, int64_t cols) override;
  void ExactMatrix(Weight* out, const std::string& name, int64_t rows, int64_t cols) override;
  void StreamMatrix(Weight* out, const std::string& name, int64_t rows, int64_t cols) override {
    ExactMatrix(out, name, rows, cols);
  }
  void Mlp(Weight* gate_up, Weight* down, const MlpTensors& names, int64_t width,
           int64_t hidden) override;
  void MoeExperts(ExpertWeights* out, const Experts& experts) override;
  void SplitKvUp(KvUpWeight* out, const std::string& name, const KvUp& sizes) override;
  void Table(TokenTable* out, const std::string& name, int64_t rows, int64_t cols) override;

 private:
  /// What the handles point to; addresses stay.
  struct Memory : WeightMemory {
    Buffer bytes;
    std::deque<PackedMatrix> matrices;
    std::deque<PackedTable> tables;
    std::deque<PackedKvUp> kv_ups;
    std::deque<PackedExperts> experts;
  };

  void Begin(ThreadPool& pool) override;
  std::unique_ptr<WeightMemory> Finish() override;
  const void* Keep(std::span<const std::byte> values) override;
  /// Memory for as many bytes.
  std::byte* Take(int64_t bytes);
  /// Memory for a piece that is measured.
  std::byte* Take(const Piece& piece) { return Take(SumOf(*piece.sizes)); }

  /// How DeclareStacked declares.
  struct StackedUse {
    Cut cut = Cut::kNone;
    int64_t weights_used_together = 0;  // MatrixUse's, if larger than the weight's own size
    WeightForm form;
  };
  /// The rank's rows of tensors [rows, cols] each.
  void DeclareStacked(PackedMatrix* out, std::vector<ExpectedTensor> tensors, int64_t rows,
                      int64_t cols, const StackedUse& use);
  /// One MLP of `num_mlps` of that shape that a layer has; with an index, that of stacks.
  void DeclareMlp(PackedMlp* out, const MlpTensors& names, int64_t width, int64_t hidden,
                  int64_t num_mlps, std::optional<int64_t> index);
  /// Sets the handle of a matrix of `count` tensors [rows, cols] that is yet to be declared.
  PackedMatrix* NewMatrix(Weight* out, int64_t count, int64_t rows, int64_t cols,
                          const WeightCut& cut = {});
  /// Throws Error where a part of a matrix would share a panel of FP8 codes with other blocks; it
  /// names how many ranks can share the matrix. whole_rows: of each tensor.
  void CheckCut(const Piece& piece, const PackedFormat& format, Cut cut, int64_t whole_rows) const;

  std::unique_ptr<Memory> memory_;
  std::byte* next_ = nullptr;  // of the memory, where the next weight goes
};

}  // namespace outrider::cpu
