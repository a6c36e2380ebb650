#include "outrider/kernels/cuda/prompt_attention.h"

#include <cuda.h>
#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/device_memory.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // what its headers look functions up in
}  // namespace cudnn_frontend

namespace outrider::cuda {

namespace {

namespace fe = cudnn_frontend;

constexpr int kLeastPadded = 128;

Error Unavailable(const std::string& message) { return {ErrorCode::kUnavailable, message}; }

void LoadCudnn() {
  static std::once_flag once;
  std::call_once(once, [] { fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW); });
  if (fe::cudnn_dlhandle == nullptr) {
    throw Unavailable(
        "prompts on a GPU need cuDNN 9: libcudnn.so.9 was not found; install it (Python package "
        "nvidia-cudnn-cu13) and name its folder in LD_LIBRARY_PATH");
  }
}

/// Rounds up to a power of two.
int Padded(int rows) {
  int padded = kLeastPadded;
  while (padded < rows) padded *= 2;
  return padded;
}

using SetD32 = decltype(&cuMemsetD32Async);

/// The driver's function that sets 32-bit words in order with a stream.
SetD32 WordSetter() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  CheckCuda(cudaGetDriverEntryPointByVersion("cuMemsetD32Async", &entry, 12000, cudaEnableDefault,
                                             &found),
            "cuMemsetD32Async");
  if (found != cudaDriverEntryPointSuccess) throw Unavailable("the driver has no cuMemsetD32Async");
  return reinterpret_cast<SetD32>(entry);
}

enum Uid : int64_t { kQ = 1, kK, kV, kOut, kQueries, kKeys };

void CudnnOk(fe::error_t error, const std::string& what) {
  if (error.is_bad()) {
    throw Unavailable(fmt::format("cuDNN {} cannot run {}: {}",
                                  fe::detail::get_backend_version_string(), what,
                                  error.get_message()));
  }
}

}  // namespace

class PromptAttention::Plans {
 public:
  explicit Plans(const PromptAttentionShape& shape)
      : shape_(shape), lengths_(2 * sizeof(int32_t), "attention of prompts") {
    const auto width_ok = [](int width) { return width > 0 && width <= 256 && width % 8 == 0; };
    if (shape.heads <= 0 || !width_ok(shape.key_width) || !width_ok(shape.value_width)) {
      throw InvalidArgument(
          "PromptAttention: {} heads of {} and {}: widths must be multiples of 8 up to 256",
          shape.heads, shape.key_width, shape.value_width);
    }
    if (shape.max_queries <= 0 || shape.max_keys < shape.max_queries) {
      throw InvalidArgument(
          "PromptAttention: {} queries and {} keys at most: there must be 1 query or more and at "
          "least as many keys",
          shape.max_queries, shape.max_keys);
    }
    LoadCudnn();
    if (fe::detail::create_handle(&handle_) != CUDNN_STATUS_SUCCESS) {
      throw Unavailable("PromptAttention: cuDNN gave no handle");
    }
    set_words_ = WordSetter();
  }
  ~Plans() { fe::detail::destroy_handle(handle_); }
  Plans(const Plans&) = delete;
  Plans& operator=(const Plans&) = delete;

  const PromptAttentionShape& shape() const { return shape_; }

  /// A run with a plan for `queries` and `keys` rows, which may be more than a call needs.
  void Run(const PromptAttentionParams& params, int queries, int keys, cudaStream_t stream) {
    Execute(Get({queries, keys, params.q_row_stride, params.v_row_stride, params.v_head_stride}),
            params, stream);
  }

  /// Compares bits of a prompt in one piece and in others.
  void CheckPieces();

 private:
  struct Key {
    int queries;
    int keys;
    int64_t q_row_stride;
    int64_t v_row_stride;
    int64_t v_head_stride;
    auto operator<=>(const Key&) const = default;
  };
  struct Plan {
    std::shared_ptr<fe::graph::Graph> graph;
    DeviceMemory workspace;
  };

