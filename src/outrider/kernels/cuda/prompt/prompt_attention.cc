// Longer than most files: nothing else knows cuDNN, its loading, plans and errors.
#include "outrider/kernels/cuda/prompt/prompt_attention.h"

#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/host/device_memory.h"
#include "outrider/kernels/cuda/prompt/prompt_rows.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // what its headers look functions up in
}  // namespace cudnn_frontend

namespace outrider::cuda {

namespace {

namespace fe = cudnn_frontend;

// Prompts of a plan: the smallest that has room is used. A prompt that is not there costs blocks
// that end at once.
constexpr std::array kPlanPrompts = {1, 4, 16, 64, kMostPrompts};

Error Unavailable(const std::string& message) { return {ErrorCode::kUnavailable, message}; }

void LoadCudnn() {
  static std::once_flag once;
  std::call_once(once, [] { fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW); });
  if (fe::cudnn_dlhandle == nullptr) {
    throw Unavailable(
        "prompts on a GPU need cuDNN 9: libcudnn.so.9 was not found; in Python: pip install "
        "'outrider[cuda]'; else install it (Python package nvidia-cudnn-cu13) and name its folder "
        "in LD_LIBRARY_PATH");
  }
}

enum Uid : int64_t { kQ = 1, kK, kV, kOut, kQueries, kKeys, kFirstOffset };

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
  /// Builds a plan for each number of prompts in `plan_prompts`.
  Plans(const PromptAttentionShape& shape, std::span<const int> plan_prompts) : shape_(shape) {
    const auto width_ok = [](int width) { return width > 0 && width <= 256 && width % 8 == 0; };
    if (shape.heads <= 0 || !width_ok(shape.key_width) || !width_ok(shape.value_width)) {
      throw InvalidArgument(
          "PromptAttention: {} heads of {} and {}: widths must be multiples of 8 up to 256",
          shape.heads, shape.key_width, shape.value_width);
    }
    const int64_t q_row = int64_t{shape.heads} * shape.key_width;
    if (shape_.q_row_stride == 0) shape_.q_row_stride = q_row;
    if (shape_.q_row_stride % 8 != 0 || shape_.q_row_stride < q_row) {
      throw InvalidArgument(
          "PromptAttention: rows of q are {} apart: it must be a multiple of 8, {} or more",
          shape_.q_row_stride, q_row);
    }
    if (shape_.v_head_stride == 0) shape_.v_head_stride = shape.value_width;
    if (shape_.v_row_stride == 0) shape_.v_row_stride = shape.heads * shape_.v_head_stride;
    if (shape_.v_row_stride % 8 != 0 || shape_.v_head_stride % 8 != 0) {
      throw InvalidArgument(
          "PromptAttention: strides of v are {} and {}: they must be multiples of 8",
          shape_.v_row_stride, shape_.v_head_stride);
    }
    LoadCudnn();
    if (fe::detail::create_handle(&handle_) != CUDNN_STATUS_SUCCESS) {
      throw Unavailable("PromptAttention: cuDNN gave no handle");
    }
    lengths_ = DeviceMemory(2 * kMostPrompts * sizeof(int32_t), "attention of prompts");
    offsets_ = DeviceMemory(4 * (kMostPrompts + 1) * sizeof(int64_t), "attention of prompts");
    for (const int prompts : plan_prompts) plans_.push_back(Make(prompts));
  }
  ~Plans() { fe::detail::destroy_handle(handle_); }
  Plans(const Plans&) = delete;
  Plans& operator=(const Plans&) = delete;

  const PromptAttentionShape& shape() const { return shape_; }

