// Turns a checkpoint's tensors into a device's weights: every weight is declared once, with its
// names and shape; the declarations are checked against the checkpoint, measured, then filled. A
// device says how big a packed weight is, and packs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/base/dtype.h"
#include "outrider/base/function_ref.h"
#include "outrider/checkpoint/model_config.h"
#include "outrider/checkpoint/weight_source.h"
#include "outrider/ops/context.h"
#include "outrider/ops/weight_groups.h"
#include "outrider/ops/weights.h"
#include "outrider/parallel/share.h"

namespace outrider {

/// What handles of weights point into.
class WeightMemory {
 public:
  virtual ~WeightMemory() = default;
};

/// The checkpoint tensors that one weight is made of, at least one.
using OpenTensors = std::vector<std::unique_ptr<WeightTensor>>;

/// The tensors of a gated MLP: gate and up [width, hidden], down [hidden, width].
struct MlpTensors {
  std::string gate;
  std::string up;
  std::string down;

  /// Under the names that checkpoints give them.
  static MlpTensors At(const std::string& prefix) {
    return {prefix + "gate_proj.weight", prefix + "up_proj.weight", prefix + "down_proj.weight"};
  }
  /// Under DeepSeek-V4's.
  static MlpTensors NumberedAt(const std::string& prefix) {
    return {prefix + "w1.weight", prefix + "w3.weight", prefix + "w2.weight"};
  }
};

/// Rounding of weights at load that the user asks for (--quantization).
enum class WeightQuantization { kNone, kInt8 };

/// How weights are kept in memory.
///
/// An FP8 matrix keeps its codes and scales if both hold:
///   - more than max_fp8_weights_as_bf16 weights are used together; all experts of a layer count as
///     one matrix;
///   - its scale blocks cover whole panels of rows and a multiple of 4 columns.
/// FP8 with a scale for each row, or one for the tensor, and 4-bit codes with scales of groups keep
/// them if the first holds.
/// Any other matrix is rounded to bfloat16 with compute_dtype kBF16. With kF32 it keeps its values,
/// stored as bfloat16 where that loses nothing. With kInt8 every matrix is rounded to 8 bits with
/// one scale per row instead, except those declared unquantized.
///
/// Each of several ranks reads and keeps its part of a weight that is declared with a cut. The
/// format is chosen by the whole weight. Vectors and values are read whole, as they are small.
struct WeightForm {
  DType compute_dtype = DType::kBF16;
  WeightQuantization quantization = WeightQuantization::kNone;
  int64_t max_fp8_weights_as_bf16 = 0;  // KernelTable's
  RankPlace place = {};
  /// Every rank has all heads of attention, with the matrices that read and give them: each runs
  /// that of its own requests.
  bool whole_attention = false;

  /// How many ranks share the heads of attention.
  int32_t head_ranks() const { return whole_attention ? 1 : place.ranks; }
};

class WeightLoader {
 public:
  virtual ~WeightLoader() = default;

  const WeightSource& source() const { return source_; }
  /// How many ranks share the heads of attention that are declared.
  int32_t ranks() const { return form_.head_ranks(); }

  // Declarations: `out` is filled by Load and must stay where it is until then. Sizes are those of
  // the whole weight; without a cut every rank has all of it.

  /// A weight [rows, cols] of y = x W^T.
  void Matrix(Weight* out, const std::string& name, int64_t rows, int64_t cols,
              const WeightCut& cut = {}) {
    Stacked(out, {name}, rows, cols, cut);
  }
  /// Weights [rows, cols] each, stacked into [names.size() * rows, cols]; several are not cut by
  /// kRows.
  virtual void Stacked(Weight* out, const std::vector<std::string>& names, int64_t rows,
                       int64_t cols, const WeightCut& cut) = 0;
  /// A matrix by name. Its number of columns is an argument of its own.
  struct NamedMatrix {
    Weight* out = nullptr;
    std::string name;
    int64_t rows = 0;
    WeightCut cut = {};
  };
  /// Weights [.., cols] that are multiplied with equal rows of x. A device may keep them so that it
  /// runs their products as one (Ops::Multiply).
  virtual void SideBySide(const std::vector<NamedMatrix>& matrices, int64_t cols) {
    for (const NamedMatrix& m : matrices) Matrix(m.out, m.name, m.rows, cols, m.cut);
  }
  /// A weight that is never rounded to 8 bits.
  virtual void UnquantizedMatrix(Weight* out, const std::string& name, int64_t rows,
                                 int64_t cols) = 0;

