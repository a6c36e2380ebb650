// CudaOps: the device, rows of a step, products of matrices. Longer than most files: it is all that
// a GPU has whatever the kinds of attention.
#include "outrider/ops/cuda/cuda_ops.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/matmul/matmul.h"
#include "outrider/kernels/cuda/matmul/matmul_shape.h"
#include "outrider/kernels/cuda/mla_decode/mla_decode.h"
#include "outrider/kernels/cuda/rows/norm_rows.h"
#include "outrider/ops/cuda/cuda_block_sampler.h"
#include "outrider/ops/cuda/cuda_replayer.h"
#include "outrider/ops/cuda/cuda_sampler.h"
#include "outrider/ops/cuda/cuda_weight_loader.h"
#include "outrider/ops/cuda/cuda_weights.h"
#include "outrider/ops/cuda/device_rows.h"
#include "outrider/ops/cuda/hopper_gpu.h"
#include "outrider/ops/cuda/kernel_arguments.h"
#include "outrider/ops/cuda/peer_rows.h"

namespace outrider::cuda {

namespace {

/// Whether a product with such a weight exchanges numbers with other ranks.
bool IsBroughtTogether(const WeightCut& cut) {
  return cut.input != Cut::kNone || cut.rows == Cut::kRows;
}
bool IsShared(const Context& context, const Product& p) {
  return context.place().ranks > 1 && IsBroughtTogether(p.w->cut);
}

/// What this rank computes of a product's results.
Tensor OwnColumns(const Context& context, const Product& p) {
  if (p.w->cut.rows != Cut::kRows) return p.y;
  const Share own = OwnShare(context, p.w->cut.rows, p.y.cols);
  return p.y.Columns(own.first, own.count);
}

/// How a product that is shared goes in chunks: those that fill the multiprocessors.
RowChunks ChunksOfProduct(const Context& context, const Product& p) {
  if (p.groups > 1 || p.silu_mul) return {};
  const WeightCut cut = p.w->cut;
  const RankPlace place = context.place();
  // Every rank says the same, so that of the rank with the most columns.
  PackedWeight widest = Packed(*p.w);
  for (int32_t rank = 0; cut.rows == Cut::kRows && rank < place.ranks; ++rank) {
    widest.n = std::max(widest.n, Int(ShareOf(cut.rows, p.y.cols, {rank, place.ranks}).count));
  }
  const Tensor x(nullptr, DType::kBF16, p.x.rows, p.w->cols, p.w->cols);
  const SharedTensor gathered =
      cut.rows == Cut::kRows ? SharedTensor{{}, p.y, cut.rows} : SharedTensor{{}, x, cut.input};
  return ChunksOf(context, gathered, RowsAtOnce(widest, Int(p.x.rows)), RowChunks::kMost);
}

/// Whether two products are one with a weight that is both of theirs: the weights and the results
/// lie side by side (WeightLoader::SideBySide).
bool AreOne(const Product& a, const Product& b) {
  const auto plain = [](const Product& p) {
    return !p.accumulate && !p.silu_mul && p.groups == 1 && !IsBroughtTogether(p.w->cut);
  };
  const bool same_rows = a.x.data == b.x.data && a.x.rows == b.x.rows && a.x.stride == b.x.stride;
  return plain(a) && plain(b) && same_rows && LiesBehind(Packed(*a.w), Packed(*b.w)) &&
         a.y.dtype == b.y.dtype && a.y.stride == b.y.stride &&
         Follows(a.y.data, static_cast<size_t>(a.y.cols) * DTypeSize(a.y.dtype), b.y.data);
}

/// The first thing that is asked of the device, so that one that will not do is refused in words.
cudaStream_t MakeStream(int device) {
  CheckIsHopper(DescribeGpu(device));
  CheckCuda(cudaSetDevice(device), "the current device");
  cudaStream_t stream = nullptr;
  CheckCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
  return stream;
}

}  // namespace

CudaOps::CudaOps(int device, int32_t head_ranks, int32_t sharers)
    : device_(device),
      head_ranks_(head_ranks),
      own_stream_(MakeStream(device), cudaStreamDestroy),
      stream_(own_stream_.get()),
      idle_(std::make_unique<IdleClock>(stream_)),
      results_(std::make_unique<StepResults>()),
      prompt_plans_(std::make_unique<PromptPlans>(device, head_ranks)) {
  if (sharers > 1) ShareMlaBlocks(sharers);
}

CudaOps::~CudaOps() = default;

void CudaOps::UseOnThisThread() const { CheckCuda(cudaSetDevice(device_), "the current device"); }

void CudaOps::Synchronize() const {
  CheckCuda(cudaStreamSynchronize(stream_), "waiting for the device");
}

void CudaOps::WaitForResults() const {
  idle_->WorkEnds();
  Synchronize();
}

Ticket CudaOps::LaunchReading(size_t bytes) const {
  const Ticket ticket = results_->Launch(bytes, stream_);
  idle_->WorkEnds();
  return ticket;
}

void CudaOps::KeepTokens(int32_t count) const {
  results_->Reserve(std::max(results_->num_tokens(), static_cast<size_t>(count)), 0, stream_);
}

void CudaOps::ReadTokens() const {
  if (results_->drafts_read()) return;
  OUTRIDER_CHECK(!results_->IsCopying());
  results_->Wait(LaunchReading(0));
}

int32_t CudaOps::ReadToken(TokenRef token) const {
  OUTRIDER_CHECK(!token.on_device() || results_->drafts_read());
  return ReadVerifiedToken(token);
}

int32_t CudaOps::ReadVerifiedToken(TokenRef token) const {
  if (!token.on_device()) return token.token();
  const auto place = static_cast<size_t>(token.place());
  OUTRIDER_CHECK(place < results_->num_tokens());
  return std::max(results_->host_tokens()[place], 0);
}

DeviceMemoryState CudaOps::memory() const {
  size_t free = 0;
  size_t total = 0;
  CheckCuda(cudaMemGetInfo(&free, &total), "the GPU's memory");
  return {static_cast<int64_t>(total), static_cast<int64_t>(free)};
}

Buffer CudaOps::Allocate(size_t bytes) const {
  DeviceMemory memory(bytes, "memory of the engine");
  CheckCuda(cudaMemsetAsync(memory.data(), 0, memory.bytes(), stream_), "clearing memory");
  Synchronize();
  return {static_cast<std::byte*>(memory.Release()), bytes,
          [](std::byte* begin, size_t) { cudaFree(begin); }};
}

std::unique_ptr<Arena> CudaOps::MakeArena() const {
  return std::make_unique<CudaArena>([this](size_t bytes) { return Allocate(bytes); }, stream_);
}

void CudaOps::CopyToHost(const std::byte* from, std::span<std::byte> to) const {
  CheckCuda(cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, stream_),
            "copying a page to the host");
  Synchronize();
}

