// The GPU's weight loader: packs a checkpoint's tensors on the device, for the matrix products or
// as they are.
//
// A matrix keeps its codes if a kernel reads their form (weight_formats.h): FP8 with scales of
// blocks of 128x128, where its parts begin at multiples of 128 rows and columns, of rows or of the
// tensor; INT4, FP4 and NVFP4. Any other is bf16, rounded once. Random bf16 weights
// (MakeDummyWeights) are made on the device, with the values that they have on the CPU.
//
// Each of several ranks packs its rows of a weight that is cut. Formats and segments of K are
// chosen by the whole weight.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "outrider/ops/cuda/cuda_weights.h"
#include "outrider/ops/cuda/tensor_upload.h"
#include "outrider/ops/weight_loader.h"

namespace outrider::cuda {

class CudaWeightLoader : public WeightLoader {
 public:
  /// The source must outlive the loader; copies are made in `stream`. Throws Error for a form that
  /// the kernels do not read.
  CudaWeightLoader(const WeightSource& source, const WeightForm& form, cudaStream_t stream);

  void Stacked(Weight* out, const std::vector<std::string>& names, int64_t rows, int64_t cols,
               const WeightCut& cut) override;
  void SideBySide(const std::vector<NamedMatrix>& matrices, int64_t cols) override;
  void UnquantizedMatrix(Weight* out, const std::string& name, int64_t rows, int64_t cols) override;
  void ExactMatrix(Weight* out, const std::string& name, int64_t rows, int64_t cols) override;
  void ExactSideBySide(const std::vector<NamedMatrix>& matrices, int64_t cols) override;
  void StreamMatrix(Weight* out, const std::string& name, int64_t rows, int64_t cols) override;
  void Mlp(Weight* gate_up, Weight* down, const MlpTensors& names, int64_t width,
           int64_t hidden) override;
  void MoeExperts(ExpertWeights* out, const Experts& experts) override;
  void SplitKvUp(KvUpWeight* out, const std::string& name, const KvUp& sizes) override;
  void Table(TokenTable* out, const std::string& name, int64_t rows, int64_t cols) override;

 private:
  struct Memory : WeightMemory {
    std::vector<DeviceMemory> bytes;
    std::deque<PackedWeight> matrices;
    std::deque<CudaTable> tables;
    std::deque<CudaFloats> floats;
    std::deque<CudaKvUp> kv_ups;
    std::deque<CudaExperts> experts;
  };

  void Begin(ThreadPool& pool) override;
  std::unique_ptr<WeightMemory> Finish() override;
  const void* Keep(std::span<const std::byte> values) override { return upload_->Keep(values); }

  /// Declare, with what a device does of it.
  void DeclarePacked(std::vector<ExpectedTensor> tensors, std::function<void(WeightSizes&)> measure,
                     std::function<void(TensorUpload&)> fill, double part = 1);
  void AddMatrixSize(WeightFormat format, int64_t rows, int64_t cols, int64_t count,
                     WeightSizes& sizes) const;
  void AddMlpSizes(const std::vector<MlpParts>& mlps, WeightSizes& sizes) const;

  /// The rank's rows of a part of a tensor, and of the matrices of an MLP.
  TensorPart OwnPart(TensorPart whole, Cut cut) const;
  MlpParts OwnMlp(const MlpParts& whole) const;
  std::vector<MlpParts> OwnMlps(const std::vector<MlpParts>& wholes) const;
  /// How a whole weight [rows, cols] is stored.
  MatrixForm FormOf(WeightFormat format, int64_t rows, int64_t cols) const;
  TensorUpload::MlpForms FormsOf(const std::vector<MlpParts>& wholes) const;
  /// How each of several matrices is stored whose products are one.
  std::vector<MatrixForm> SideBySideForms(const std::vector<TensorPart>& wholes) const;

  cudaStream_t stream_;
  std::unique_ptr<Memory> memory_;
  std::optional<TensorUpload> upload_;  // between Begin and Finish
};

}  // namespace outrider::cuda
