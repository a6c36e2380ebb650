// Once requests decode, a step allocates nothing: plan, layout, model, sampling, drafting, commit.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/engine/test_engine.h"

namespace {

std::atomic<int64_t> allocations{0};
std::atomic<bool> counting{false};

void* Allocate(size_t bytes, size_t alignment) {
  if (counting.load(std::memory_order_relaxed)) ++allocations;
  void* p = alignment <= alignof(std::max_align_t)
                ? std::malloc(bytes)
                : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) { return Allocate(bytes, 1); }
[[gnu::noinline]] void* operator new[](size_t bytes) { return Allocate(bytes, 1); }
[[gnu::noinline]] void* operator new(size_t bytes, std::align_val_t a) {
  return Allocate(bytes, static_cast<size_t>(a));
}
[[gnu::noinline]] void* operator new[](size_t bytes, std::align_val_t a) {
  return Allocate(bytes, static_cast<size_t>(a));
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, size_t, std::align_val_t) noexcept {
  std::free(p);
}

namespace outrider {
namespace {

class AllocationTest : public testing::TestWithParam<DrafterKind> {};

// One thread: with more, a thread's own buffers grow when it first meets the largest task, whenever
// that is.
TEST_P(AllocationTest, DecodeStepsAllocateNothing) {
  const auto engine =
      MakeTestEngine({.drafter = GetParam(), .k = 3, .num_blocks = 1024, .threads = 1});
  int64_t emitted = 0;
  for (int i = 0; i < 12; ++i) {
    GenerationRequest request;
    for (int t = 0; t < 20; ++t) request.prompt_token_ids.push_back(6 + (t * 31 + i * 7) % 1500);
    request.sampling.temperature = i % 3 == 0 ? 0.0F : 0.8F;
    if (i % 3 == 1) request.sampling.top_p = 0.9F;
    if (i % 3 == 2) request.sampling.frequency_penalty = 0.3F;
    request.sampling.max_tokens = 900;
    request.sampling.ignore_eos = true;
    engine->Submit(request, [&emitted](RequestId, OutputDelta&& delta) {
      emitted += static_cast<int64_t>(delta.token_ids.size());
    });
  }
  // Buffers reach their sizes; with prompt lookup the texts must have grown until it finds drafts
  // for all requests in one step.
  for (int i = 0; i < 150; ++i) engine->Step();
  const int64_t before = emitted;
  counting = true;
  for (int i = 0; i < 30; ++i) engine->Step();
  counting = false;
  EXPECT_EQ(allocations.exchange(0), 0);
  EXPECT_GE(emitted - before, 12 * 30);
  // Nor does somebody who watches make it allocate.
  const StepLog::Listener listener(engine->step_log());
  counting = true;
  for (int i = 0; i < 5; ++i) engine->Step();
  counting = false;
  EXPECT_EQ(allocations.exchange(0), 0);
}

TEST(AllocationTest, TheCounterCounts) {
  counting = true;
  const std::vector<int> memory(100);
  counting = false;
  EXPECT_EQ(allocations.exchange(0), 1);
  EXPECT_EQ(memory[3], 0);
}

INSTANTIATE_TEST_SUITE_P(Drafters, AllocationTest,
                         testing::Values(DrafterKind::kNone, DrafterKind::kChain,
                                         DrafterKind::kRepeated, DrafterKind::kNgram),
                         [](const auto& test) {
                           return std::to_string(static_cast<int>(test.param));
                         });

}  // namespace
}  // namespace outrider
