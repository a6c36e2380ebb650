// The golden texts of models whose rows choose what they read, in sizes that a GPU takes: what a
// device of bfloat16 numbers makes of them, beside the golden file, for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/networks/cpu_network.h"
#include "tests/networks/golden_file.h"
#include "tests/networks/loaded_model.h"
#include "tests/networks/near_ties.h"
#include "tests/networks/recorded_choices.h"

namespace outrider {

inline constexpr const char* kSparseGoldens[] = {"tiny-v32-gpu", "tiny-glm-dsa-gpu"};
inline constexpr int32_t kSparseGoldenBlock = 64;
inline constexpr int32_t kSparseGoldenRows = 50;  // of a pass

/// What a device gave of a text. Logits [length, vocabulary] of the target and of the MTP module,
/// whose last row sees no next token of the text and means nothing.
struct SparseGoldenRun {
  std::vector<float> target, module;
  ChoiceLog choices;  // of the target's layers, then of the module's
};

/// A checkpoint of tests/golden with its module, and its golden file.
class SparseGolden {
 public:
  explicit SparseGolden(const char* name)
      : config_(ReadModelConfig(CheckpointDirectory(name))),
        source_(OpenCheckpoint(CheckpointDirectory(name), config_)),
        golden_(GoldenDirectory() / name / "golden.safetensors") {
    OUTRIDER_CHECK(CountMtpLayers(*source_, config_) == 1);
  }

  const ModelConfig& config() const { return config_; }
  const WeightSource& source() const { return *source_; }

  /// Whether there is such a case, which a request then is of. `prompt`: all of it; else nothing.
  bool HasCase(int c) const { return golden_.Has(fmt::format("case{}.ids", c)); }
  KnownRequest Request(int c, bool prompt) const {
    KnownRequest request;
    request.tokens = golden_.Read<int32_t>(fmt::format("case{}.ids", c));
    request.length = static_cast<int32_t>(request.tokens.size());
    request.prompt = prompt ? request.length : 0;
    request.tables = {FirstBlocks(request.length / kSparseGoldenBlock + 1)};
    request.tokens.resize(request.tokens.size() + 4, 0);
    return request;
  }

  /// What a CPU gives whose operations take choices down in the run's log: make_ops(log).
  template <typename MakeOps>
  SparseGoldenRun RunOnCpu(const KnownRequest& request, DType dtype,
                           const MakeOps& make_ops) const {
    SparseGoldenRun run{{}, {}, ChoiceLog(request.tables[0])};
    const auto ops = make_ops(run.choices);
    CpuNetwork network(config_, *source_, 1, dtype, static_cast<int32_t>(request.tables[0].size()),
                       kSparseGoldenBlock, ops);
    BatchLayout layout(network.cache_config().groups);
    for (int32_t first = 0; first < request.length; first += kSparseGoldenRows) {
      const int32_t count = std::min(kSparseGoldenRows, request.length - first);
      run.choices.BeginPass(first);
      layout.Assign(std::vector{request.Work(0, first, count, 0)});
      const std::vector<float> hidden = network.Forward(layout).back();
      Append(run.target, network.Logits(hidden));
      layout.Assign(std::vector{request.Work(0, first, count, 1)});
      Append(run.module, network.Logits(network.ForwardMtp(0, layout, hidden)));
    }
    return run;
  }

  /// Expects the log-probabilities of the golden file, of a row's likeliest tokens and of its next
  /// one, to within 2e-2. A row whose choice is not float32's has to have chosen a near-tie, is
  /// compared with a CPU in float32 that reads what the device chose, and is printed; of the rows
  /// that choose three in four have to be the file's.
  void Judge(int c, const KnownRequest& request, const SparseGoldenRun& device,
             const DotBound& dot_bound, const std::string& what) const {
    const SparseGoldenRun own =
        RunOnCpu(request, DType::kF32, [](ChoiceLog& log) { return RecordingOps<ExactOps>(log); });
    const SparseGoldenRun followed = RunOnCpu(request, DType::kF32, [&](ChoiceLog& log) {
      return FollowingOps<ExactOps>(log, device.choices);
    });
    ASSERT_EQ(std::ssize(device.choices.layers()), config_.num_hidden_layers() + 1) << what;
    const ChoiceReport highest = CheckHighestChosen(device.choices, dot_bound);
    highest.Print(what + ", by what it was given");
    EXPECT_EQ(highest.problem, "") << what;
    const ChoiceReport near = CheckNearChoices(device.choices, followed.choices, dot_bound);
    near.Print(what + ", beside float32");
    EXPECT_EQ(near.problem, "") << what;

    Errors errors;
    const auto layers = static_cast<size_t>(config_.num_hidden_layers());
    for (const bool module : {false, true}) {
      const auto want =
          golden_.Read<float>(fmt::format("case{}.{}logits", c, module ? "mtp0." : ""));
      const auto vocab = static_cast<size_t>(config_.vocab_size);
      const int32_t end = request.length - (module ? 1 : 0);
      const auto first = end - static_cast<int32_t>(want.size() / vocab);
      for (int32_t r = first; r < end; ++r) {
        const auto row = static_cast<size_t>(r);
        bool equal = true;
        for (size_t l = 0; l < layers + (module ? 1 : 0); ++l) {
          equal = equal && device.choices.layers()[l].rows.at(r).chosen ==
                               own.choices.layers()[l].rows.at(r).chosen;
        }
        const auto of = [&](const SparseGoldenRun& run) {
          return std::span(module ? run.module : run.target).subspan(row * vocab, vocab);
        };
        const std::span<const float> of_file =
            std::span(want).subspan(static_cast<size_t>(r - first) * vocab, vocab);
        const size_t next = row + (module ? 2 : 1);
        const int32_t token = next < static_cast<size_t>(request.length) ? request.tokens[next] : 0;
        const std::string where =
            fmt::format("{}, {} row {}", what, module ? "the module's" : "the target's", r);
        if (!equal) std::printf("near-tie of the choice: %s\n", where.c_str());
        errors.Add(of(device), equal ? of_file : of(followed), static_cast<size_t>(token), where);
        const bool chooses = r >= own.choices.layers()[0].top_k;
        errors.choosing += chooses ? 1 : 0;
        errors.choosing_alike += chooses && equal ? 1 : 0;
      }
    }
    std::printf(
        "%s: log-probabilities off by %.4f at most; %d of %d rows that choose are the file's\n",
        what.c_str(), errors.worst, errors.choosing_alike, errors.choosing);
    EXPECT_GE(errors.choosing_alike * 4, errors.choosing * 3) << what;
  }

 private:
  struct Errors {
    double worst = 0;
    int choosing = 0;  // rows that see more than they may choose
    int choosing_alike = 0;

    void Add(std::span<const float> got, std::span<const float> want, size_t next,
             const std::string& where) {
      const std::vector<double> a = LogSoftmax(got);
      const std::vector<double> b = LogSoftmax(want);
      const auto likeliest = [](const std::vector<double>& row) {
        return static_cast<size_t>(std::ranges::max_element(row) - row.begin());
      };
      for (const size_t token : {likeliest(a), likeliest(b), next}) {
        const double error = std::abs(a[token] - b[token]);
        EXPECT_LT(error, 2e-2) << where << ", token " << token << ": " << b[token];
        worst = std::max(worst, std::isnan(error) ? INFINITY : error);
      }
    }
  };

  static void Append(std::vector<float>& all, const std::vector<float>& more) {
    all.insert(all.end(), more.begin(), more.end());
  }

  ModelConfig config_;
  std::unique_ptr<WeightSource> source_;
  GoldenFile golden_;
};

}  // namespace outrider