void CudaOps::CopyFromHost(std::span<const std::byte> from, std::byte* to) const {
  CheckCuda(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, stream_),
            "copying a page from the host");
  Synchronize();
}

std::unique_ptr<WeightLoader> CudaOps::MakeWeightLoader(const WeightSource& source,
                                                        const WeightForm& form) const {
  return std::make_unique<CudaWeightLoader>(source, form, stream_);
}

std::unique_ptr<StepInputs> CudaOps::MakeStepInputs() const {
  return std::make_unique<CudaStepInputs>(stream_, *results_);
}

std::unique_ptr<Replayer> CudaOps::MakeReplayer(const Context& context) const {
  return std::make_unique<CudaReplayer>(*this, ArenaOf(context),
                                        static_cast<DeviceCommunicator*>(context.ranks));
}

std::unique_ptr<StepSampler> CudaOps::MakeSampler(const Device& device,
                                                  const Verifier& verifier) const {
  return std::make_unique<CudaSampler>(*this, device.pool->size(), verifier);
}

std::unique_ptr<BlockSampler> CudaOps::MakeBlockSampler(const Device& device) const {
  return std::make_unique<CudaBlockSampler>(*this, device.pool->size());
}

void CudaOps::Embed(const Context& /*context*/, const TokenTable& table, const StepInputs& inputs,
                    bool zero_first, Tensor x) const {
  OUTRIDER_CHECK(inputs.num_rows() == x.rows && x.cols == table.cols);
  outrider::cuda::CopyRowsParams copy = {.num_rows = x.rows,
                                         .cols = x.cols,
                                         .from = Packed(table).rows,
                                         .from_dtype = DType::kBF16,
                                         .from_stride = table.cols,
                                         .from_size = table.rows,
                                         .to = x.data,
                                         .to_dtype = x.dtype,
                                         .to_stride = x.stride};
  copy.from_rows = Cast(inputs).token_ids();
  copy.kept_tokens = results_->tokens();
  copy.num_kept = static_cast<int64_t>(results_->num_tokens());
  if (zero_first) copy.zero_at = Cast(inputs).positions();
  CheckCuda(outrider::cuda::CopyRows(copy, stream_), "embeddings");
}