  /// `room`: prompts of the plan, at least.
  void Run(const PromptAttentionParams& params, int room, cudaStream_t stream) {
    const Plan& plan =
        *std::ranges::find_if(plans_, [&](const Plan& p) { return p.prompts >= room; });
    auto* const lengths = lengths_.As<int32_t>();
    auto* const offsets = offsets_.As<int64_t>();
    const int64_t heads = shape_.heads;
    if (params.batch == 0 || params.batch != batch_) {
      CheckCuda(MakePromptOffsets({.num_prompts = params.num_prompts,
                                   .plan_prompts = plan.prompts,
                                   .query_start_loc = params.query_start_loc,
                                   .key_start_loc = params.key_start_loc,
                                   .q_stride = shape_.q_row_stride,
                                   .k_stride = heads * shape_.key_width,
                                   .v_stride = shape_.v_row_stride,
                                   .out_stride = heads * shape_.value_width,
                                   .lengths = lengths,
                                   .offsets = offsets},
                                  stream),
                "where prompts begin");
    }
    batch_ = params.batch;
    if (fe::detail::set_stream(handle_, stream) != CUDNN_STATUS_SUCCESS) {
      throw Unavailable("PromptAttention: cuDNN did not take the stream");
    }
    std::unordered_map<int64_t, void*> tensors = {{kQ, const_cast<void*>(params.q)},
                                                  {kK, const_cast<void*>(params.k)},
                                                  {kV, const_cast<void*>(params.v)},
                                                  {kOut, params.out},
                                                  {kQueries, lengths},
                                                  {kKeys, lengths + plan.prompts}};
    for (int i = 0; i < 4; ++i) tensors[kFirstOffset + i] = offsets + i * (plan.prompts + 1);
    CudnnOk(plan.graph->execute(handle_, tensors, plan.workspace.data()), Name());
  }

  /// Compares bits of a prompt in one piece and in others, over all plans.
  void CheckPieces();
  /// Compares bits of a head with those that it has among all heads of the model.
  void CheckHeads();

 private:
  struct Plan {
    int prompts;
    std::shared_ptr<fe::graph::Graph> graph;
    DeviceMemory workspace;
  };

  std::string Name() const {
    return fmt::format("attention of {} heads with widths {} and {}", shape_.heads,
                       shape_.key_width, shape_.value_width);
  }

  /// Results [kCheckRows, heads, value_width] of a prompt whose heads all have the same values.
  std::vector<uint16_t> RunEqualHeads();

  Plan Make(int prompts) const {
    const int64_t heads = shape_.heads;
    const int64_t width = shape_.key_width;
    const int64_t value = shape_.value_width;
    auto graph = std::make_shared<fe::graph::Graph>();
    graph->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    auto array = [&](const std::string& name, int64_t uid, int64_t size, fe::DataType_t type) {
      return graph->tensor(fe::graph::Tensor_attributes()
                               .set_name(name)
                               .set_uid(uid)
                               .set_dim({size, 1, 1, 1})
                               .set_stride({1, 1, 1, 1})
                               .set_data_type(type));
    };
    // Rows of all prompts lie behind each other; `index` is of the array that says where they
    // begin.
    auto begins = [&](const std::string& name, int index) {
      return array(name + " begins", kFirstOffset + index, prompts + 1, fe::DataType_t::INT64);
    };
    auto rows = [&](const char* name, Uid uid, int64_t most, int64_t columns, int64_t row_stride,
                    int64_t head_stride, int index) {
      return graph->tensor(fe::graph::Tensor_attributes()
                               .set_name(name)
                               .set_uid(uid)
                               .set_dim({prompts, heads, most, columns})
                               .set_stride({most * row_stride, head_stride, row_stride, 1})
                               .set_ragged_offset(begins(name, index)));
    };
    auto q = rows("q", kQ, kMostPromptQueries, width, shape_.q_row_stride, width, 0);
    auto k = rows("k", kK, kMostPromptKeys, width, heads * width, width, 1);
    auto v = rows("v", kV, kMostPromptKeys, value, shape_.v_row_stride, shape_.v_head_stride, 2);
    auto attributes = fe::graph::SDPA_attributes()
                          .set_name("prompts")
                          .set_generate_stats(false)
                          .set_attn_scale(shape_.scale)
                          .set_padding_mask(true)
                          .set_seq_len_q(array("queries", kQueries, prompts, fe::DataType_t::INT32))
                          .set_seq_len_kv(array("keys", kKeys, prompts, fe::DataType_t::INT32))
                          .set_diagonal_alignment(fe::DiagonalAlignment_t::BOTTOM_RIGHT)
                          .set_diagonal_band_right_bound(0);
    const auto outputs = graph->sdpa(q, k, v, attributes);
    outputs[0]
        ->set_output(true)
        .set_uid(kOut)
        .set_dim({prompts, heads, kMostPromptQueries, value})
        .set_stride({kMostPromptQueries * heads * value, value, heads * value, 1})
        .set_ragged_offset(begins("out", 3));
    CudnnOk(graph->validate(), Name());
    CudnnOk(graph->build_operation_graph(handle_), Name());
    CudnnOk(graph->create_execution_plans({fe::HeurMode_t::A}), Name());
    CudnnOk(graph->check_support(), Name());
    CudnnOk(graph->build_plans(), Name());
    int64_t bytes = 0;
    CudnnOk(graph->get_workspace_size(bytes), Name());
    return {prompts, std::move(graph),
            DeviceMemory(static_cast<size_t>(bytes), "attention of prompts")};
  }

