// Prefix caching seen from the scheduler: scenarios, then random workloads over a symbolic cache
// whose cells hold a hash of exactly the tokens that the real entry would depend on. Long
// because that cache is written out here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "outrider/kv/memory_page_store.h"
#include "outrider/kv/page_number.h"
#include "outrider/schedule/scheduler.h"
#include "tests/schedule/random_groups.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;

SchedulerConfig Config(int32_t tokens_ahead) {
  return {.cache = FullHistoryCache(16, 4),
          .max_num_seqs = 4,
          .max_num_batched_tokens = 128,
          .max_model_len = 60,
          .lookahead_tokens = 0,
          .tokens_ahead = tokens_ahead};
}

/// A scheduler and requests with tokens; the test decides what is accepted.
class World {
 public:
  explicit World(const SchedulerConfig& config)
      : config_(config),
        scheduler_(config),
        hasher_(config.cache.TokensPerKey(), config.tokens_ahead) {}

  Scheduler& scheduler() { return scheduler_; }

  const StepPlan& plan() const { return plan_; }

  void Add(RequestId id, std::vector<int32_t> prompt, std::string_view salt = "",
           int32_t most_shared = std::numeric_limits<int32_t>::max()) {
    Request& r = requests_[id];
    r.prompt_length = static_cast<int32_t>(prompt.size());
    r.tokens = std::move(prompt);
    r.keys = hasher_.Start(salt);
    hasher_.Extend(r.tokens, r.keys);
    scheduler_.Add(
        {.id = id, .prompt_length = r.prompt_length, .keys = &r.keys, .most_shared = most_shared});
  }

  /// Plans; the cached tokens of each admitted request.
  std::map<RequestId, int32_t> Plan() {
    plan_ = scheduler_.Plan();
    std::map<RequestId, int32_t> cached;
    for (const Admission& a : plan_.admitted) cached[a.id] = a.cached_tokens;
    return cached;
  }

  /// Every sampled request gets `token` and no drafts.
  void Commit(int32_t token) {
    for (const PlannedRequest& planned : plan_.requests) {
      Request& r = requests_.at(planned.id);
      if (planned.samples) r.tokens.push_back(token);
      hasher_.Extend(r.tokens, r.keys);
      scheduler_.Commit(planned, 0, planned.samples ? 1 : 0, 0);
    }
  }

  void Finish(RequestId id) {
    scheduler_.Remove(id);
    requests_.erase(id);
  }

 private:
  struct Request {
    int32_t prompt_length = 0;
    std::vector<int32_t> tokens;
    BlockKeys keys;
  };

  SchedulerConfig config_;
  Scheduler scheduler_;
  BlockKeyHasher hasher_;
  std::map<RequestId, Request> requests_;
  StepPlan plan_;
};

std::vector<int32_t> Tokens(int32_t count, int32_t first = 0) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

TEST(PrefixCachingTest, AnEqualPromptStartsAfterTheCachedBlocks) {
  World world(Config(0));
  world.Add(1, Tokens(10));
  EXPECT_EQ(world.Plan().at(1), 0);
  world.Commit(99);
  world.Add(2, Tokens(10));
  world.Add(3, Tokens(8));             // its last token must be computed: one block of two
  world.Add(4, Tokens(10), "secret");  // another salt
  const auto cached = world.Plan();
  EXPECT_EQ(cached.at(2), 8);
  EXPECT_EQ(cached.at(3), 4);
  EXPECT_EQ(cached.at(4), 0);
}

TEST(PrefixCachingTest, TheBlocksOfALastStepAreFound) {
  World world(Config(0));
  world.Add(1, Tokens(10));
  world.Plan();
  world.Commit(99);
  world.Finish(1);
  world.Add(2, Tokens(10));
  EXPECT_EQ(world.Plan().at(2), 8);
}

TEST(PrefixCachingTest, WhoWantsAllRowsPublishesAndSharesNothing) {
  World world(Config(0));
  world.Add(1, Tokens(10), "", /*most_shared=*/0);
  world.Plan();
  world.Commit(99);
  world.Add(2, Tokens(10), "", /*most_shared=*/0);
  world.Add(3, Tokens(10));
  const auto cached = world.Plan();
  EXPECT_EQ(cached.at(2), 0);
  EXPECT_EQ(cached.at(3), 8);
}

