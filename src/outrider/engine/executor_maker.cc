#include "outrider/engine/executor_maker.h"

#include <exception>
#include <filesystem>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "outrider/base/byte_size.h"
#include "outrider/base/error.h"
#include "outrider/base/host_memory.h"
#include "outrider/base/processors.h"
#include "outrider/base/thread_pool.h"
#include "outrider/checkpoint/rank_config.h"
#include "outrider/draft/block_drafter.h"
#include "outrider/draft/chain_drafter.h"
#include "outrider/draft/ngram_drafter.h"
#include "outrider/draft/repeated_drafter.h"
#include "outrider/engine/engine_device.h"
#include "outrider/engine/warm_up.h"
#include "outrider/execute/queued_executor.h"
#include "outrider/networks/eagle3_draft_model.h"
#include "outrider/networks/mtp_draft_model.h"
#include "outrider/networks/network_loader.h"

namespace outrider {

namespace {

/// What the ranks have read, each on a thread of its own, of a model and then of a drafter with a
/// checkpoint of its own, as one progress.
class RanksProgress {
 public:
  /// drafters: what each rank will read of the drafter; 0: there is none.
  RanksProgress(const std::vector<int64_t>& drafters, const LoadProgress& progress)
      : progress_(progress) {
    for (const int64_t bytes : drafters) read_.push_back({.drafter = {0, bytes}});
  }

  WeightLoader::Progress OfModel(int32_t rank) { return Of(rank, &Rank::model); }
  WeightLoader::Progress OfDrafter(int32_t rank) { return Of(rank, &Rank::drafter); }

 private:
  struct Part {
    int64_t done = 0;
    int64_t total = 0;
  };
  struct Rank {
    Part model = {};  // total: 0 until it has begun
    Part drafter = {};
  };

  WeightLoader::Progress Of(int32_t rank, Part Rank::* part) {
    if (!progress_) return nullptr;
    return [this, rank, part](int64_t done, int64_t total) {
      const std::lock_guard lock(mutex_);
      Rank& own = read_[static_cast<size_t>(rank)];
      own.*part = {done, total};
      Part sum;
      for (const Rank& read : read_) {
        sum.done += read.model.done + read.drafter.done;
        // A model that has not begun: as much as this one.
        sum.total += read.model.total == 0 ? own.model.total : read.model.total;
        sum.total += read.drafter.total;
      }
      progress_(sum.done, sum.total);
    };
  }

