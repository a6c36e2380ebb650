#include "outrider/networks/cuda/device_weights.h"

#include <numeric>
#include <string>
#include <variant>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/load_weights.h"
#include "outrider/networks/network_loader.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/cuda/tensor_upload.h"

namespace outrider::cuda {

namespace {

/// Loads the parts of one network in the order of DeviceWeights.
class NetworkLoader {
 public:
  NetworkLoader(const ModelConfig& config, const WeightSource& source, ThreadPool& pool,
                cudaStream_t stream, const DeviceLoadProgress& progress)
      : c_(config),
        upload_(source, pool, stream),
        stream_(stream),
        total_bytes_(source.total_stored_bytes()),
        progress_(progress) {}

  DeviceWeights Load(int num_mtp_modules) {
    DeviceWeights w;
    const std::string embedding = c_.tensor_prefix + "model.embed_tokens.weight";
    w.embedding = upload_.Plain(TensorPart::Whole(embedding, c_.vocab_size, c_.hidden_size));
    for (int64_t i = 0; i < c_.num_hidden_layers(); ++i) w.layers.push_back(Layer(i));
    w.final_norm = upload_.Vector(c_.tensor_prefix + "model.norm.weight", c_.hidden_size);
    const std::string head =
        c_.tie_word_embeddings ? embedding : c_.tensor_prefix + "lm_head.weight";
    w.head = upload_.Matrix({TensorPart::Whole(head, c_.vocab_size, c_.hidden_size)});
    for (int m = 0; m < num_mtp_modules; ++m) w.mtp.push_back(Mtp(c_.num_hidden_layers() + m));
    w.memory = upload_.Finish();
    return w;
  }

 private:
  std::string Prefix(int64_t layer) const {
    return fmt::format("{}model.layers.{}.", c_.tensor_prefix, layer);
  }

  DeviceLayerWeights Layer(int64_t index) {
    const std::string prefix = Prefix(index);
    DeviceLayerWeights w;
    w.input_norm = upload_.Vector(prefix + "input_layernorm.weight", c_.hidden_size);
    w.spec = c_.layer(index);
    w.attention = Attention(MlaOf(w.spec), prefix + "self_attn.");
    w.post_attention_norm =
        upload_.Vector(prefix + "post_attention_layernorm.weight", c_.hidden_size);
    const std::string mlp = prefix + "mlp.";
    if (const MoeSpec* moe = w.spec.moe()) {
      Experts(*moe, mlp, &w);
    } else {
      upload_.Mlps({Mlp(mlp, w.spec.dense()->width)}, &w.gate_up, &w.down);
    }
    if (progress_) progress_(upload_.bytes_read(), total_bytes_);
    return w;
  }

  DeviceMlaWeights Attention(const MlaSpec& a, const std::string& prefix) {
    const int64_t query = a.heads * a.query_width();
    const int64_t entry = a.latent + a.rope;
    DeviceMlaWeights w;
    const TensorPart kv_a =
        TensorPart::Whole(prefix + "kv_a_proj_with_mqa.weight", entry, c_.hidden_size);
    if (a.q_lora > 0) {
      w.q_kv_a = upload_.Matrix(
          {TensorPart::Whole(prefix + "q_a_proj.weight", a.q_lora, c_.hidden_size), kv_a});
      w.q_a_norm = upload_.Vector(prefix + "q_a_layernorm.weight", a.q_lora);
      w.q_b = upload_.Matrix({TensorPart::Whole(prefix + "q_b_proj.weight", query, a.q_lora)});
    } else {
      w.q_kv_a = upload_.Matrix(
          {TensorPart::Whole(prefix + "q_proj.weight", query, c_.hidden_size), kv_a});
    }
    w.kv_a_norm = upload_.Vector(prefix + "kv_a_layernorm.weight", a.latent);
    KvUp(a, prefix + "kv_b_proj.weight", &w);
    w.o = upload_.Matrix(
        {TensorPart::Whole(prefix + "o_proj.weight", c_.hidden_size, a.heads * a.value)});
    return w;
  }