TEST(PrefixCachingTest, PlansSayWhetherALastStepWouldPublish) {
  SchedulerConfig config = Config(0);
  config.publish_answers = false;
  config.max_num_batched_tokens = 4;
  World world(config);
  world.Add(1, Tokens(7));
  const auto publishes = [&] {
    world.Plan();
    const bool does = world.plan().requests.front().publishes;
    world.Commit(99);
    return does;
  };
  EXPECT_TRUE(publishes());
  EXPECT_FALSE(publishes());  // three tokens are no block
  EXPECT_FALSE(publishes());  // an answer
}

TEST(PrefixCachingTest, TheDrafterSeesTheTokensAfterAHit) {
  // Entries of the drafter depend on three tokens ahead: a block is found only by prompts that
  // continue as its writer's did.
  World world(Config(3));
  std::vector<int32_t> longer = Tokens(12);
  world.Add(1, longer);
  world.Plan();
  world.Commit(99);
  world.Add(2, longer);  // 12 - 3 leaves two blocks
  longer[9] = 77;
  world.Add(3, longer);  // differs two tokens after block 1
  const auto cached = world.Plan();
  EXPECT_EQ(cached.at(2), 8);
  EXPECT_EQ(cached.at(3), 4);
  world.Commit(99);
  // Request 3 could not use block 1, so it published its own version of it.
  world.Finish(1);
  world.Finish(2);
  world.Add(4, longer);
  EXPECT_EQ(world.Plan().at(4), 8);
}

TEST(PrefixCachingTest, AnswersAreCachedWhereTheyMayBe) {
  for (const bool answers : {true, false}) {
    SchedulerConfig config = Config(1);
    config.publish_answers = answers;
    World world(config);
    world.Add(1, Tokens(6));
    for (int32_t token = 6; token < 15; ++token) {
      world.Plan();
      world.Commit(token);
    }
    world.Finish(1);
    world.Add(2, Tokens(20));
    EXPECT_EQ(world.Plan().at(2), answers ? 12 : 4);
  }
}

TEST(PrefixCachingTest, CachedBlocksGiveWayToRunningRequests) {
  SchedulerConfig config = Config(0);
  config.cache.num_pages = 15;  // one request of max_model_len
  World world(config);
  world.Add(1, Tokens(40));
  world.Plan();
  world.Commit(99);
  world.Finish(1);
  EXPECT_EQ(world.scheduler().pool().num_free(), 15);
  world.Add(2, Tokens(50, 1000));
  EXPECT_EQ(world.Plan().at(2), 0);
  world.Commit(99);
  world.Finish(2);
  world.Add(3, Tokens(40));
  // 13 of 15 blocks were taken: 5 unpublished ones first, then the tail of request 1.
  EXPECT_EQ(world.Plan().at(3), 8);
}

TEST(PrefixCachingTest, PrioritiesComeBeforeArrival) {
  SchedulerConfig config = Config(0);
  config.max_num_seqs = 2;
  Scheduler scheduler(config);
  scheduler.Add({.id = 1, .prompt_length = 4, .priority = 5});
  scheduler.Add({.id = 2, .prompt_length = 4});
  scheduler.Add({.id = 3, .prompt_length = 4, .priority = -1});
  std::vector<RequestId> order;
  for (const PlannedRequest& r : scheduler.Plan().requests) order.push_back(r.id);
  EXPECT_THAT(order, ElementsAre(3, 2));
}

/// FNV-1a over tokens [0, end).
uint64_t HashOf(const std::vector<int32_t>& tokens, int32_t end) {
  uint64_t hash = 1469598103934665603ULL;
  for (int32_t i = 0; i < end; ++i) {
    hash = (hash ^ static_cast<uint32_t>(tokens.at(static_cast<size_t>(i)))) * 1099511628211ULL;
  }
  return hash;
}

/// Copies the cells of pages.
class SymbolicPages : public PageAccess {
 public:
  /// before_copy: is called before each copy.
  SymbolicPages(std::vector<uint64_t>& target, std::vector<uint64_t>& drafter, size_t per_page,
                std::function<void()> before_copy)
      : cells_{&target, &drafter}, per_page_(per_page), before_copy_(std::move(before_copy)) {}

  int64_t page_bytes() const { return static_cast<int64_t>(2 * Bytes()); }
  void ReadPage(int32_t page, std::span<std::byte> to) override {
    before_copy_();
    for (size_t i = 0; i < 2; ++i) std::memcpy(&to[i * Bytes()], At(i, page), Bytes());
  }
  void WritePage(int32_t page, std::span<const std::byte> from) override {
    before_copy_();
    for (size_t i = 0; i < 2; ++i) std::memcpy(At(i, page), &from[i * Bytes()], Bytes());
  }

