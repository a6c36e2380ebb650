#include "outrider/telemetry/metrics.h"

#include <fmt/format.h>
#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>
#include <vector>

namespace outrider {
namespace {

using prometheus::ClientMetric;
using prometheus::Histogram;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = prometheus::Labels;

// vLLM's buckets, in seconds; inter-token times get finer ones below, where MTP on small models is.
const std::vector<double> kFirstTokenBuckets = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                                0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                                20,    40,    80,   160,  640,  2560};
const std::vector<double> kTokenIntervalBuckets = {
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
    0.4,   0.5,    0.75,  1,    2.5,   5,    7.5,   10,  20,   40,  80};
const std::vector<double> kRequestBuckets = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                             30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};

// 1, 2, 5, 10, 20, 50, ... up to the longest context.
std::vector<double> CountBuckets(int32_t max_model_len) {
  std::vector<double> buckets;
  for (double decade = 1;; decade *= 10) {
    for (const double digit : {1, 2, 5}) {
      if (!buckets.empty() && digit * decade > max_model_len) return buckets;
      buckets.push_back(digit * decade);
    }
  }
}

// Families that are copied from an EngineCounters at each scrape.
class SnapshotFamilies {
 public:
  explicit SnapshotFamilies(Labels labels) : labels_(std::move(labels)) {}

  void Gauge(const std::string& name, const std::string& help, double value) {
    Family(name, help, MetricType::Gauge).metric.push_back(Metric({}));
    families_.back().metric.back().gauge.value = value;
  }

  void Counter(const std::string& name, const std::string& help, double value) {
    StartCounter(name, help);
    AddToCounter({}, value);
  }

  void StartCounter(const std::string& name, const std::string& help) {
    Family(name, help, MetricType::Counter);
  }

  void AddToCounter(const Labels& labels, double value) {
    families_.back().metric.push_back(Metric(labels));
    families_.back().metric.back().counter.value = value;
  }

  void StartGauge(const std::string& name, const std::string& help) {
    Family(name, help, MetricType::Gauge);
  }

  void AddToGauge(const Labels& labels, double value) {
    families_.back().metric.push_back(Metric(labels));
    families_.back().metric.back().gauge.value = value;
  }

  void Histogram(const std::string& name, const std::string& help, const StepSizes& sizes) {
    Family(name, help, MetricType::Histogram).metric.push_back(Metric({}));
    ClientMetric::Histogram& histogram = families_.back().metric.back().histogram;
    uint64_t cumulative = 0;
    for (size_t i = 0; i < sizes.counts.size(); ++i) {
      cumulative += static_cast<uint64_t>(sizes.counts[i]);
      const bool last = i == StepSizes::kBounds.size();
      histogram.bucket.push_back({cumulative, last ? std::numeric_limits<double>::infinity()
                                                   : static_cast<double>(StepSizes::kBounds[i])});
    }
    histogram.sample_count = cumulative;
    histogram.sample_sum = static_cast<double>(sizes.sum);
  }

  void Info(const std::string& name, const std::string& help, const Labels& about) {
    Family(name, help, MetricType::Gauge).metric.push_back(Metric(about));
    families_.back().metric.back().gauge.value = 1;
  }

  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  MetricFamily& Family(const std::string& name, const std::string& help, MetricType type) {
    MetricFamily& family = families_.emplace_back();
    family.name = name;
    family.help = help;
    family.type = type;
    return family;
  }

  ClientMetric Metric(const Labels& more) const {
    ClientMetric metric;
    for (const auto& [name, value] : labels_) metric.label.push_back({name, value});
    for (const auto& [name, value] : more) metric.label.push_back({name, value});
    return metric;
  }

  const Labels labels_;
  std::vector<MetricFamily> families_;
};