  /// A weight that keeps its values, whatever the compute dtype. On a GPU, whose products take
  /// nothing wider, Load throws Error where bfloat16 would change one.
  virtual void ExactMatrix(Weight* out, const std::string& name, int64_t rows, int64_t cols) = 0;

  /// Several ExactMatrix [.., cols] that are multiplied with equal rows of x, as SideBySide. None
  /// is cut.
  virtual void ExactSideBySide(const std::vector<NamedMatrix>& matrices, int64_t cols) {
    for (const NamedMatrix& m : matrices) ExactMatrix(m.out, m.name, m.rows, cols);
  }

  /// A float32 matrix of HyperOps, which keeps its values everywhere.
  virtual void StreamMatrix(Weight* out, const std::string& name, int64_t rows, int64_t cols) = 0;

  /// The gate and up matrices of a gated MLP, stacked, and its down matrix: cut by inner columns,
  /// and by rows.
  virtual void Mlp(Weight* gate_up, Weight* down, const MlpTensors& names, int64_t width,
                   int64_t hidden) = 0;

  /// Routed experts of `width` and, with a shared_width, the MLP that every row goes through; each
  /// is cut as an MLP is.
  struct Experts {
    std::vector<MlpTensors> routed = {};  // of each; with `stacked` one, of all
    int64_t stacked = 0;  // number of experts whose matrices are tensors [stacked, out, in]
    int64_t width = 0;
    MlpTensors shared = {};
    int64_t shared_width = 0;
    int64_t hidden = 0;
  };
  virtual void MoeExperts(ExpertWeights* out, const Experts& experts) = 0;

  /// kv_b_proj [heads * (nope + value), latent]: by head W_UK [nope, latent], W_UV [value, latent].
  /// It is cut by heads.
  struct KvUp {
    int64_t heads, nope, value, latent;
  };
  virtual void SplitKvUp(KvUpWeight* out, const std::string& name, const KvUp& sizes) = 0;

  /// A float32 vector; `added` is added to every value.
  virtual void Vector(const float** out, const std::string& name, int64_t size, float added);
  void Vector(const float** out, const std::string& name, int64_t size) {
    Vector(out, name, size, 0);
  }
  /// A float32 vector of which each rank has the values of its heads.
  virtual void HeadVector(const float** out, const std::string& name, int64_t size);

  /// Float32 values [rows, cols].
  virtual void Values(const float** out, const std::string& name, int64_t rows, int64_t cols);
  /// Values of files that write more or fewer dimensions of 1: [rows, 1, cols], or [1, 1, rows,
  /// 1] where cols is 1. Each rank has the rows of its heads.
  virtual void HeadValues(const float** out, const std::string& name, int64_t rows, int64_t cols);

  /// Integers [rows, cols] from 0 to limit - 1. Load throws Error if there are others.
  virtual void Integers(const int32_t** out, const std::string& name, int64_t rows, int64_t cols,
                        int64_t limit);

  virtual void Table(TokenTable* out, const std::string& name, int64_t rows, int64_t cols) = 0;

  /// A tensor that has to repeat `original`; nothing is kept of it. Load throws Error if they
  /// differ, which says `why` they may not. Each rank compares its share of the rows.
  virtual void Copy(const std::string& name, const std::string& original, int64_t rows,
                    int64_t cols, std::string_view why);
  /// Copy, if the source has the tensor.
  void CopyIfThere(const std::string& name, const std::string& original, int64_t rows, int64_t cols,
                   std::string_view why) {
    if (source().Has(name)) Copy(name, original, rows, cols, why);
  }