  PromptAttentionShape shape_;
  cudnnHandle_t handle_ = nullptr;
  DeviceMemory lengths_;  // PromptOffsetParams
  DeviceMemory offsets_;
  uint64_t batch_ = 0;       // that they are of
  std::vector<Plan> plans_;  // in the order of kPlanPrompts
};

namespace {

constexpr int kCheckRows = 300;
// Its own: a plan may be made while other threads use the device.
const cudaStream_t kCheckStream = cudaStreamPerThread;

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

/// Rows begin .. end - 1 of the prompt that is compared.
struct Piece {
  int begin;
  int end;
};

/// The prompt's rows, and room for those of a batch of pieces behind each other, on the device.
class CheckRows {
 public:
  /// `row`: numbers of a row; `room`: rows of the largest batch.
  CheckRows(size_t row, uint64_t seed, size_t room)
      : row_bytes_(row * sizeof(uint16_t)),
        prompt_(kCheckRows * row_bytes_, "comparing plans"),
        batch_((room + kPromptSlackRows) * row_bytes_, "comparing plans") {
    const std::vector<uint16_t> values = CheckValues(kCheckRows * row, seed);
    CheckCuda(cudaMemcpyAsync(prompt_.data(), values.data(), prompt_.bytes(),
                              cudaMemcpyHostToDevice, kCheckStream),
              "copying");
    CheckCuda(cudaMemsetAsync(batch_.data(), 0, batch_.bytes(), kCheckStream), "clearing memory");
    CheckCuda(cudaStreamSynchronize(kCheckStream), "copying");
  }

  void StartBatch() { rows_ = 0; }
  void Append(const Piece& piece) {
    const auto count = static_cast<size_t>(piece.end - piece.begin);
    CheckCuda(cudaMemcpyAsync(batch_.As<std::byte>() + rows_ * row_bytes_,
                              prompt_.As<std::byte>() + piece.begin * row_bytes_,
                              count * row_bytes_, cudaMemcpyDeviceToDevice, kCheckStream),
              "copying");
    rows_ += count;
  }
  const void* batch() const { return batch_.data(); }

 private:
  size_t row_bytes_;
  DeviceMemory prompt_;
  DeviceMemory batch_;
  size_t rows_ = 0;
};

template <typename T>
void Upload(const std::vector<T>& values, const DeviceMemory& to) {
  CheckCuda(cudaMemcpyAsync(to.data(), values.data(), values.size() * sizeof(T),
                            cudaMemcpyHostToDevice, kCheckStream),
            "copying");
}

}  // namespace