  std::mutex mutex_;
  std::vector<Rank> read_;
  const LoadProgress& progress_;
};

/// What of two networks differs first; "": nothing that weights do not have.
std::string Difference(const ModelConfig& a, const ModelConfig& b) {
  if (a.model_type != b.model_type) return "model_type";
  if (a.vocab_size != b.vocab_size) return "vocab_size";
  if (a.hidden_size != b.hidden_size) return "hidden_size";
  if (a.layers.size() != b.layers.size()) return "num_hidden_layers";
  if (a.rms_norm_eps != b.rms_norm_eps) return "rms_norm_eps";
  if (a.tensor_prefix != b.tensor_prefix) return "prefix of tensors";
  for (size_t i = 0; i < a.layers.size(); ++i) {
    if (!(a.layers[i] == b.layers[i])) return fmt::format("layer {}", i);
  }
  if (!(a.mtp_layer == b.mtp_layer)) return "draft module";
  if (a.dspark != b.dspark) return "DSpark drafter";
  return "";
}

/// The config of a folder of weights for the network that runs: that one's, with the folder's
/// quantization where it has a config of its own.
ModelConfig ConfigOf(const std::string& folder, const ModelConfig& runs) {
  if (!std::filesystem::is_directory(folder)) throw NotFound("{}: is no folder", folder);
  ModelConfig config = runs;
  if (!std::filesystem::exists(std::filesystem::path(folder) / "config.json")) return config;
  const ModelConfig own = ReadModelConfig(folder);
  if (const std::string what = Difference(own, runs); !what.empty()) {
    throw InvalidArgument(
        "{}/config.json: describes another network than the one that runs (its {} differs): only "
        "weights of the same network can take the place of others",
        folder, what);
  }
  config.quantization = own.quantization;
  config.dtype = own.dtype;
  return config;
}

}  // namespace

ExecutorMaker::ExecutorMaker(EngineOptions options, EnginePlan plan, std::vector<const Ops*> ops,
                             Checkpoints checkpoints)
    : options_(std::move(options)),
      plan_(std::move(plan)),
      ops_(std::move(ops)),
      checkpoints_(std::move(checkpoints)),
      folders_{options_.model,
               checkpoints_.facts.drafter ? options_.speculation.model : std::string()} {}

void ExecutorMaker::ReadWeights(std::vector<std::unique_ptr<Ops>> own_ops,
                                const LoadProgress& progress) {
  OUTRIDER_CHECK(ranks_.empty() && std::cmp_equal(ops_.size(), plan_.ranks));
  const ModelFacts& facts = checkpoints_.facts;
  for (auto& communicator : MakeRankCommunicators(plan_.device, ops_)) {
    const RankPlace place = communicator->place();
    const Ops& ops = *ops_[static_cast<size_t>(place.rank)];
    const int32_t head_ranks = plan_.cache_ranks > 1 ? 1 : place.ranks;
    PreparePrompts(ops, OfOneRank(facts.config, head_ranks));
    if (facts.drafter) PreparePrompts(ops, OfOneRank(facts.drafter->config, head_ranks));
    RankParts& rank = ranks_.emplace_back();
    if (!own_ops.empty()) rank.ops = std::move(own_ops[static_cast<size_t>(place.rank)]);
    if (place.ranks > 1) rank.ranks = std::move(communicator);
    const ComputeThreads threads = ThreadsOf(plan_.threads, place);
    rank.pool = std::make_unique<ThreadPool>(threads.count, threads.processors);
    rank.processors = ProcessorsOf(place);
    rank.acceptance = plan_.drafts.acceptance;
    rank.probabilistic_drafts = options_.speculation.probabilistic_drafts;
    rank.logprobs_mode = options_.logprobs_mode;
    rank.num_slots = options_.max_num_seqs;
    devices_.push_back({ops, rank.pool.get(), rank.ranks.get(), rank.between_launches.get()});
  }
  weights_ = Read(checkpoints_, progress);
  checkpoints_.model.reset();
  checkpoints_.drafter.reset();
}

std::vector<int> ExecutorMaker::ProcessorsOf(const RankPlace& place) const {
  if (plan_.device != DeviceKind::kCpu || place.ranks == 1) return {};
  return ThreadsOf(plan_.threads, place).processors;
}

std::vector<int64_t> ExecutorMaker::DrafterBytes(const Checkpoints& checkpoints) const {
  std::vector<int64_t> bytes(devices_.size(), 0);
  const auto& drafter = checkpoints.facts.drafter;
  if (!drafter) return bytes;
  WeightForm form = plan_.numbers.weights;
  for (size_t i = 0; i < bytes.size(); ++i) {
    form.place = devices_[i].place();
    bytes[i] = Eagle3StoredBytes(devices_[i].ops, drafter->config, *checkpoints.drafter, form);
  }
  return bytes;
}

std::vector<ExecutorMaker::RankWeights> ExecutorMaker::Read(const Checkpoints& checkpoints,
                                                            const LoadProgress& progress) const {
  const auto ranks = static_cast<int32_t>(devices_.size());
  const ModelFacts& facts = checkpoints.facts;
  const WeightForm& form = plan_.numbers.weights;
  std::vector<RankWeights> weights(devices_.size());
  RanksProgress read(DrafterBytes(checkpoints), progress);
  ThreadPool(ranks).ParallelForThrowing(ranks, [&](int64_t i) {
    const Device& device = devices_[static_cast<size_t>(i)];
    device.ops.UseOnThisThread();
    const MemoryNodes nodes(MemoryNodesOf(ProcessorsOf(device.place())));
    RankWeights& own = weights[static_cast<size_t>(i)];
    own.model =
        LoadNetwork(facts.config, plan_.drafts.modules, *checkpoints.model, form,
                    {device, plan_.numbers.dtype,
                     AttentionPlan(options_.attention_backend, 1 + plan_.drafts.k, plan_.form.paths,
                                   plan_.cache_ranks > 1 ? device.place() : RankPlace())},
                    read.OfModel(device.place().rank));
    if (plan_.drafts.type == DrafterType::kBlocks) own.blocks = own.model->MakeBlockDraftModel();
    if (!facts.drafter) return;
    const ModelConfig& drafter = facts.drafter->config;
    own.draft_model =
        std::make_unique<Eagle3DraftModel>(drafter, plan_.drafts.taps,
                                           LoadEagle3(drafter, *checkpoints.drafter, form, device,
                                                      read.OfDrafter(device.place().rank)),
                                           *own.model);
  });
  ops_.front()->UseOnThisThread();
  return weights;
}

void ExecutorMaker::WarmUpDevice(const SchedulerConfig& scheduler) {
  if (plan_.device == DeviceKind::kCpu) return;
  try {
    if (weights_.size() == 1) return WarmUpRank(weights_.front(), scheduler);
    WaitForPromptPlans(plan_.device, ops_);
    // Passes of ranks meet, so each needs a thread from beginning to end.
    std::mutex mutex;
    std::exception_ptr first_error;
    std::vector<std::jthread> threads;
    threads.reserve(weights_.size());
    for (size_t r = 0; r < weights_.size(); ++r) {
      threads.emplace_back([&, r] {
        const Device& device = devices_[r];
        try {
          device.ops.UseOnThisThread();
          WarmUpRank(weights_[r], scheduler);
        } catch (const std::exception& error) {
          const std::lock_guard lock(mutex);
          if (!first_error) first_error = std::current_exception();
          device.ranks->End(error.what());
        }
      });
    }
    threads.clear();
    if (first_error) std::rethrow_exception(first_error);
  } catch (const OutOfMemory& error) {
    throw OutOfMemory(fmt::format(
        "the work space of the largest step does not fit beside the weights ({}): lower "
        "--max-model-len, --max-num-batched-tokens or --max-num-seqs",
        error.what()));
  }
}

void ExecutorMaker::WarmUpRank(RankWeights& rank, const SchedulerConfig& scheduler) const {
  const auto& layers = plan_.cache.layers;
  const CacheNumbers numbers = plan_.numbers.cache();
  const bool blocks = plan_.drafts.type == DrafterType::kBlocks;
  WarmUp(*rank.model, scheduler, plan_.drafts.k, rank.model->num_mtp_modules() > 0 && !blocks,
         layers, numbers);
  const int64_t width = rank.model->hidden_size();
  if (blocks) {
    WarmUp(*rank.blocks, width, rank.blocks->block_size(), scheduler, layers, numbers);
  } else if (rank.draft_model != nullptr) {
    WarmUp(*rank.draft_model, width, /*rows=*/1, scheduler, layers, numbers);
  }
}

std::unique_ptr<Drafter> ExecutorMaker::MakeDrafter(RankParts& rank, RankWeights weights) const {
  const SpeculationOptions& options = options_.speculation;
  const int32_t k = plan_.drafts.k;
  const ModuleDrafterOptions modules = {.k = k,
                                        .num_slots = options_.max_num_seqs,
                                        .form = options.draft_form,
                                        .kept_rows = plan_.cache.kept_rows};
  switch (plan_.drafts.type) {
    case DrafterType::kNone:
      return nullptr;
    case DrafterType::kNgram:
      return std::make_unique<NgramDrafter>(k, options.prompt_lookup_min,
                                            options.prompt_lookup_max);
    case DrafterType::kBlocks:
      return std::make_unique<BlockDrafter>(
          std::move(weights.blocks), *rank.cache,
          BlockDrafterOptions{.k = k, .form = options.draft_form});
    case DrafterType::kChain:
      return std::make_unique<ChainDrafter>(
          std::make_unique<MtpDraftModel>(*rank.model, options.draft_vocab_size), *rank.cache,
          modules);
    case DrafterType::kRepeated:
      if (!weights.draft_model) {
        weights.draft_model =
            std::make_unique<MtpDraftModel>(*rank.model, options.draft_vocab_size);
      }
      return std::make_unique<RepeatedDrafter>(std::move(weights.draft_model), *rank.cache,
                                               modules);
  }
  OUTRIDER_CHECK(false);
}

void ExecutorMaker::MakeCaches(const CacheConfig& cache) {
  OUTRIDER_CHECK(!ranks_.empty() && caches_.empty());
  for (size_t r = 0; r < ranks_.size(); ++r) {
    ops_[r]->UseOnThisThread();
    const MemoryNodes nodes(MemoryNodesOf(ProcessorsOf(devices_[r].place())));
    ranks_[r].cache =
        std::make_unique<KvCache>(devices_[r], cache, plan_.cache.layers, plan_.numbers.cache());
    caches_.push_back(ranks_[r].cache.get());
  }
  ops_.front()->UseOnThisThread();
}

std::unique_ptr<Executor> ExecutorMaker::Make() {
  OUTRIDER_CHECK(!caches_.empty() && weights_.size() == ranks_.size());
  drafters_.clear();
  for (size_t r = 0; r < ranks_.size(); ++r) {
    RankParts& rank = ranks_[r];
    ops_[r]->UseOnThisThread();
    rank.model = std::move(weights_[r].model);
    rank.drafter = MakeDrafter(rank, std::move(weights_[r]));
    drafters_.push_back(rank.drafter.get());
  }
  ops_.front()->UseOnThisThread();
  weights_.clear();
  if (step_times_) SetStepTimes(*step_times_);
  auto executor = std::make_unique<StepRunner>(std::exchange(ranks_, {}));
  runner_ = executor.get();
  if (plan_.device == DeviceKind::kCpu) return executor;
  return std::make_unique<QueuedExecutor>(std::move(executor));
}

void ExecutorMaker::SetStepTimes(const StepTimes& times) {
  step_times_ = times;
  for (Drafter* drafter : drafters_) drafter->SetStepTimes(times);
}

void ExecutorMaker::CheckCanChange() const {
  if (plan_.device == DeviceKind::kCpu) return;
  throw InvalidArgument(
      "on a GPU weights and cache stay where they are: start a server with the other weights");
}

void ExecutorMaker::ReadOtherWeights(const WeightFolders& folders) {
  CheckCanChange();
  const bool has_drafter = checkpoints_.facts.drafter.has_value();
  if (!has_drafter && !folders.drafter.empty()) {
    throw InvalidArgument("{}: nothing drafts here with a checkpoint of its own", folders.drafter);
  }
  WeightFolders read = folders;
  if (has_drafter && read.drafter.empty()) read.drafter = folders_.drafter;
  Checkpoints others = {.facts = checkpoints_.facts, .model = nullptr, .drafter = nullptr};
  const auto open = [](const std::string& folder, ModelConfig& config) {
    config = ConfigOf(folder, config);
    return OpenCheckpoint(folder, config);
  };
  others.model = open(read.model, others.facts.config);
  if (has_drafter) others.drafter = open(read.drafter, others.facts.drafter->config);
  CheckFits(read, others);
  weights_ = Read(others, nullptr);
  folders_ = std::move(read);
}

void ExecutorMaker::CheckFits(const WeightFolders& folders, const Checkpoints& checkpoints) const {
  const int64_t bytes =
      MeasureWeights(*ops_.front(), checkpoints, plan_, plan_.numbers.weights).all_ranks();
  const std::optional<HostMemory> memory = AvailableHostMemory();
  if (!memory || bytes <= memory->available) return;
  throw Error(ErrorCode::kUnavailable,
              fmt::format("{}: its weights take {}, but {} are {}: give memory back first, with "
                          "/sleep?tags=weights or tags=kv_cache",
                          folders.model, ByteSizeText(bytes), ByteSizeText(memory->available),
                          memory->limit));
}

void ExecutorMaker::TakeApart(std::unique_ptr<Executor> executor) {
  OUTRIDER_CHECK(executor.get() == runner_ && ranks_.empty());
  ranks_ = runner_->TakeApart();
  executor.reset();
  drafters_.assign(ranks_.size(), nullptr);
  for (RankParts& rank : ranks_) {
    rank.drafter.reset();
    rank.model.reset();
  }
}

void ExecutorMaker::FreeCache() {
  CheckCanChange();
  for (KvCache* cache : caches_) cache->FreeMemory();
}

void ExecutorMaker::RestoreCache() {
  for (KvCache* cache : caches_) cache->RestoreMemory();
}

}  // namespace outrider