Rotary CudaOps::MakeRotary(const Context& context, std::span<const float> frequencies,
                           float magnitude, bool interleaved, const StepInputs& inputs) const {
  const int64_t num_rows = inputs.num_rows();
  const auto count = static_cast<int64_t>(frequencies.size());
  AngleParams params;
  params.num_rows = num_rows;
  params.count = Int(count);
  params.magnitude = magnitude;
  OUTRIDER_CHECK(count <= kMaxFrequencies);
  std::copy(frequencies.begin(), frequencies.end(), params.frequencies);
  params.cos = context.arena.Take<float>(num_rows * count);
  params.sin = context.arena.Take<float>(num_rows * count);
  params.positions = Cast(inputs).positions();
  CheckCuda(MakeAngles(params, stream_), "angles of positions");
  return {Tensor(params.cos, num_rows, count), Tensor(params.sin, num_rows, count), interleaved};
}

void CudaOps::Norm(const Context& context, Tensor x, const float* weight, float eps,
                   Tensor y) const {
  const Scratch::Frame frame(context.arena);
  if (x.dtype != DType::kF32 || x.stride != x.cols) {
    const Tensor dense(context.arena.Take<float>(x.rows * x.cols), x.rows, x.cols);
    CopyTensor(x, dense, stream_);
    x = dense;
  }
  const ResultRows results(context, y, DType::kBF16, stream_);
  NormRowsParams params;
  params.num_rows = Int(x.rows);
  params.hidden = Int(x.cols);
  params.x = static_cast<float*>(x.data);
  params.norm_weight = weight;
  params.epsilon = eps;
  params.out = results.rows().data;
  params.out_stride = results.rows().stride;
  CheckCuda(NormRows(params, stream_), "norm");
  results.Finish();
}

void CudaOps::SetZero(const Context& /*context*/, Tensor x) const {
  if (x.rows == 0 || x.cols == 0) return;
  const size_t size = DTypeSize(x.dtype);
  CheckCuda(
      cudaMemset2DAsync(x.data, static_cast<size_t>(x.stride) * size, 0,
                        static_cast<size_t>(x.cols) * size, static_cast<size_t>(x.rows), stream_),
      "clearing rows");
}

void CudaOps::Copy(const Context& /*context*/, Tensor from, Tensor to) const {
  CopyTensor(from, to, stream_);
}

void CudaOps::CopyRows(const Context& context, Tensor from, Tensor to,
                       const RowCopies& copies) const {
  if (copies.from().empty()) return;
  OUTRIDER_CHECK(from.cols == to.cols);
  const Scratch::Frame frame(context.arena);
  outrider::cuda::CopyRowsParams copy = {.num_rows = static_cast<int64_t>(copies.from().size()),
                                         .cols = from.cols,
                                         .from = from.data,
                                         .from_dtype = from.dtype,
                                         .from_stride = from.stride,
                                         .from_size = from.rows,
                                         .kept_tokens = results_->tokens(),
                                         .num_kept = static_cast<int64_t>(results_->num_tokens()),
                                         .to = to.data,
                                         .to_dtype = to.dtype,
                                         .to_stride = to.stride,
                                         .to_size = to.rows};
  if (copies.from().size() <= kMostListedRows) {
    CheckCuda(CopyListedRows(copy, copies.from(), copies.to(), stream_), "copying rows");
    return;
  }
  copy.from_rows = Upload(context, copies.from(), stream_);
  copy.to_rows = Upload(context, copies.to(), stream_);
  CheckCuda(outrider::cuda::CopyRows(copy, stream_), "copying rows");
}

