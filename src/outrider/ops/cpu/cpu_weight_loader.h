// The CPU's weight loader: packs a checkpoint's tensors into panels, in one block of memory.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
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
  CpuWeightLoader(const WeightSource& source, WeightForm form);

  const WeightSource& source() const override { return source_; }
  int32_t ranks() const override { return form_.head_ranks(); }

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
  void Vector(const float** out, const std::string& name, int64_t size, float added) override;
  void HeadVector(const float** out, const std::string& name, int64_t size) override;
  void Values(const float** out, const std::string& name, int64_t rows, int64_t cols) override;
  void HeadValues(const float** out, const std::string& name, int64_t rows, int64_t cols) override;
  void Integers(const int32_t** out, const std::string& name, int64_t rows, int64_t cols,
                int64_t limit) override;
  void Table(TokenTable* out, const std::string& name, int64_t rows, int64_t cols) override;
  void Copy(const std::string& name, const std::string& original, int64_t rows, int64_t cols,
            std::string_view why) override;
  WeightSizes PackedSizes() override;
  int64_t StoredBytes() override;
  std::unique_ptr<WeightMemory> Load(const Device& device, const Progress& progress) override;

 private:
  std::vector<ExpectedTensor> Declared() const override;
  void AddGroups(WeightGroups& groups) override;
  /// What the handles point to; addresses stay.
  struct Memory : WeightMemory {
    Buffer bytes;
    std::deque<PackedMatrix> matrices;
    std::deque<PackedTable> tables;
    std::deque<PackedKvUp> kv_ups;
    std::deque<PackedExperts> experts;
  };
  struct PieceSize {
    size_t bytes = 0;
    DType dtype = DType::kF32;  // of the elements, of most of them if they differ
  };
  struct Piece {
    std::vector<ExpectedTensor> tensors;
    OpenTensors open;
    PieceSize size;
    double part = 1;                           // of the tensors, which is read
    std::function<PieceSize(Piece&)> measure;  // once the tensors are open
    std::function<void(Piece&, std::byte* memory, ThreadPool&)> fill;

    /// Of the open tensors in the files, what is read.
    int64_t StoredBytes() const;
  };

  void Declare(std::vector<ExpectedTensor> tensors, std::function<PieceSize(Piece&)> measure,
               std::function<void(Piece&, std::byte*, ThreadPool&)> fill);
  /// Float32 values; `added` is added to each.
  void DeclareValues(const float** out, ExpectedTensor tensor, float added);
  /// Of the values declared last this rank's begin at `first`. They are read whole, as a file may
  /// have them in one row.
  void KeepFrom(int64_t first, const float** out);
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
  /// A handle of a matrix of `count` tensors [rows, cols] that is yet to be declared.
  PackedMatrix* NewMatrix(Weight* out, int64_t count, int64_t rows, int64_t cols,
                          const WeightCut& cut = {});
  /// Throws Error where a part of a matrix would share a panel of FP8 codes with other blocks; it
  /// names how many ranks can share the matrix. whole_rows: of each tensor.
  void CheckCut(const Piece& piece, const PackedFormat& format, Cut cut, int64_t whole_rows) const;
  void OpenAll();
  Share OwnShare(Cut cut, int64_t size) const {
    return ShareOf(cut == Cut::kHeads && form_.whole_attention ? Cut::kNone : cut, size,
                   form_.place);
  }
  /// What is cut of a matrix that is declared with `cut`: nothing of one that gives or reads heads
  /// where every rank has all of them.
  WeightCut OwnCut(const WeightCut& cut) const {
    const bool of_heads = cut.rows == Cut::kHeads || cut.input == Cut::kHeads;
    return of_heads && form_.whole_attention ? WeightCut() : cut;
  }

  const WeightSource& source_;
  WeightForm form_;
  std::vector<Piece> pieces_;
  std::unique_ptr<Memory> memory_;
};

}  // namespace outrider::cpu