  void KvUp(const MlaSpec& a, const std::string& name, DeviceMlaWeights* w) {
    KvUpSplit split = {.heads = static_cast<int>(a.heads),
                       .nope = static_cast<int>(a.nope),
                       .value = static_cast<int>(a.value),
                       .latent = static_cast<int>(a.latent)};
    const TensorPart part = TensorPart::Whole(name, a.heads * (a.nope + a.value), a.latent);
    w->kv_up = upload_.Bf16Matrix(part, &split.kv_up);
    split.key_up_t =
        upload_.Take(static_cast<size_t>(a.heads * a.nope * a.latent) * sizeof(BFloat16));
    split.value_up =
        upload_.Take(static_cast<size_t>(a.heads * a.value * a.latent) * sizeof(BFloat16));
    CheckCuda(SplitKvUp(split, stream_), "splitting kv_b_proj");
    w->key_up_t = split.key_up_t;
    w->value_up = split.value_up;
  }

  TensorUpload::Mlp Mlp(const std::string& prefix, int64_t width) const {
    const int64_t hidden = c_.hidden_size;
    return {TensorPart::Whole(prefix + "gate_proj.weight", width, hidden),
            TensorPart::Whole(prefix + "up_proj.weight", width, hidden),
            TensorPart::Whole(prefix + "down_proj.weight", hidden, width)};
  }

  void Experts(const MoeSpec& moe, const std::string& prefix, DeviceLayerWeights* w) {
    const int64_t width = moe.width;
    const int64_t routed = moe.router.experts;
    w->router =
        upload_.Bf16Matrix(TensorPart::Whole(prefix + "gate.weight", routed, c_.hidden_size));
    if (moe.router.method == RouterMethod::kNoAuxTc) {
      w->router_bias = upload_.Vector(prefix + "gate.e_score_correction_bias", routed);
    }
    std::vector<TensorUpload::Mlp> experts;
    for (int64_t e = 0; e < routed; ++e) {
      experts.push_back(Mlp(fmt::format("{}experts.{}.", prefix, e), width));
    }
    const auto cut = [&](TensorPart part, int64_t e, bool rows) {
      (rows ? part.first_row : part.first_col) = e * width;
      (rows ? part.rows : part.cols) = width;
      return part;
    };
    const TensorUpload::Mlp shared = Mlp(prefix + "shared_experts.", moe.shared_width);
    for (int64_t e = 0; e < SharedExperts(moe); ++e) {
      experts.push_back(
          {cut(shared.gate, e, true), cut(shared.up, e, true), cut(shared.down, e, false)});
    }
    upload_.Mlps(experts, &w->gate_up, &w->down);
  }

  DeviceMtpWeights Mtp(int64_t index) {
    const std::string prefix = Prefix(index);
    const int64_t hidden = c_.hidden_size;
    DeviceMtpWeights w;
    w.embedding_norm = upload_.Vector(prefix + "enorm.weight", hidden);
    w.hidden_norm = upload_.Vector(prefix + "hnorm.weight", hidden);
    w.projection =
        upload_.Matrix({TensorPart::Whole(prefix + "eh_proj.weight", hidden, 2 * hidden)});
    w.layer = Layer(index);
    w.output_norm = upload_.Vector(prefix + "shared_head.norm.weight", hidden);
    return w;
  }

  const ModelConfig& c_;
  TensorUpload upload_;
  cudaStream_t stream_;
  int64_t total_bytes_;
  const DeviceLoadProgress& progress_;
};

}  // namespace

size_t DeviceWeights::bytes() const {
  return std::accumulate(memory.begin(), memory.end(), size_t{0},
                         [](size_t sum, const DeviceMemory& piece) { return sum + piece.bytes(); });
}

DeviceWeights LoadDeviceWeights(const ModelConfig& config, int num_mtp_modules,
                                const WeightSource& source, ThreadPool& pool,
                                const DeviceLoadProgress& progress) {
  CheckRunsOnHopper(config, num_mtp_modules);
  // It names all that is missing or wrong at once.
  MeasureWeights(cpu::GetCpuOps(Isa::kReference), config, num_mtp_modules, source,
                 {.compute_dtype = DType::kBF16});
  cudaStream_t stream = nullptr;
  CheckCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
  try {
    NetworkLoader loader(config, source, pool, stream, progress);
    DeviceWeights weights = loader.Load(num_mtp_modules);
    cudaStreamDestroy(stream);
    return weights;
  } catch (...) {
    cudaStreamDestroy(stream);
    throw;
  }
}

}  // namespace outrider::cuda