  /// Why a head may not differ from the embedding.
  static constexpr std::string_view kTied =
      "\"tie_word_embeddings\" of config.json is true; it must be false, or the two tensors equal";
  /// Why a module's embedding or head may not differ from the target's.
  static constexpr std::string_view kShared =
      "MTP modules of this family use the target's; a module with its own is not supported";

  /// Throws one Error that lists all that is missing, mis-shaped or unexpected; MTP modules that
  /// were not declared are not unexpected.
  void Check(const ModelConfig& config) const;
  /// Throws as above; tensors whose names are `ignorable` are not unexpected.
  void Check(FunctionRef<bool(std::string_view)> ignorable) const;

  /// Sizes of all declared weights, with their scales. Opens every tensor.
  WeightSizes PackedSizes();
  /// PackedSizes by parts of the network, the largest first.
  std::vector<WeightGroup> Groups();

  /// Bytes of the files that Load reads. Opens every tensor.
  int64_t StoredBytes();

  /// Bytes read so far, and StoredBytes; called on the loading thread.
  using Progress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

  /// Fills everything that was declared, on the device whose operations made the loader; returns
  /// the memory that the handles point into.
  std::unique_ptr<WeightMemory> Load(const Device& device, const Progress& progress);

 protected:
  /// The source must outlive the loader. alignment: every size is rounded up to a multiple of it.
  WeightLoader(const WeightSource& source, const WeightForm& form, int64_t alignment)
      : source_(source), form_(form), alignment_(alignment) {}

  /// A declared weight, or several that are packed together.
  struct Piece {
    std::vector<ExpectedTensor> tensors;
    std::function<WeightSizes(const Piece&)> measure;
    std::function<void(const Piece&, ThreadPool&)> fill;
    double part = 1;                     // of the tensors' bytes, which the rank reads
    OpenTensors open = {};               // from measuring until it is filled
    std::optional<WeightSizes> sizes{};  // once it is measured
  };
  /// measure: how big the weight is when it is packed. fill: packs it and sets its handle.
  void Declare(std::vector<ExpectedTensor> tensors,
               std::function<WeightSizes(const Piece&)> measure,
               std::function<void(const Piece&, ThreadPool&)> fill, double part = 1);

  // A device fills between Begin and Finish, which gives the memory of what was filled.

  virtual void Begin(ThreadPool& pool) = 0;
  virtual std::unique_ptr<WeightMemory> Finish() = 0;
  /// A copy of the values in that memory.
  virtual const void* Keep(std::span<const std::byte> values) = 0;

  const WeightForm& form() const { return form_; }
  /// The rank's part of `size` rows or columns.
  Share OwnShare(Cut cut, int64_t size) const {
    return ShareOf(cut == Cut::kHeads && form_.whole_attention ? Cut::kNone : cut, size,
                   form_.place);
  }
  /// Handles of `count` matrices [rows, cols] below one another, and of experts.
  Weight Handle(const void* packed, int64_t count, int64_t rows, int64_t cols,
                const WeightCut& declared = {}) const;
  ExpertWeights Handle(const void* packed, const Experts& experts) const;

 private:
  /// Declares those of a tensor's numbers that are `own`, each plus `added`.
  void DeclareValues(const float** out, ExpectedTensor tensor, const Share& own, float added);
  /// Throws Error if the piece's first tensor differs from the second in these rows.
  void CheckCopy(const Piece& piece, const Share& rows, std::string_view why,
                 ThreadPool& pool) const;
  std::vector<ExpectedTensor> Declared() const;
  const OpenTensors& Opened(Piece& piece) const;
  const WeightSizes& Measured(Piece& piece) const;
  /// Of the piece's tensors in the files, what is read.
  int64_t StoredBytesOf(Piece& piece) const;
  /// What is cut of a matrix that is declared with `cut`: nothing of one that gives or reads heads
  /// where every rank has all of them.
  WeightCut OwnCut(const WeightCut& cut) const {
    const bool of_heads = cut.rows == Cut::kHeads || cut.input == Cut::kHeads;
    return of_heads && form_.whole_attention ? WeightCut() : cut;
  }

  const WeightSource& source_;
  WeightForm form_;
  int64_t alignment_;
  std::vector<Piece> pieces_;
};

}  // namespace outrider
