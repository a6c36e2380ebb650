// Random requests through random engines: together, with speculation, batching, chunks, preemption,
// prefix hits, priorities, grammars and aborts, against each alone without any of it. Tokens and
// logprob bits must be equal.
//
//   outrider_exactness_fuzz [--requests N] [--seconds T] [--seed S] [--round R] [--late 1] [--v4 1]
//                           [--eagle3 1] [--sparse 1] [--step 1] [--hybrid 1] [--device cuda]
//                           [--int4 1] [--fp8-cache 1] [--ranks N] [--divided 1] [--engines N]
//                           [--servings N] [--model DIRECTORY]
//
// A round draws requests, N random engines for them, and how each of these serves them N times: in
// which order, with which priorities, salts, numbers of drafts and aborts, and how many steps are
// made between two. What the requests give alone is found once a round. A request counts once for
// each serving: with --engines 8 --servings 4 most of the time goes into what is tested, and not
// into single requests, which take most of it on a GPU otherwise (tools/fuzz_gpus.py).
//
// For half of the engines pages that a request gets hold NaN until they are written, and the host
// and the device stop at random moments.
//
// With --v4 1 all models are DeepSeek-V4s, half of the rounds over the bundled checkpoints.
//
// With --eagle3 1 all drafters are EAGLE-3 drafters, half of the rounds with the bundled one; with
// --sparse 1 too, those of its models that may have one.
//
// With --sparse 1 all models are DeepSeek-V3.2s and GLM-5s, whose rows read 12 tokens; in half of
// the rounds over FP8 caches.
//
// With --fp8-cache 1 all models have FP8 caches.
//
// With --step 1 all models are Step-3.5s.
//
// With --hybrid 1 all models have linear attention: Kimi-Linears and Ling-3.0s.
//
// With --ranks N the processor's threads are N ranks that share each model that they can share (the
// small ones have heads enough); each request alone runs on one. With --device cuda ranks are
// spread over the GPUs that there are, several on each where these are fewer. With --divided 1 each
// rank keeps the cache of its own requests (--data-parallel-attention).
//
// With --late 1 results of steps come one step late (LateExecutor, in every other round
// QueuedExecutor): the next step is planned and launched while one is in flight; and drafts stay on
// the device, as far as the processor can play one (TokenKeepingOps). With --device cuda
// the bundled model runs on a GPU, over a QueuedExecutor; with --int4 1 with its routed experts
// rounded to INT4, beside the rest in bfloat16; with --step 1 a Step-3.5; with --sparse 1 a
// DeepSeek-V3.2 or a GLM-5, over caches in bfloat16 and FP8; with --v4 1 the bundled DeepSeek-V4s,
// with an MTP module or a DSpark drafter, over bfloat16 caches; with --hybrid 1 a Kimi-Linear or a
// Ling-3.0, on one rank the bundled one, too, in FP8 and INT4, and one with FP4 experts.
//
// With --model all rounds run the model of the directory's config.json with random weights: of a
// vocabulary of at least 1600 tokens. Its drafters are its modules, prompt lookup and EAGLE-3.
//
// Ends after N requests or T seconds, whichever comes first; exit status 1 at the first difference,
// with its round: --round R begins with that.
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/engine/fuzz_rounds.h"