 private:
  size_t Bytes() const { return per_page_ * sizeof(uint64_t); }
  uint64_t* At(size_t i, int32_t page) {
    return cells_[i]->data() + static_cast<size_t>(page) * per_page_;
  }

  std::array<std::vector<uint64_t>*, 2> cells_;
  size_t per_page_;
  std::function<void()> before_copy_;
};

RC_GTEST_PROP(PrefixCachingProperty, EveryEntryReadIsTheOneThatWouldBeComputed, ()) {
  SchedulerConfig config;
  config.max_model_len = *rc::gen::inRange(12, 60);
  config.max_num_seqs = *rc::gen::inRange(1, 6);
  config.max_num_batched_tokens = *rc::gen::inRange(4, 100);
  config.tokens_ahead = *rc::gen::inRange(0, 4);
  config.publish_answers = *rc::gen::arbitrary<bool>();
  config.max_drafts = 3;
  const int32_t ahead = config.tokens_ahead;
  // The drafter's rows begin up to ahead - 1 before the target's.
  config.cache = RandomCacheGroups(config.max_model_len, config.max_num_batched_tokens + 1,
                                   std::max(ahead - 1, 0));
  config.cache_ranks = *rc::gen::element(1, 1, 2, 3);
  Scheduler scheduler(config);
  BlockKeyHasher hasher(config.cache.TokensPerKey(), ahead);
  const auto num_groups = static_cast<int32_t>(config.cache.groups.size());
  const auto group = [&](int32_t g) { return config.cache.groups[static_cast<size_t>(g)]; };

  struct Request {
    int32_t prompt = 0;
    int32_t limit = 0;
    std::vector<int32_t> tokens;
    BlockKeys keys;
  };
  /// What an executor knows of a request; ahead of the request by the steps in flight.
  struct Slot {
    int32_t prompt = 0;
    int32_t limit = 0;
    std::vector<int32_t> tokens;
    std::vector<int32_t> drafts;
    int32_t computed = 0;
    int32_t drafter_final = 0;  // drafter entries below this position are final
    bool at_end_token = false;
    bool ended() const { return at_end_token || static_cast<int32_t>(tokens.size()) >= limit; }
  };
  struct Outcome {
    bool ran = false;
    int32_t accepted = 0;
    std::vector<int32_t> emitted;
    int32_t num_drafts = 0;
    bool ended = false;  // known to the executor
  };
  struct Step {
    StepPlan plan;
    std::vector<CacheTables> tables;  // as they were when it was launched
    std::vector<Outcome> outcomes;
    bool done = false;
  };
  std::map<RequestId, Request> live;
  std::map<RequestId, Slot> slots;
  // Every group has entries of the target and of the drafter.
  const auto cells = static_cast<size_t>(config.cache_ranks * config.cache.num_pages *
                                         config.cache.TokensPerResume());
  std::vector<uint64_t> target(cells, 0);   // of position p: hash of tokens [0, p]
  std::vector<uint64_t> drafter(cells, 0);  // of position p: hash of tokens [0, p + ahead]
  const auto page = [&](const PlannedRequest& r, int32_t g, int32_t p) {
    return r.tables->blocks(g)[static_cast<size_t>(p / group(g).tokens_per_block)];
  };
  const auto cell = [&](const PlannedRequest& r, int32_t g, int32_t p) {
    RC_ASSERT(page(r, g, p) != CacheTables::kNoPage);
    return static_cast<size_t>(page(r, g, p) * config.cache.TokensPerResume() +
                               p % group(g).tokens_per_block);
  };
  uint64_t state = *rc::gen::arbitrary<uint64_t>();
  const auto random = [&](int32_t low, int32_t high) {  // [low, high]
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return low + static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(high - low + 1));
  };

  const auto run = [&](Step& step) {
    step.outcomes.resize(step.plan.requests.size());
    // What is read is right, also after others have run.
    for (size_t i = 0; i < step.outcomes.size(); ++i) {
      const PlannedRequest& planned = step.plan.requests[i];
      const Slot& r = slots.at(planned.id);
      step.outcomes[i].ran = !r.ended();
      if (r.ended()) continue;
      RC_ASSERT(planned.context_length <= r.computed);
      RC_ASSERT(planned.most_context_length >= r.computed);
      RC_ASSERT(!planned.samples || planned.num_drafts >= static_cast<int32_t>(r.drafts.size()));
      for (int32_t g = 0; g < num_groups; ++g) {
        for (int32_t p = group(g).FirstTokenRead(r.computed); p < r.computed; ++p) {
          RC_ASSERT(target[cell(planned, g, p)] == HashOf(r.tokens, p + 1));
        }
        for (int32_t p = group(g).FirstTokenRead(r.drafter_final); p < r.drafter_final; ++p) {
          RC_ASSERT(drafter[cell(planned, g, p)] == HashOf(r.tokens, p + ahead + 1));
        }
      }
    }
    // All rows write before any request goes on: published blocks are never written.
    for (size_t i = 0; i < step.outcomes.size(); ++i) {
      if (!step.outcomes[i].ran) continue;
      const PlannedRequest& planned = step.plan.requests[i];
      const Slot& r = slots.at(planned.id);
      std::vector<int32_t> with_drafts = r.tokens;
      if (planned.samples) with_drafts.insert(with_drafts.end(), r.drafts.begin(), r.drafts.end());
      const int32_t end = planned.samples ? static_cast<int32_t>(with_drafts.size())
                                          : r.computed + planned.num_tokens;
      for (int32_t g = 0; g < num_groups; ++g) {
        for (int32_t p = r.computed; p < end; ++p) {
          target[cell(planned, g, p)] = HashOf(with_drafts, p + 1);
          if (live.contains(planned.id)) {
            const int32_t written = page(planned, g, p);
            const int32_t rank = RankOfPage(written, config.cache_ranks);
            RC_ASSERT(scheduler.pool(rank).references(written) == 1);
          }
        }
      }
    }
    for (size_t i = 0; i < step.outcomes.size(); ++i) {
      Outcome& outcome = step.outcomes[i];
      if (!outcome.ran) continue;
      const PlannedRequest& planned = step.plan.requests[i];
      Slot& r = slots.at(planned.id);
      if (planned.samples) {
        outcome.accepted = random(0, static_cast<int32_t>(r.drafts.size()));
        outcome.emitted.assign(r.drafts.begin(), r.drafts.begin() + outcome.accepted);
        int32_t next = random(1, 2);
        const auto rejected = static_cast<size_t>(outcome.accepted);
        if (rejected < r.drafts.size() && next == r.drafts[rejected]) next = 3 - next;
        outcome.emitted.push_back(next);
        if (random(0, 19) == 0) {  // one of them ends it
          r.at_end_token = true;
          outcome.emitted.resize(
              static_cast<size_t>(random(1, static_cast<int32_t>(outcome.emitted.size()))));
        }
        r.tokens.insert(r.tokens.end(), outcome.emitted.begin(), outcome.emitted.end());
        const int32_t useful = std::max(r.limit - static_cast<int32_t>(r.tokens.size()) - 1, 0);
        r.drafts.clear();
        for (int32_t n = std::min(random(0, 3), useful); n > 0; --n) {
          r.drafts.push_back(random(1, 2));
        }
        outcome.num_drafts = static_cast<int32_t>(r.drafts.size());
        outcome.ended = r.ended();
      }
      r.computed += planned.num_tokens + outcome.accepted;
      // The drafter sees a request that has ended only if it is published.
      if (outcome.ended && !planned.publishes) continue;
      const auto known = static_cast<int32_t>(r.tokens.size());
      for (int32_t g = 0; g < num_groups; ++g) {
        for (int32_t p = r.drafter_final; p < r.computed; ++p) {
          // Entries that depend on unknown tokens are provisional: any value will do.
          drafter[cell(planned, g, p)] = p + ahead < known ? HashOf(r.tokens, p + ahead + 1) : 7;
        }
      }
      r.drafter_final = std::min(r.computed, std::max(known - ahead, 0));
    }
    step.done = true;
  };

  // What the executor is asked for happens in order, some of it later.
  std::deque<std::function<void()>> queue;
  const auto run_some = [&](int32_t count) {
    for (; count > 0 && !queue.empty(); --count) {
      queue.front()();
      queue.pop_front();
    }
  };
  // A page is copied when all that was asked for before has happened.
  SymbolicPages pages(target, drafter, static_cast<size_t>(config.cache.TokensPerResume()),
                      [&] { run_some(static_cast<int32_t>(queue.size())); });
  std::optional<HostCache> host;
  if (*rc::gen::arbitrary<bool>()) {
    host.emplace(std::make_unique<MemoryPageStore>(*rc::gen::inRange(1, 100), pages.page_bytes()),
                 pages);
    scheduler.SetHostCache(&*host);
  }
  const auto release = [&](RequestId id) { queue.emplace_back([&, id] { slots.erase(id); }); };
  std::deque<std::shared_ptr<Step>> in_flight;
  const auto launch = [&] {
    const auto step = std::make_shared<Step>();
    step->plan = scheduler.Plan();
    for (const RequestId id : step->plan.preempted) release(id);
    for (const Admission& a : step->plan.admitted) {
      const Request& r = live.at(a.id);
      RC_ASSERT(a.cached_tokens < r.prompt);
      const Slot slot = {.prompt = r.prompt,
                         .limit = r.limit,
                         .tokens = r.tokens,
                         .drafts = {},
                         .computed = a.cached_tokens,
                         .drafter_final = a.cached_tokens};
      queue.emplace_back([&, id = a.id, slot] { slots[id] = slot; });
    }
    if (step->plan.requests.empty()) return false;
    step->tables.reserve(step->plan.requests.size());
    for (PlannedRequest& planned : step->plan.requests) {
      step->tables.push_back(*planned.tables);
      planned.tables = &step->tables.back();
    }
    in_flight.push_back(step);
    queue.emplace_back([&, step] { run(*step); });
    return true;
  };
  const auto finish = [&] {
    const auto step = in_flight.front();
    in_flight.pop_front();
    while (!step->done) run_some(1);
    for (size_t i = 0; i < step->outcomes.size(); ++i) {
      const PlannedRequest& planned = step->plan.requests[i];
      if (!live.contains(planned.id)) continue;
      Request& r = live.at(planned.id);
      const Outcome& outcome = step->outcomes[i];
      RC_ASSERT(outcome.ran);
      r.tokens.insert(r.tokens.end(), outcome.emitted.begin(), outcome.emitted.end());
      const bool stops = planned.samples && random(0, 19) == 0;  // as by a stop string
      const bool ends = stops || outcome.ended;
      const auto emitted = static_cast<int32_t>(outcome.emitted.size());
      if (!ends || planned.publishes) {
        hasher.Extend(r.tokens, r.keys);
        const int32_t accepted = planned.samples ? std::min(outcome.accepted, emitted - 1) : 0;
        scheduler.Commit(planned, accepted, emitted, outcome.num_drafts);
      }
      if (!ends) continue;
      scheduler.Remove(planned.id);
      live.erase(planned.id);
      release(planned.id);
    }
  };

  const size_t depth = *rc::gen::element<size_t>(1, 2);
  RequestId next_id = 1;
  for (int step = 0; step < 200; ++step) {
    if (random(0, 1) == 0 && live.size() < 10) {
      Request& r = live[next_id];
      r.prompt = random(1, config.max_model_len - 1);
      r.limit = random(r.prompt + 1, config.max_model_len);
      // Prompts are beginnings of a few texts, so that they share and diverge.
      const int32_t turn = random(0, 2) == 0 ? random(0, r.prompt) : r.prompt;
      for (int32_t i = 0; i < r.prompt; ++i) r.tokens.push_back(i < turn ? 1 : random(1, 2));
      r.keys = hasher.Start(random(0, 9) == 0 ? "salt" : "");
      hasher.Extend(r.tokens, r.keys);
      scheduler.Add({.id = next_id++,
                     .prompt_length = r.prompt,
                     .max_total_tokens = r.limit,
                     .keys = &r.keys});
    }
    if (random(0, 29) == 0 && !live.empty()) {  // aborted
      const RequestId id = live.rbegin()->first;
      scheduler.Remove(id);
      live.erase(id);
      release(id);
    }
    while (in_flight.size() < depth && launch()) {
    }
    run_some(random(0, 3));
    if (!in_flight.empty()) finish();
  }
  while (!live.empty()) {
    scheduler.Remove(live.begin()->first);
    live.erase(live.begin());
  }
  run_some(static_cast<int32_t>(queue.size()));
  for (int32_t rank = 0; rank < config.cache_ranks; ++rank) {
    RC_ASSERT(scheduler.pool(rank).num_free() == config.cache.num_pages);
  }
}

}  // namespace
}  // namespace outrider