// The keys of a piece are copied for it, since prompts of a batch have rows of their own. What is
// past a batch's end is zero or of a batch before.
void PromptAttention::Plans::CheckPieces() {
  std::vector<Piece> pieces = {{0, kCheckRows}};
  for (const int cut : {1, 64, 100, 128, 129, 256, kCheckRows - 1}) {
    pieces.push_back({0, cut});
    pieces.push_back({cut, kCheckRows});
  }
  const size_t heads = shape_.heads;
  const size_t out_row = heads * shape_.value_width;
  const size_t room = pieces.size() * kCheckRows;
  CheckRows q(shape_.q_row_stride, 1, room);
  CheckRows k(heads * shape_.key_width, 2, room);
  CheckRows v(shape_.v_row_stride, 3, room);
  const DeviceMemory d_out(room * out_row * sizeof(uint16_t), "comparing plans");
  const DeviceMemory d_queries((pieces.size() + 1) * sizeof(int32_t), "comparing plans");
  const DeviceMemory d_keys((pieces.size() + 1) * sizeof(int32_t), "comparing plans");
  auto run = [&](const std::vector<Piece>& batch, int plan_room) {
    std::vector<int32_t> queries = {0}, keys = {0};
    for (CheckRows* rows : {&q, &k, &v}) rows->StartBatch();
    for (const Piece& piece : batch) {
      q.Append(piece);
      k.Append({0, piece.end});
      v.Append({0, piece.end});
      queries.push_back(queries.back() + piece.end - piece.begin);
      keys.push_back(keys.back() + piece.end);
    }
    Upload(queries, d_queries);
    Upload(keys, d_keys);
    PromptAttentionParams params;
    params.num_prompts = static_cast<int>(batch.size());
    params.query_start_loc = d_queries.As<int32_t>();
    params.key_start_loc = d_keys.As<int32_t>();
    params.q = q.batch();
    params.k = k.batch();
    params.v = v.batch();
    params.out = d_out.data();
    Run(params, plan_room, kCheckStream);
    std::vector<uint16_t> out(queries.back() * out_row);
    CheckCuda(cudaMemcpyAsync(out.data(), d_out.data(), out.size() * sizeof(uint16_t),
                              cudaMemcpyDeviceToHost, kCheckStream),
              "copying");
    CheckCuda(cudaStreamSynchronize(kCheckStream), "comparing plans");
    return out;
  };
  const std::vector<uint16_t> whole = run({pieces[0]}, 1);
  auto compare = [&](const std::vector<Piece>& batch, int plan_room) {
    const std::vector<uint16_t> got = run(batch, plan_room);
    size_t at = 0;
    for (const Piece& piece : batch) {
      const size_t size = (piece.end - piece.begin) * out_row;
      if (std::memcmp(got.data() + at, whole.data() + piece.begin * out_row, size * 2) != 0) {
        throw Unavailable(fmt::format(
            "cuDNN {} gives other bits for rows {} to {} of a prompt in a plan of {} ({}): use the "
            "version that docs/cuda-kernels.md names",
            fe::detail::get_backend_version_string(), piece.begin, piece.end, plan_room, Name()));
      }
      at += size;
    }
  };
  for (const Piece& piece : pieces) compare({piece}, 1);
  for (const Plan& plan : plans_) {
    compare({pieces[0]}, plan.prompts);
    const auto count = std::min(pieces.size(), static_cast<size_t>(plan.prompts));
    compare({pieces.end() - static_cast<int64_t>(count), pieces.end()}, plan.prompts);
  }
}