void AddGpu(const GpuFigures& gpu, SnapshotFamilies& out) {
  out.StartGauge("outrider:gpu_memory_bytes",
                 "The GPU's memory: in all, and what it held when the engine had started.");
  out.AddToGauge({{"use", "total"}}, static_cast<double>(gpu.total_bytes));
  out.AddToGauge({{"use", "weights"}}, static_cast<double>(gpu.weight_bytes));
  out.AddToGauge({{"use", "kv_cache"}}, static_cast<double>(gpu.kv_cache_bytes));
  out.AddToGauge({{"use", "work_space"}}, static_cast<double>(gpu.work_bytes));
  out.StartCounter("outrider:passes_total",
                   "Passes of the target and of draft modules: recorded ones that were repeated "
                   "(graph), and those that were launched one operation after the other (eager).");
  out.AddToCounter({{"mode", "graph"}}, static_cast<double>(gpu.passes_repeated));
  out.AddToCounter({{"mode", "eager"}}, static_cast<double>(gpu.passes_launched));
  out.Counter("outrider:gpu_idle_seconds_total",
              "Time in which the GPU had no work while requests ran.", gpu.idle_seconds);
}

void AddHostCache(const EngineCounters& counters, SnapshotFamilies& out) {
  const HostCacheCounts& host = *counters.host_cache;
  const auto count = [](int64_t value) { return static_cast<double>(value); };
  out.Counter("vllm:external_prefix_cache_queries_total",
              "Prompt tokens looked up among the pages that left the KV cache: those that were not "
              "in it.",
              count(counters.host_cache_queries));
  out.Counter("vllm:external_prefix_cache_hits_total",
              "Prompt tokens found there, which came back.", count(counters.host_cache_hits));
  out.StartCounter(
      "outrider:kv_offload_pages_total",
      "Pages of the KV cache that left it and were kept (saved), came back (restored), "
      "were given up for want of room (dropped).");
  out.AddToCounter({{"event", "saved"}}, count(host.pages_saved));
  out.AddToCounter({{"event", "restored"}}, count(host.pages_restored));
  out.AddToCounter({{"event", "dropped"}}, count(host.pages_dropped));
  out.StartCounter("outrider:kv_offload_bytes_total", "Bytes copied for these pages.");
  out.AddToCounter({{"event", "saved"}}, count(host.pages_saved * host.page_bytes));
  out.AddToCounter({{"event", "restored"}}, count(host.pages_restored * host.page_bytes));
  out.StartGauge("outrider:kv_offload_memory_bytes",
                 "Bytes of the pages that are kept outside of the KV cache, and their limit.");
  out.AddToGauge({{"use", "held"}}, count(host.pages_held * host.page_bytes));
  out.AddToGauge({{"use", "limit"}}, count(host.most_pages * host.page_bytes));
  out.Gauge("outrider:kv_offload_failed",
            "1 once the file of these pages has failed: none are kept any more.",
            host.failed ? 1 : 0);
}