void CudaOps::ShareRows(const Context& context, Tensor x, std::span<const RankRun> runs) const {
  GatherRuns(context, x, runs);
}

void CudaOps::TakeOwnRows(const Context& context, const StepInputs& inputs, Tensor from,
                          Tensor own) const {
  const OwnPlaces& places = Cast(inputs).own_places();
  if (places.count == 0) return Ops::TakeOwnRows(context, inputs, from, own);
  OUTRIDER_CHECK(own.rows == places.count && own.cols == from.cols);
  CopyRowsAt(from, places.rows, own);
}

void CudaOps::ShareOwnRows(const Context& context, const StepInputs& inputs, Tensor own,
                           Tensor x) const {
  const OwnPlaces& places = Cast(inputs).own_places();
  if (places.count == 0) return Ops::ShareOwnRows(context, inputs, own, x);
  OUTRIDER_CHECK(x.rows == inputs.num_rows() && own.cols == x.cols);
  const Scratch::Frame frame(context.arena);
  CopyRowsAt(GatheredSideBySide(context, own, places.count), places.side_by_side, x);
}

void CudaOps::CopyRowsAt(Tensor from, const int32_t* rows, Tensor to) const {
  CheckCuda(outrider::cuda::CopyRows({.num_rows = to.rows,
                                      .cols = to.cols,
                                      .from = from.data,
                                      .from_dtype = from.dtype,
                                      .from_stride = from.stride,
                                      .from_size = from.rows,
                                      .from_rows = rows,
                                      .to = to.data,
                                      .to_dtype = to.dtype,
                                      .to_stride = to.stride},
                                     stream_),
            "copying rows");
}

void CudaOps::ToHost(const Context& context, Tensor x, std::span<float> to) const {
  OUTRIDER_CHECK(std::cmp_equal(to.size(), x.rows * x.cols));
  if (to.empty()) return;
  const Scratch::Frame frame(context.arena);
  const Tensor dense(context.arena.Take<float>(x.rows * x.cols), x.rows, x.cols);
  CopyTensor(x, dense, stream_);
  CheckCuda(
      cudaMemcpyAsync(to.data(), dense.data, to.size_bytes(), cudaMemcpyDeviceToHost, stream_),
      "copying rows to the host");
  Synchronize();
}

void CudaOps::Multiply(const Context& context, std::span<const Product> products) const {
  OUTRIDER_CHECK(context.operand_dtype == DType::kBF16);
  for (size_t i = 0; i < products.size(); ++i) {
    const Product& p = products[i];
    if (p.x.rows == 0) continue;
    if (IsShared(context, p)) {
      MultiplyShared(context, p);
      continue;
    }
    PackedWeight all = Packed(*p.w);
    Tensor y = p.y;
    // Of one row the results of the next products may begin where those of these end.
    while (i + 1 < products.size() && AreOne(products[i], products[i + 1]) &&
           y.cols + products[i + 1].y.cols <= y.stride) {
      all.n += Packed(*products[++i].w).n;
      y.cols = all.n;
    }
    MultiplyOne(context, p, all, y);
  }
}

void CudaOps::MultiplyShared(const Context& context, const Product& p) const {
  const Scratch::Frame frame(context.arena);
  const WeightCut cut = p.w->cut;
  OUTRIDER_CHECK(cut.rows != Cut::kRows || (!p.silu_mul && p.groups == 1 && p.y.cols == p.w->rows));
  const RowChunks chunks = ChunksOfProduct(context, p);
  if (chunks.count() > 1) return MultiplyInChunks(context, p, chunks);
  Product own = p;
  if (cut.input != Cut::kNone) {
    own.x = Gathered(context, Readable(context, p.x, DType::kBF16, stream_), cut.input, p.w->cols);
  }
  MultiplyOne(context, own, Packed(*p.w), OwnColumns(context, p));
  if (cut.rows == Cut::kRows) GatherInPlace(context, p.y, cut.rows);
}