namespace outrider::fuzz {
namespace {

constexpr int64_t kMostServings = 1000;

[[noreturn]] void RefuseArguments() {
  fmt::print(stderr,
             "usage: outrider_exactness_fuzz [--requests N] [--seconds T] [--seed S] [--round R] "
             "[--late 1] [--v4 1] [--eagle3 1] [--sparse 1] [--int4 1] [--step 1] [--hybrid 1] "
             "[--fp8-cache 1] [--ranks N] [--divided 1] [--engines N] [--servings N] "
             "[--model DIRECTORY] [--device cpu|cuda]\n");
  std::exit(2);
}

Arguments ParseArguments(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    if (i + 1 == argc) RefuseArguments();
    const std::string_view text = argv[i + 1];
    if (name == "--device" && (text == "cpu" || text == "cuda")) {
      arguments.device = text == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu;
      continue;
    }
    if (name == "--model") {
      arguments.model = text;
      continue;
    }
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 0) RefuseArguments();
    if (name == "--requests") {
      arguments.requests = value;
    } else if (name == "--seconds") {
      arguments.seconds = value;
    } else if (name == "--seed") {
      arguments.seed = static_cast<uint32_t>(value);
    } else if (name == "--round") {
      arguments.round = static_cast<uint32_t>(value);
    } else if (name == "--ranks" && value >= 1 && value <= kMostRanks) {
      arguments.ranks = static_cast<int32_t>(value);
    } else if (name == "--engines" && value >= 1 && value <= kMostServings) {
      arguments.engines = static_cast<int32_t>(value);
    } else if (name == "--servings" && value >= 1 && value <= kMostServings) {
      arguments.servings = static_cast<int32_t>(value);
    } else if (name == "--divided") {
      arguments.divided = value != 0;
    } else if (name == "--late") {
      arguments.late = value != 0;
    } else if (name == "--v4") {
      arguments.v4 = value != 0;
    } else if (name == "--sparse") {
      arguments.sparse = value != 0;
    } else if (name == "--int4") {
      arguments.int4 = value != 0;
    } else if (name == "--fp8-cache") {
      arguments.fp8_cache = value != 0;
    } else if (name == "--step") {
      arguments.step = value != 0;
    } else if (name == "--hybrid") {
      arguments.hybrid = value != 0;
    } else if (name == "--eagle3") {
      arguments.eagle3 = value != 0;
    } else {
      RefuseArguments();
    }
  }
  if (arguments.eagle3 && arguments.v4) {
    fmt::print(stderr, "outrider_exactness_fuzz: --eagle3 and --v4 have models of their own\n");
    std::exit(2);
  }
  if (arguments.requests == INT64_MAX && arguments.seconds == INT64_MAX) arguments.seconds = 60;
  return arguments;
}

int Main(int argc, char** argv) {
  const Arguments arguments = ParseArguments(argc, argv);
  // Recorded steps of ranks that share a GPU wait for each other there: each needs a queue.
  if (arguments.ranks > 1) setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  Rounds rounds(arguments);
  const Counts& counts = rounds.counts();
  double next_line = 10;
  const uint32_t first_round = arguments.round.value_or(arguments.seed * 1000000);
  uint32_t round = first_round;
  while (!rounds.IsDone()) {
    rounds.Run(round++);
    if (rounds.Elapsed() >= next_line) {
      fmt::print("{:.0f} s: {} requests equal\n", rounds.Elapsed(), counts.requests);
      std::fflush(stdout);
      next_line = rounds.Elapsed() + 10;
    }
  }
  const References& alone = rounds.references();
  fmt::print(
      "{:.1f} s to make engines, {:.1f} s for {} steps of them, {:.1f} s for {} steps of {} "
      "requests alone\n",
      counts.making_seconds, counts.serving_seconds, counts.steps, alone.seconds(), alone.steps(),
      alone.requests());
  fmt::print(
      "{} requests in {} rounds equal (seed {}, {:.0f} s; {} with grammars, {} preemptions, {} "
      "cached tokens, {} that came back, {} drafts accepted)\n",
      counts.requests, round - first_round, arguments.seed, rounds.Elapsed(), counts.with_grammar,
      counts.preemptions, counts.cached_tokens, counts.returned_tokens, counts.accepted);
  return 0;
}

}  // namespace
}  // namespace outrider::fuzz

int main(int argc, char** argv) {
  try {
    return outrider::fuzz::Main(argc, argv);
  } catch (const outrider::fuzz::Different& difference) {
    fmt::print("{}\n", difference.what());
    return 1;
  } catch (const outrider::Error& error) {
    fmt::print(stderr, "outrider_exactness_fuzz: error: {}\n", error.what());
    return 2;
  }
}