  const Plan& Get(const Key& key) {
    auto found = plans_.find(key);
    if (found == plans_.end()) {
      Plan plan = Make(key);
      // Calls on their way in other streams use the same lengths as the check.
      CheckCuda(cudaDeviceSynchronize(), "waiting for the device");
      CheckPlan(plan, key);
      found = plans_.emplace(key, std::move(plan)).first;
    }
    return found->second;
  }

  void Execute(const Plan& plan, const PromptAttentionParams& params, cudaStream_t stream) {
    const auto words = reinterpret_cast<CUdeviceptr>(lengths_.data());
    auto set = [&](int index, int value) {
      if (set_words_(words + index * sizeof(int32_t), static_cast<unsigned>(value), 1, stream) !=
          CUDA_SUCCESS) {
        throw Unavailable("PromptAttention: lengths could not be written");
      }
    };
    set(0, params.num_queries);
    set(1, params.num_keys);
    if (fe::detail::set_stream(handle_, stream) != CUDNN_STATUS_SUCCESS) {
      throw Unavailable("PromptAttention: cuDNN did not take the stream");
    }
    auto* lengths = static_cast<int32_t*>(lengths_.data());
    std::unordered_map<int64_t, void*> tensors = {{kQ, const_cast<void*>(params.q)},
                                                  {kK, const_cast<void*>(params.k)},
                                                  {kV, const_cast<void*>(params.v)},
                                                  {kOut, params.out},
                                                  {kQueries, lengths},
                                                  {kKeys, lengths + 1}};
    CudnnOk(plan.graph->execute(handle_, tensors, plan.workspace.data()), Name());
  }

  /// Runs a short prompt, the same for all, with a new plan: its bits must be those that the first
  /// plan gave.
  void CheckPlan(const Plan& plan, const Key& key);

  [[noreturn]] void ThrowOtherBits(const std::string& when) const {
    throw Unavailable(
        fmt::format("cuDNN {} gives other bits for {} ({}): use the version that "
                    "docs/cuda-kernels.md names",
                    fe::detail::get_backend_version_string(), when, Name()));
  }

  std::string Name() const {
    return fmt::format("attention of {} heads with widths {} and {}", shape_.heads,
                       shape_.key_width, shape_.value_width);
  }

  Plan Make(const Key& key) const {
    const int64_t heads = shape_.heads;
    const int64_t width = shape_.key_width;
    auto graph = std::make_shared<fe::graph::Graph>();
    graph->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    auto tensor = [&](const char* name, Uid uid, int64_t rows, int64_t columns, int64_t row_stride,
                      int64_t head_stride) {
      return graph->tensor(fe::graph::Tensor_attributes()
                               .set_name(name)
                               .set_uid(uid)
                               .set_dim({1, heads, rows, columns})
                               .set_stride({rows * row_stride, head_stride, row_stride, 1}));
    };
    auto length = [&](const char* name, Uid uid) {
      return graph->tensor(fe::graph::Tensor_attributes()
                               .set_name(name)
                               .set_uid(uid)
                               .set_dim({1, 1, 1, 1})
                               .set_stride({1, 1, 1, 1})
                               .set_data_type(fe::DataType_t::INT32));
    };
    auto q = tensor("q", kQ, key.queries, width, key.q_row_stride, width);
    auto k = tensor("k", kK, key.keys, width, heads * width, width);
    auto v = tensor("v", kV, key.keys, shape_.value_width, key.v_row_stride, key.v_head_stride);
    auto attributes = fe::graph::SDPA_attributes()
                          .set_name("prompt")
                          .set_generate_stats(false)
                          .set_attn_scale(shape_.scale)
                          .set_padding_mask(true)
                          .set_seq_len_q(length("queries", kQueries))
                          .set_seq_len_kv(length("keys", kKeys))
                          .set_diagonal_alignment(fe::DiagonalAlignment_t::BOTTOM_RIGHT)
                          .set_diagonal_band_right_bound(0);
    const auto outputs = graph->sdpa(q, k, v, attributes);
    const int64_t value = shape_.value_width;
    outputs[0]
        ->set_output(true)
        .set_uid(kOut)
        .set_dim({1, heads, key.queries, value})
        .set_stride({key.queries * heads * value, value, heads * value, 1});
    CudnnOk(graph->validate(), Name());
    CudnnOk(graph->build_operation_graph(handle_), Name());
    CudnnOk(graph->create_execution_plans({fe::HeurMode_t::A}), Name());
    CudnnOk(graph->check_support(), Name());
    CudnnOk(graph->build_plans(), Name());
    int64_t bytes = 0;
    CudnnOk(graph->get_workspace_size(bytes), Name());
    return {std::move(graph), DeviceMemory(static_cast<size_t>(bytes), "attention of prompts")};
  }