std::vector<MetricFamily> EngineFamilies(const EngineCounters& counters, int64_t num_deferred,
                                         const Labels& labels) {
  const auto count = [](int64_t value) { return static_cast<double>(value); };
  const SpeculationCounts& speculation = counters.speculation;
  SnapshotFamilies out(labels);
  out.Gauge("vllm:num_requests_running", "Requests in the engine's batch.",
            count(counters.num_requests_running));
  out.Gauge("vllm:num_requests_waiting", "Requests that wait for a place in the batch.",
            count(counters.num_requests_waiting));
  out.StartGauge("vllm:num_requests_waiting_by_reason",
                 "Requests that wait: for a place in the batch (capacity), for their grammar to be "
                 "compiled (deferred).");
  out.AddToGauge({{"reason", "capacity"}}, count(counters.num_requests_waiting));
  out.AddToGauge({{"reason", "deferred"}}, count(num_deferred));
  out.Gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use; 1 is all of it.",
            counters.kv_cache_usage);
  out.Info("vllm:cache_config_info", "The KV cache: tokens per block, blocks.",
           {{"block_size", std::to_string(counters.kv_block_size)},
            {"num_gpu_blocks", std::to_string(counters.num_kv_blocks)}});
  out.Counter("vllm:prompt_tokens_total", "Prompt tokens computed.", count(counters.prompt_tokens));
  out.StartCounter("vllm:prompt_tokens_by_source_total", "Prompt tokens, by where they came from.");
  out.AddToCounter({{"source", "local_compute"}}, count(counters.prompt_tokens));
  out.AddToCounter({{"source", "local_cache_hit"}}, count(counters.prefix_cache_hits));
  if (counters.host_cache) {
    out.AddToCounter({{"source", "external_kv_transfer"}}, count(counters.host_cache_hits));
  }
  out.Counter("vllm:generation_tokens_total", "Tokens emitted.", count(counters.generation_tokens));
  out.StartCounter("vllm:request_success_total", "Requests that ended, by reason.");
  out.AddToCounter({{"finished_reason", "stop"}}, count(counters.finished_stop));
  out.AddToCounter({{"finished_reason", "length"}}, count(counters.finished_length));
  out.AddToCounter({{"finished_reason", "abort"}}, count(counters.finished_abort));
  out.AddToCounter({{"finished_reason", "error"}}, count(counters.finished_error));
  out.Counter("vllm:corrupted_requests_total",
              "Requests that the engine ended because of a fault of its own.",
              count(counters.finished_error));
  out.Counter("vllm:num_preemptions_total", "Requests put back for want of KV cache.",
              count(counters.num_preemptions));
  out.Counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
              count(counters.prefix_cache_queries));
  out.Counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
              count(counters.prefix_cache_hits));
  out.Counter("vllm:spec_decode_num_drafts_total", "Verify steps with at least one draft token.",
              count(speculation.num_drafts));
  out.Counter("vllm:spec_decode_num_draft_tokens_total", "Draft tokens verified.",
              count(speculation.num_draft_tokens));
  out.Counter("vllm:spec_decode_num_accepted_tokens_total", "Draft tokens accepted.",
              count(speculation.num_accepted_tokens));
  out.StartCounter("vllm:spec_decode_num_accepted_tokens_per_pos_total",
                   "Draft tokens accepted, by their position in the draft.");
  for (size_t i = 0; i < speculation.accepted_per_position.size(); ++i) {
    out.AddToCounter({{"position", std::to_string(i)}},
                     count(speculation.accepted_per_position[i]));
  }
  out.Gauge("outrider:spec_decode_current_k",
            "Drafts per request that the schedule asked for in the last step.",
            count(counters.num_speculative_tokens));
  out.Histogram("vllm:iteration_tokens_total",
                "Prompt tokens computed and tokens emitted, by step.", counters.step_tokens);
  out.Histogram("outrider:verify_batch_tokens",
                "Rows of requests that decode, drafts included, by step.", counters.verify_tokens);
  out.Counter("outrider:steps_total", "Steps of the engine.", count(counters.num_steps));
  out.StartCounter("outrider:step_seconds_total", "Time spent in steps, by part.");
  out.AddToCounter({{"phase", "plan"}}, counters.plan_seconds);
  out.AddToCounter({{"phase", "model"}}, counters.model_seconds);
  out.AddToCounter({{"phase", "sample"}}, counters.sample_seconds);
  out.AddToCounter({{"phase", "draft"}}, counters.draft_seconds);
  out.Counter("outrider:step_host_seconds_total", "Time spent in steps outside the model.",
              counters.host_seconds);
  if (counters.host_cache) AddHostCache(counters, out);
  if (counters.gpu) AddGpu(*counters.gpu, out);
  return out.Take();
}

}  // namespace

struct ServerMetrics::Impl {
  Impl(const std::string& model_name, int32_t max_model_len)
      : labels({{"model_name", model_name}, {"engine", "0"}}),
        counts(CountBuckets(max_model_len)) {}

  Histogram& Add(const std::string& name, const std::string& help,
                 const std::vector<double>& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(labels,
                                                                                     buckets);
  }