std::vector<uint16_t> PromptAttention::Plans::RunEqualHeads() {
  // Rows that are read behind the last one are zero.
  const auto bring = [&](size_t width, size_t row_stride, size_t head_stride, uint64_t seed) {
    const std::vector<uint16_t> head = CheckValues(kCheckRows * width, seed);
    std::vector<uint16_t> rows((kCheckRows + kPromptSlackRows) * row_stride);
    for (size_t r = 0; r < kCheckRows; ++r) {
      for (size_t h = 0; h < static_cast<size_t>(shape_.heads); ++h) {
        std::copy_n(head.data() + r * width, width, rows.data() + r * row_stride + h * head_stride);
      }
    }
    DeviceMemory memory(rows.size() * sizeof(uint16_t), "comparing heads");
    Upload(rows, memory);
    CheckCuda(cudaStreamSynchronize(kCheckStream), "copying");
    return memory;
  };
  const auto key_width = static_cast<size_t>(shape_.key_width);
  const auto value_width = static_cast<size_t>(shape_.value_width);
  const auto heads = static_cast<size_t>(shape_.heads);
  const DeviceMemory q = bring(key_width, shape_.q_row_stride, key_width, 1);
  const DeviceMemory k = bring(key_width, heads * key_width, key_width, 2);
  const DeviceMemory v = bring(value_width, shape_.v_row_stride, shape_.v_head_stride, 3);
  const std::vector<int32_t> starts = {0, kCheckRows};
  const DeviceMemory d_starts(starts.size() * sizeof(int32_t), "comparing heads");
  Upload(starts, d_starts);
  std::vector<uint16_t> out(kCheckRows * heads * value_width);
  const DeviceMemory d_out(out.size() * sizeof(uint16_t), "comparing heads");
  PromptAttentionParams params;
  params.num_prompts = 1;
  params.query_start_loc = params.key_start_loc = d_starts.As<int32_t>();
  params.q = q.data();
  params.k = k.data();
  params.v = v.data();
  params.out = d_out.data();
  Run(params, 1, kCheckStream);
  CheckCuda(cudaMemcpyAsync(out.data(), d_out.data(), d_out.bytes(), cudaMemcpyDeviceToHost,
                            kCheckStream),
            "copying");
  CheckCuda(cudaStreamSynchronize(kCheckStream), "comparing heads");
  return out;
}

void PromptAttention::Plans::CheckHeads() {
  PromptAttentionShape model = shape_;
  model.heads = shape_.model_heads;
  model.q_row_stride = 0;
  model.v_row_stride = model.heads * shape_.v_head_stride;
  Plans all(model, std::array{1});
  const std::vector<uint16_t> expected = all.RunEqualHeads();
  const std::vector<uint16_t> got = RunEqualHeads();
  const auto width = static_cast<size_t>(shape_.value_width);
  for (size_t r = 0; r < kCheckRows; ++r) {
    const uint16_t* const row = expected.data() + r * static_cast<size_t>(model.heads) * width;
    for (int h = 0; h < shape_.heads; ++h) {
      const uint16_t* const own =
          got.data() + (r * static_cast<size_t>(shape_.heads) + static_cast<size_t>(h)) * width;
      if (std::memcmp(own, row, width * sizeof(uint16_t)) == 0) continue;
      throw Unavailable(fmt::format(
          "cuDNN {} gives a head other bits among {} heads than among {} ({}): use another "
          "--tensor-parallel-size, or the version that docs/cuda-kernels.md names",
          fe::detail::get_backend_version_string(), shape_.heads, model.heads, Name()));
    }
  }
}

PromptAttention::PromptAttention(const PromptAttentionShape& shape)
    : plans_(std::make_unique<Plans>(shape, kPlanPrompts)) {
  plans_->CheckPieces();
  if (shape.model_heads > shape.heads) plans_->CheckHeads();
}

PromptAttention::~PromptAttention() = default;

void PromptAttention::Run(const PromptAttentionParams& params, cudaStream_t stream) {
  if (params.num_prompts < 1 || params.num_prompts > kMostPrompts || params.max_queries < 1 ||
      params.max_queries > kMostPromptQueries || params.max_keys < params.max_queries ||
      params.max_keys > kMostPromptKeys) {
    throw InvalidArgument(
        "PromptAttention: {} prompts of up to {} queries over {} keys: there must be 1 to {} "
        "prompts, 1 to {} queries, and at least as many keys, up to {}",
        params.num_prompts, params.max_queries, params.max_keys, kMostPrompts, kMostPromptQueries,
        kMostPromptKeys);
  }
  plans_->Run(params, params.num_prompts, stream);
}

}  // namespace outrider::cuda