  PromptAttentionShape shape_;
  cudnnHandle_t handle_ = nullptr;
  SetD32 set_words_ = nullptr;
  DeviceMemory lengths_;  // queries, keys
  std::map<Key, Plan> plans_;
  std::vector<std::byte> check_rows_;  // what the short prompt gives
};

namespace {

constexpr int kCheckRows = 300;

/// bf16 values of magnitude 2^-2 to 2^1, either sign, a function of `seed` alone.
std::vector<uint16_t> CheckValues(size_t count, uint64_t seed) {
  std::vector<uint16_t> values(count);
  uint64_t state = seed;
  for (uint16_t& value : values) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    value = static_cast<uint16_t>((state >> 63 << 15) | ((125 + (state >> 61 & 3)) << 7) |
                                  (state >> 40 & 127));
  }
  return values;
}

/// Dense rows with a stride, zero between them.
std::vector<uint16_t> Strided(const std::vector<uint16_t>& dense, int rows, int64_t stride) {
  std::vector<uint16_t> values(rows * static_cast<size_t>(stride));
  const size_t width = dense.size() / rows;
  for (int row = 0; row < rows; ++row) {
    std::copy_n(dense.begin() + row * width, width, values.begin() + row * stride);
  }
  return values;
}

/// Memory for `room` elements that begins with `values`; zero behind them.
DeviceMemory Upload(const std::vector<uint16_t>& values, size_t room) {
  DeviceMemory memory(room * 2, "comparing plans");
  CheckCuda(cudaMemset(memory.data(), 0, room * 2), "clearing memory");
  CheckCuda(cudaMemcpy(memory.data(), values.data(), values.size() * 2, cudaMemcpyHostToDevice),
            "copying");
  return memory;
}

}  // namespace

void PromptAttention::Plans::CheckPlan(const Plan& plan, const Key& key) {
  const int rows = std::min({kCheckRows, key.queries, shape_.max_queries});
  const size_t heads = shape_.heads;
  const size_t width = heads * shape_.key_width;
  const DeviceMemory q = Upload(Strided(CheckValues(rows * width, 1), rows, key.q_row_stride),
                                key.queries * static_cast<size_t>(key.q_row_stride));
  const DeviceMemory k = Upload(CheckValues(rows * width, 2), key.keys * width);
  const std::vector<uint16_t> packed = CheckValues(rows * heads * shape_.value_width, 3);
  std::vector<uint16_t> values(static_cast<size_t>(rows - 1) * key.v_row_stride +
                               (heads - 1) * key.v_head_stride + shape_.value_width);
  for (int row = 0; row < rows; ++row) {
    for (size_t head = 0; head < heads; ++head) {
      std::copy_n(packed.begin() + (row * heads + head) * shape_.value_width, shape_.value_width,
                  values.begin() + row * key.v_row_stride + head * key.v_head_stride);
    }
  }
  const DeviceMemory v = Upload(values, key.keys * static_cast<size_t>(key.v_row_stride));
  const size_t row_bytes = heads * shape_.value_width * 2;
  const DeviceMemory out(key.queries * row_bytes, "comparing plans");
  Execute(plan,
          {.num_queries = rows,
           .num_keys = rows,
           .q = q.data(),
           .q_row_stride = key.q_row_stride,
           .k = k.data(),
           .v = v.data(),
           .v_row_stride = key.v_row_stride,
           .v_head_stride = key.v_head_stride,
           .out = out.data()},
          nullptr);
  std::vector<std::byte> got(rows * row_bytes);
  CheckCuda(cudaMemcpy(got.data(), out.data(), got.size(), cudaMemcpyDeviceToHost), "copying");
  const size_t common = std::min(got.size(), check_rows_.size());
  if (std::memcmp(got.data(), check_rows_.data(), common) != 0) {
    ThrowOtherBits(fmt::format("a plan of {} queries and {} keys", key.queries, key.keys));
  }
  if (got.size() > check_rows_.size()) check_rows_ = std::move(got);
}