  const Labels labels;
  const std::vector<double> counts;
  prometheus::Registry registry;
  Histogram& first_token = Add("vllm:time_to_first_token_seconds",
                               "From submission to the first token.", kFirstTokenBuckets);
  Histogram& token_interval =
      Add("vllm:inter_token_latency_seconds", "Between two steps of a request that emitted tokens.",
          kTokenIntervalBuckets);
  Histogram& per_token =
      Add("vllm:request_time_per_output_token_seconds",
          "Mean time per token after the first, by request.", kTokenIntervalBuckets);
  Histogram& total = Add("vllm:e2e_request_latency_seconds", "From submission to the last token.",
                         kRequestBuckets);
  Histogram& queue =
      Add("vllm:request_queue_time_seconds", "From submission to the first step.", kRequestBuckets);
  Histogram& prefill = Add("vllm:request_prefill_time_seconds",
                           "From the first step to the first token.", kRequestBuckets);
  Histogram& decode =
      Add("vllm:request_decode_time_seconds", "From the first token to the last.", kRequestBuckets);
  Histogram& inference = Add("vllm:request_inference_time_seconds",
                             "From the first step to the last token.", kRequestBuckets);
  Histogram& prompt_tokens =
      Add("vllm:request_prompt_tokens", "Prompt tokens, by request.", counts);
  Histogram& generation_tokens =
      Add("vllm:request_generation_tokens", "Emitted tokens, by request.", counts);
  Histogram& computed_tokens =
      Add("vllm:request_prefill_kv_computed_tokens",
          "Prompt tokens not found in the prefix cache, by request.", counts);
  Histogram& longest_choice = Add("vllm:request_max_num_generation_tokens",
                                  "Emitted tokens of a request's longest choice.", counts);
  Histogram& max_tokens = Add("vllm:request_params_max_tokens",
                              "Tokens a choice may emit at most, by request.", counts);
  prometheus::Counter& refused = prometheus::BuildCounter()
                                     .Name("vllm:admission_rejections_total")
                                     .Help("Requests refused because the queue was full.")
                                     .Register(registry)
                                     .Add(labels);
  Histogram& choices =
      Add("vllm:request_params_n", "Choices asked for, by request.", {1, 2, 5, 10, 20});
  std::atomic<int64_t> num_deferred{0};
};

ServerMetrics::ServerMetrics(const std::string& model_name, int32_t max_model_len)
    : impl_(std::make_unique<Impl>(model_name, max_model_len)) {}
ServerMetrics::~ServerMetrics() = default;

void ServerMetrics::ObserveRequest(int32_t n, int32_t max_tokens) {
  impl_->max_tokens.Observe(max_tokens);
  impl_->choices.Observe(n);
}

void ServerMetrics::CountRefusal() { impl_->refused.Increment(); }

void ServerMetrics::ObserveTokenInterval(double seconds) { impl_->token_interval.Observe(seconds); }

void ServerMetrics::ObserveFirstToken(double seconds) { impl_->first_token.Observe(seconds); }

void ServerMetrics::ObserveLongestChoice(int64_t tokens) {
  impl_->longest_choice.Observe(static_cast<double>(tokens));
}

void ServerMetrics::AddDeferred(int32_t change) { impl_->num_deferred += change; }

void ServerMetrics::ObserveFinished(const RequestStats& stats) {
  const double decode_seconds = std::max(0.0, stats.total_seconds - stats.first_token_seconds);
  impl_->total.Observe(stats.total_seconds);
  impl_->queue.Observe(stats.queue_seconds);
  impl_->prefill.Observe(std::max(0.0, stats.first_token_seconds - stats.queue_seconds));
  impl_->decode.Observe(decode_seconds);
  impl_->inference.Observe(std::max(0.0, stats.total_seconds - stats.queue_seconds));
  impl_->prompt_tokens.Observe(static_cast<double>(stats.prompt_tokens));
  impl_->computed_tokens.Observe(static_cast<double>(stats.prompt_tokens - stats.cached_tokens));
  impl_->generation_tokens.Observe(static_cast<double>(stats.completion_tokens));
  if (stats.completion_tokens > 1) {
    impl_->per_token.Observe(decode_seconds / static_cast<double>(stats.completion_tokens - 1));
  }
}

std::string ServerMetrics::Render(const EngineCounters& counters) const {
  std::vector<MetricFamily> families = EngineFamilies(counters, impl_->num_deferred, impl_->labels);
  for (MetricFamily& family : impl_->registry.Collect()) families.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace outrider