// While a chunk is multiplied, those of x behind it and those of y before it travel.
void CudaOps::MultiplyInChunks(const Context& context, const Product& p,
                               const RowChunks& chunks) const {
  const WeightCut cut = p.w->cut;
  const bool gathers_x = cut.input != Cut::kNone;
  const bool gathers_y = cut.rows == Cut::kRows;
  ChunkedGathers& gathers = ChunkedGathersOf(context);
  Product part = p;
  Tensor x = p.x;
  if (gathers_x) {
    x = TakeRows(context, DType::kBF16, p.x.rows, p.w->cols);
    const Tensor mine = Readable(context, p.x, DType::kBF16, stream_);
    gathers.Give(0);
    BeginGather(context, std::array{SharedTensor{mine, x, cut.input}}, chunks);
  }
  const Tensor y = OwnColumns(context, p);
  for (int chunk = 0; chunk < chunks.count(); ++chunk) {
    if (gathers_x) gathers.Await(chunk);
    part.x = x.Rows(chunks.first(chunk), chunks.rows(chunk));
    MultiplyOne(context, part, Packed(*p.w), y.Rows(chunks.first(chunk), chunks.rows(chunk)));
    if (gathers_y) gathers.Give(chunk);
  }
  if (gathers_y) {
    BeginGather(context, std::array{SharedTensor{y, p.y, cut.rows}}, chunks);
    gathers.Await(chunks.count() - 1);
  }
  gathers.End();
}

void CudaOps::MultiplyOne(const Context& context, const Product& p, const PackedWeight& w,
                          Tensor y) const {
  if (p.groups > 1 && !FitsGroups(w, p.groups, Int(p.x.rows))) {
    MultiplyGroups(context, p, w);
    return;
  }
  OUTRIDER_CHECK(w.gate_up == p.silu_mul && int64_t{p.groups} * w.k == p.x.cols);
  const Scratch::Frame frame(context.arena);
  const Tensor x = Readable(context, p.x, DType::kBF16, stream_);
  // What is added to must be there already.
  OUTRIDER_CHECK(!p.accumulate || Fits(y, DType::kF32));
  const ResultRows results(context, y, y.dtype, stream_);
  MatMulParams params;
  params.rows = Int(x.rows);
  params.x = x.data;
  params.x_stride = x.stride;
  params.w = w;
  params.groups = p.groups;
  params.y = results.rows().data;
  params.y_stride = results.rows().stride;
  params.y_type = y.dtype == DType::kBF16 ? OutputType::kBf16 : OutputType::kF32;
  params.accumulate = p.accumulate;
  params.limits = {.silu = p.limit, .up = p.limit};
  MatMul(params, stream_);
  results.Finish();
}

void CudaOps::MultiplyGroups(const Context& context, const Product& p,
                             const PackedWeight& w) const {
  // Rows of a weight are packed in units of 64, one after another.
  const int rows = w.n / p.groups;
  OUTRIDER_CHECK(w.n % p.groups == 0 && rows % 64 == 0 && p.x.cols == int64_t{p.groups} * w.k);
  const Scratch::Frame frame(context.arena);
  const Tensor x = Readable(context, p.x, DType::kBF16, stream_);
  for (int g = 0; g < p.groups; ++g) {
    PackedWeight part = w;
    part.n = rows;
    part.segments = SegmentsOf(w).count;
    part.data = static_cast<const std::byte*>(w.data) + PackedUnitBytes(w.format, g * rows, w.k);
    if (PackedScaleBytes(w.format, w.n, w.k) > 0) {
      part.scales =
          static_cast<const std::byte*>(ScalesOf(w)) + PackedScaleBytes(w.format, g * rows, w.k);
    }
    Product product = p;
    product.groups = 1;
    product.x = x.Columns(int64_t{g} * w.k, w.k);
    MultiplyOne(context, product, part, p.y.Columns(int64_t{g} * rows, rows));
  }
}