void PromptAttention::Plans::CheckPieces() {
  const int rows = std::min(kCheckRows, shape_.max_queries);
  const size_t heads = shape_.heads;
  const size_t width = heads * shape_.key_width;
  const size_t value = heads * shape_.value_width;
  const int room = 4 * Padded(rows);
  const DeviceMemory q = Upload(CheckValues(rows * width, 1), room * width);
  const DeviceMemory k = Upload(CheckValues(rows * width, 2), room * width);
  const DeviceMemory v = Upload(CheckValues(rows * value, 3), room * value);
  const DeviceMemory out(room * value * 2, "comparing plans");
  std::vector<std::pair<int, std::vector<std::byte>>> pieces;  // and where they begin
  for (const int cut : {1, 64, 100, 128, 129, 256, rows - 1, rows}) {
    if (cut > rows || cut < 1) continue;
    for (const auto& [begin, end] : {std::pair(0, cut), std::pair(cut, rows)}) {
      if (begin == end) continue;
      Run({.num_queries = end - begin,
           .num_keys = end,
           .q = static_cast<const std::byte*>(q.data()) + begin * width * 2,
           .q_row_stride = static_cast<int64_t>(width),
           .k = k.data(),
           .v = v.data(),
           .v_row_stride = static_cast<int64_t>(value),
           .v_head_stride = shape_.value_width,
           .out = out.data()},
          Padded(end - begin), Padded(end), nullptr);
      std::vector<std::byte> piece((end - begin) * value * 2);
      CheckCuda(cudaMemcpy(piece.data(), out.data(), piece.size(), cudaMemcpyDeviceToHost),
                "copying");
      pieces.emplace_back(begin, std::move(piece));
    }
  }
  for (const auto& [begin, piece] : pieces) {
    if (std::memcmp(piece.data(), check_rows_.data() + begin * value * 2, piece.size()) != 0) {
      ThrowOtherBits(fmt::format("a prompt's rows from {} on by themselves", begin));
    }
  }
}

PromptAttention::PromptAttention(const PromptAttentionShape& shape)
    : plans_(std::make_unique<Plans>(shape)) {
  plans_->CheckPieces();
}

PromptAttention::~PromptAttention() = default;

int PromptAttention::PaddedQueries(int num_queries) const { return Padded(num_queries); }
int PromptAttention::PaddedKeys(int num_keys) const { return Padded(num_keys); }

void PromptAttention::Run(const PromptAttentionParams& given, cudaStream_t stream) {
  const PromptAttentionShape& shape = plans_->shape();
  const int64_t width = int64_t{shape.heads} * shape.key_width;
  PromptAttentionParams params = given;
  if (params.q_row_stride == 0) params.q_row_stride = width;
  if (params.num_queries < 1 || params.num_queries > shape.max_queries ||
      params.num_keys < params.num_queries || params.num_keys > shape.max_keys) {
    throw InvalidArgument(
        "PromptAttention: {} queries over {} keys: there must be 1 to {} queries, and at least as "
        "many keys, up to {}",
        params.num_queries, params.num_keys, shape.max_queries, shape.max_keys);
  }
  if (params.q_row_stride % 8 != 0 || params.q_row_stride < width) {
    throw InvalidArgument(
        "PromptAttention: the stride of q is {}: it must be a multiple of 8 that is {} or more",
        params.q_row_stride, width);
  }
  if (params.v_row_stride % 8 != 0 || params.v_head_stride % 8 != 0) {
    throw InvalidArgument(
        "PromptAttention: strides of v are {} and {}: they must be multiples of 8",
        params.v_row_stride, params.v_head_stride);
  }
  plans_->Run(params, Padded(params.num_queries), Padded(params.num_keys), stream);
}

}  // namespace outrider::cuda