void CudaOps::Head(const Context& context, Tensor x, std::span<const int32_t> rows, const Weight& w,
                   Tensor logits) const {
  OUTRIDER_CHECK(std::cmp_equal(rows.size(), logits.rows));
  if (rows.empty()) return;
  const Scratch::Frame frame(context.arena);
  const bool all_in_order = std::cmp_equal(rows.size(), x.rows) && rows.front() == 0 &&
                            std::ranges::adjacent_find(rows, [](int32_t a, int32_t b) {
                              return b != a + 1;
                            }) == rows.end();
  if (all_in_order) return HeadOf(context, x, w, logits);
  HeadAt(context, x, Upload(context, rows, stream_), w, logits);
}

void CudaOps::HeadAt(const Context& context, Tensor x, const int32_t* rows, const Weight& w,
                     Tensor logits) const {
  const Scratch::Frame frame(context.arena);
  HeadOf(context, HeadInput(context, x, rows, logits.rows), w, logits);
}

void CudaOps::HeadPartAt(const Context& context, Tensor x, const int32_t* rows, const Weight& w,
                         Tensor part) const {
  const Scratch::Frame frame(context.arena);
  HeadPart(HeadInput(context, x, rows, part.rows), w, part);
}

Tensor CudaOps::HeadInput(const Context& context, Tensor x, const int32_t* rows,
                          int64_t count) const {
  const Tensor read = TakeRows(context, DType::kBF16, count, x.cols);
  CopyRowsAt(x, rows, read);
  return read;
}

void CudaOps::HeadPart(Tensor x, const Weight& w, Tensor part) const {
  MatMulParams params;
  params.rows = Int(x.rows);
  params.x = x.data;
  params.x_stride = x.stride;
  params.w = Packed(w);
  params.y = part.data;
  params.y_stride = part.stride;
  params.y_type = OutputType::kF32;
  MatMul(params, stream_);
}

void CudaOps::HeadOf(const Context& context, Tensor x, const Weight& w, Tensor logits) const {
  const Scratch::Frame frame(context.arena);
  const Tensor read = Readable(context, x, DType::kBF16, stream_);
  const bool wanted = logits.data != nullptr;
  const bool in_place = wanted && logits.cols == w.rows && Fits(logits, DType::kF32);
  const Tensor all = in_place ? logits
                     : wanted ? TakeRows(context, DType::kF32, logits.rows, w.rows)
                              : Tensor(nullptr, DType::kF32, logits.rows, w.rows, w.rows);
  const bool alone = context.place().ranks == 1;
  const Share own = OwnShare(context, Cut::kRows, w.rows);
  const Tensor part = alone ? all : TakeRows(context, DType::kF32, logits.rows, own.count);
  HeadPart(read, w, part);
  if (!alone) Gather(context, std::array{SharedTensor{part, all, Cut::kRows}});
  if (wanted && !in_place) CopyTensor(all.Columns(0, logits.cols), logits, stream_);
}

void CudaOps::HeadChoice(const Context& context, Tensor x, std::span<const int32_t> rows,
                         const Weight& w, int32_t num_tokens, std::span<int32_t> tokens) const {
  // Logits are made for this many rows at a time, which bounds their memory.
  constexpr size_t kRows = 256;
  OUTRIDER_CHECK(rows.size() == tokens.size());
  if (rows.empty()) return;
  const Scratch::Frame frame(context.arena);
  auto* const places = context.arena.Take<int32_t>(static_cast<int64_t>(rows.size()));
  for (size_t first = 0; first < rows.size(); first += kRows) {
    const Scratch::Frame tile(context.arena);
    const size_t count = std::min(kRows, rows.size() - first);
    if (context.place().rank > 0) {  // rank 0 chooses
      Head(context, x, rows.subspan(first, count), w,
           Tensor(nullptr, static_cast<int64_t>(count), w.rows));
      continue;
    }
    const Tensor logits = TakeRows(context, DType::kF32, static_cast<int64_t>(count), w.rows);
    Head(context, x, rows.subspan(first, count), w, logits);
    CheckCuda(FindLargest(static_cast<const float*>(logits.data), logits.rows, num_tokens,
                          logits.stride, places + first, stream_),
              "likeliest tokens");
  }
  if (context.place().rank > 0) return;
  CheckCuda(
      cudaMemcpyAsync(tokens.data(), places, tokens.size_bytes(), cudaMemcpyDeviceToHost, stream_),
      "likeliest tokens");
  Synchronize();
}

}  // namespace outrider::cuda
