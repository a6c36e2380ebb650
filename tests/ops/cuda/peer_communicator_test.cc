// What ranks on GPUs exchange, with all ranks on device 0; and on 2, 4 and 8 GPUs with one each,
// where there are as many. Needs a GPU of compute capability 9.0. Longer than most files: one case
// per exchange and fault.
#include "outrider/ops/cuda/peer_communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <new>
#include <optional>
#include <random>
#include <thread>

#include "outrider/ops/cuda/device_rows.h"
#include "outrider/ops/cuda/nccl_communicator.h"
#include "outrider/ops/cuda/peer_rows.h"
#include "outrider/ops/replayer.h"
#include "outrider/parallel/nccl_library.h"
#include "tests/kernels/cuda/several_gpus_test.h"

namespace outrider::cuda {
namespace {

using Make = std::vector<std::unique_ptr<Communicator>> (*)(std::span<const CudaOps* const>,
                                                            double);

std::vector<std::unique_ptr<Communicator>> OverPeers(std::span<const CudaOps* const> ranks,
                                                     double seconds) {
  return MakePeerCommunicators(ranks, seconds);
}
std::vector<std::unique_ptr<Communicator>> OverPeersByKernels(std::span<const CudaOps* const> ranks,
                                                              double seconds) {
  return MakePeerCommunicators(ranks, seconds, {.carrier = RowCarrier::kKernels});
}

/// act(context) on a thread of every rank; the ranks take turns on `gpus` GPUs.
void OnRanks(int32_t ranks, double seconds,
             const std::function<void(const Context&, const CudaOps&)>& act, Make make = OverPeers,
             int gpus = 1) {
  std::vector<std::unique_ptr<CudaOps>> ops;
  std::vector<const CudaOps*> pointers;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    ops.push_back(std::make_unique<CudaOps>(rank % gpus, ranks, /*sharers=*/ranks / gpus));
    pointers.push_back(ops.back().get());
  }
  auto communicators = make(pointers, seconds);
  std::vector<std::jthread> threads;
  for (size_t rank = 0; rank < ops.size(); ++rank) {
    threads.emplace_back([&, rank] {
      ops[rank]->UseOnThisThread();
      const std::unique_ptr<Arena> arena = ops[rank]->MakeArena();
      const Context context({*ops[rank], nullptr, communicators[rank].get()}, *arena, DType::kBF16);
      act(context, *ops[rank]);
      ops[rank]->Synchronize();
    });
  }
  threads.clear();
  communicators.clear();
}

class PeerCommunicatorTest : public HopperTest<> {};

/// Ranks that have a GPU each.
class PeersOnGpusTest : public SeveralGpusTest {
 protected:
  int gpus() const { return GetParam(); }
  void OnGpus(double seconds, const std::function<void(const Context&, const CudaOps&)>& act,
              Make make = OverPeers) const {
    OnRanks(gpus(), seconds, act, make, gpus());
  }
};

INSTANTIATE_TEST_SUITE_P(Gpus, PeersOnGpusTest, ::testing::Values(2, 4, 8),
                         ::testing::PrintToStringParamName());

/// What rank `rank` has of row r, column c in call `call`.
float ValueOf(int call, int64_t row, int64_t column) {
  return static_cast<float>((call * 131 + row * 17 + column * 3) % 251);
}

Tensor RowsOnDevice(const Context& context, const CudaOps& ops, int64_t rows, int64_t cols,
                    int64_t stride) {
  auto* const data = context.arena.Take<float>(rows * stride);
  CheckCuda(
      cudaMemsetAsync(data, 0xFF, static_cast<size_t>(rows * stride) * sizeof(float), ops.stream()),
      "NaN");
  return {data, DType::kF32, rows, cols, stride};
}

/// The columns of a share, as the rank has computed them.
void Fill(const CudaOps& ops, const Tensor& part, int call, int64_t first_column) {
  std::vector<float> values(static_cast<size_t>(part.rows * part.cols));
  for (int64_t r = 0; r < part.rows; ++r) {
    for (int64_t c = 0; c < part.cols; ++c) {
      values[static_cast<size_t>(r * part.cols + c)] = ValueOf(call, r, first_column + c);
    }
  }
  if (values.empty()) return;
  CheckCuda(cudaMemcpy2DAsync(part.data, static_cast<size_t>(part.stride) * sizeof(float),
                              values.data(), static_cast<size_t>(part.cols) * sizeof(float),
                              static_cast<size_t>(part.cols) * sizeof(float),
                              static_cast<size_t>(part.rows), cudaMemcpyHostToDevice, ops.stream()),
            "values");
  ops.Synchronize();
}

void ExpectFilled(const Context& context, const CudaOps& ops, const Tensor& all, int call) {
  std::vector<float> got(static_cast<size_t>(all.rows * all.cols));
  ops.ToHost(context, all, got);
  for (int64_t r = 0; r < all.rows; ++r) {
    for (int64_t c = 0; c < all.cols; ++c) {
      ASSERT_EQ(got[static_cast<size_t>(r * all.cols + c)], ValueOf(call, r, c))
          << "call " << call << ", row " << r << ", column " << c;
    }
  }
}

/// Parts at their place and beside it, of all cuts, in calls that follow each other at once; some
/// ranks do not want what comes of it. Later calls have more rows than earlier ones.
void GatherRandomRows(const Context& context, const CudaOps& ops) {
  const int32_t ranks = context.place().ranks;
  std::mt19937 random(7);  // the same on every rank
  for (int call = 0; call < 60; ++call) {
    const Scratch::Frame frame(context.arena);
    auto rows = static_cast<int64_t>(1 + random() % static_cast<uint32_t>(1 + 8 * call));
    const int64_t cols = ranks * static_cast<int64_t>(1 + random() % 300);
    if (call % 12 == 11) rows = 5000 + call;  // mostly so many that they are read where they are
    const Cut cut = random() % 2 == 0 ? Cut::kHeads : Cut::kRows;
    const bool in_place = random() % 2 == 0;
    const bool first_alone = random() % 3 == 0;
    const Share own = OwnShare(context, cut, cols);
    const Tensor all = RowsOnDevice(context, ops, rows, cols, cols + random() % 5);
    Tensor part = all.Columns(own.first, own.count);
    if (!in_place) part = RowsOnDevice(context, ops, rows, own.count, own.count);
    Fill(ops, part, call, own.first);
    const bool wanted = !first_alone || context.place().rank == 0;
    Tensor asked = all;
    if (!wanted) asked.data = nullptr;
    if (ranks == 1 && !in_place) continue;  // nothing is moved
    Gather(context, std::array{SharedTensor{part, asked, cut}});
    if (wanted) ExpectFilled(context, ops, all, call);
  }
}

/// Keeps the stream busy for some time, so that what is not waited for comes too early.
void Stall(const Context& context, const CudaOps& ops) {
  const Scratch::Frame frame(context.arena);
  const Tensor from = RowsOnDevice(context, ops, 2048, 4096, 4096);
  const Tensor to = RowsOnDevice(context, ops, 2048, 4096, 4096);
  for (int i = 0; i < 4; ++i) CopyTensor(from, to, ops.stream());
}

/// Chunks that are given one by one, or all at once, behind work that takes long; what comes of
/// them is given on to another gather. Each part is overwritten as soon as it may be.
void GatherInChunks(const Context& context, const CudaOps& ops) {
  const int32_t ranks = context.place().ranks;
  ChunkedGathers& gathers = ChunkedGathersOf(context);
  std::mt19937 random(9);  // the same on every rank
  for (int call = 0; call < 24; ++call) {
    const Scratch::Frame frame(context.arena);
    const auto rows = static_cast<int64_t>(1 + random() % 3000);
    const int64_t cols = ranks * static_cast<int64_t>(1 + random() % 200);
    const RowChunks chunks(rows, static_cast<int64_t>(1 + random() % 200),
                           static_cast<int64_t>(1 + random() % RowChunks::kMost));
    const bool one_by_one = random() % 3 > 0;
    const bool in_place = random() % 2 == 0;
    const Cut cut = random() % 2 == 0 ? Cut::kHeads : Cut::kRows;
    const Share own = OwnShare(context, cut, cols);
    const Tensor source = RowsOnDevice(context, ops, rows, own.count, own.count);
    Fill(ops, source, call, own.first);
    const Tensor all = RowsOnDevice(context, ops, rows, cols, cols + random() % 5);
    const Tensor part = in_place ? all.Columns(own.first, own.count)
                                 : RowsOnDevice(context, ops, rows, own.count, own.count);
    const Tensor next = RowsOnDevice(context, ops, rows, cols, cols);
    const Tensor next_part = next.Columns(own.first, own.count);
    const Tensor got = RowsOnDevice(context, ops, rows, cols, cols);
    const auto of = [&](const Tensor& x, int chunk) {
      return x.Rows(chunks.first(chunk), chunks.rows(chunk));
    };
    for (int chunk = 0; chunk < chunks.count(); ++chunk) {
      if ((call + context.place().rank) % 3 == 0) Stall(context, ops);
      CopyTensor(of(source, chunk), of(part, chunk), ops.stream());
      if (one_by_one) gathers.Give(chunk);
    }
    if (!one_by_one) gathers.Give(0);
    BeginGather(context, std::array{SharedTensor{part, all, cut}}, chunks);
    for (int chunk = 0; chunk < chunks.count(); ++chunk) {
      gathers.Await(chunk);
      CopyTensor(of(all, chunk), of(got, chunk), ops.stream());
      CopyTensor(of(got, chunk).Columns(own.first, own.count), of(next_part, chunk), ops.stream());
      gathers.Give(chunk);
    }
    BeginGather(context, std::array{SharedTensor{next_part, next, cut}}, chunks);
    gathers.Await(chunks.count() - 1);
    const Tensor got_next = RowsOnDevice(context, ops, rows, cols, cols);
    CopyTensor(next, got_next, ops.stream());
    gathers.End();
    ops.SetZero(context, part);
    ops.SetZero(context, next_part);
    ExpectFilled(context, ops, got, call);
    ExpectFilled(context, ops, got_next, call);
    // Other gathers come between.
    if (call % 4 != 0) continue;
    Fill(ops, next_part, call + 1, own.first);
    GatherInPlace(context, next, cut);
    ExpectFilled(context, ops, next, call + 1);
  }
}

/// The second rows of a gather go with the last chunk.
void GatherTwoInChunks(const Context& context, const CudaOps& ops) {
  const int64_t cols = int64_t{64} * context.place().ranks;
  const Tensor first = RowsOnDevice(context, ops, 900, cols, cols);
  const Tensor second = RowsOnDevice(context, ops, 70, 2 * cols, 2 * cols);
  const RowChunks chunks(first.rows, 128, 4);
  std::array<SharedTensor, 2> rows;
  for (size_t i = 0; const Tensor& all : {first, second}) {
    const Share own = OwnShare(context, Cut::kRows, all.cols);
    const Tensor mine = all.Columns(own.first, own.count);
    Fill(ops, mine, 3 + static_cast<int>(i), own.first);
    rows[i++] = {mine, all, Cut::kRows};
  }
  ChunkedGathers& gathers = ChunkedGathersOf(context);
  for (int chunk = 0; chunk < chunks.count(); ++chunk) gathers.Give(chunk);
  BeginGather(context, rows, chunks);
  gathers.Await(chunks.count() - 1);
  gathers.End();
  ExpectFilled(context, ops, first, 3);
  ExpectFilled(context, ops, second, 4);
}

/// A run of gathers of odd and even number, parts at their place and beside it, launched once and
/// then recorded; between replays with other values there are gathers that are not recorded, and
/// runs of another key, whose gathers are larger.
void RepeatRecordedGathers(const Context& context, const CudaOps& ops) {
  const int32_t ranks = context.place().ranks;
  const auto replayer = ops.MakeReplayer(context);
  struct Rows {
    Tensor all;
    Tensor part;
  };
  // Of two keys: 3 gathers of few rows, 4 of many.
  std::array<std::vector<Rows>, 2> runs;
  for (size_t run = 0; run < runs.size(); ++run) {
    for (size_t g = 0; g < 3 + run; ++g) {
      const int64_t rows = run == 0 ? 1 + static_cast<int64_t>(g) : 1400;
      const int64_t cols = ranks * static_cast<int64_t>(50 + 83 * g);
      const Tensor all = RowsOnDevice(context, ops, rows, cols, cols + static_cast<int64_t>(g));
      const Share own = OwnShare(context, Cut::kRows, cols);
      Tensor part = all.Columns(own.first, own.count);
      if (g % 2 == 1) part = RowsOnDevice(context, ops, rows, own.count, own.count);
      runs[run].push_back({all, part});
    }
  }
  const Tensor alone = RowsOnDevice(context, ops, 5, 40 * ranks, 40 * ranks);
  const Share own = OwnShare(context, Cut::kRows, alone.cols);
  for (int call = 0; call < 40; ++call) {
    const size_t run = call % 5 == 3 ? 1 : 0;
    for (size_t g = 0; g < runs[run].size(); ++g) {
      const Rows& rows = runs[run][g];
      Fill(ops, rows.part, call + static_cast<int>(g),
           OwnShare(context, Cut::kRows, rows.all.cols).first);
    }
    RunKey key;
    key.Add(static_cast<int64_t>(run));
    replayer->Run(context, key, {}, [&](const Context&) {
      for (const Rows& rows : runs[run]) {
        Gather(context, std::array{SharedTensor{rows.part, rows.all, Cut::kRows}});
      }
    });
    for (size_t g = 0; g < runs[run].size(); ++g) {
      ExpectFilled(context, ops, runs[run][g].all, call + static_cast<int>(g));
    }
    if (call % 3 != 0) continue;
    Fill(ops, alone.Columns(own.first, own.count), call, own.first);
    GatherInPlace(context, alone, Cut::kRows);
    ExpectFilled(context, ops, alone, call);
  }
  // Twice each; again where memory was made for the first gathers, then for larger ones, after
  // which the first key is recorded anew.
  EXPECT_EQ(replayer->counts().launched, 8);
  EXPECT_EQ(replayer->counts().repeated, 32);
}

/// A step has one key on a rank and two on the others, as where each has rows of its own. Memory
/// for recorded gathers grows in between: a rank that records the step anew must not find the
/// others with what they recorded before.
void RepeatStepsOfUnequalKeys(const Context& context, const CudaOps& ops) {
  const auto replayer = ops.MakeReplayer(context);
  const auto rows_of = [&](int64_t rows) {
    const int64_t cols = int64_t{256} * context.place().ranks;
    return RowsOnDevice(context, ops, rows, cols, cols);
  };
  const Tensor few = rows_of(4);
  const Tensor many = rows_of(3000);
  int call = 0;
  const auto step = [&](int64_t number, const Tensor& all) {
    const Share own = OwnShare(context, Cut::kRows, all.cols);
    Fill(ops, all.Columns(own.first, own.count), ++call, own.first);
    RunKey key;
    key.Add(number);
    replayer->Run(context, key, {},
                  [&](const Context&) { GatherInPlace(context, all, Cut::kRows); });
    ExpectFilled(context, ops, all, call);
  };
  for (int i = 0; i < 3; ++i) step(1, few);
  for (int i = 0; i < 3; ++i) step(2, many);
  for (int i = 0; i < 2; ++i) step(context.place().rank == 0 ? 1 : 3, few);
  for (int i = 0; i < 3; ++i) step(1, few);
}

TEST_F(PeerCommunicatorTest, EveryRankGetsTheColumnsOfAll) {
  for (const int32_t ranks : {1, 2, 3, 4, 8}) OnRanks(ranks, 60, GatherRandomRows);
}

TEST_F(PeerCommunicatorTest, ChunksTravelBesideWhatMakesAndTakesThem) {
  for (const Make make : {OverPeers, OverPeersByKernels}) {
    for (const int32_t ranks : {2, 3, 4, 8}) OnRanks(ranks, 60, GatherInChunks, make);
    OnRanks(2, 60, GatherTwoInChunks, make);
  }
}

TEST_F(PeerCommunicatorTest, RecordedGathersCountOnWhenTheyAreReplayed) {
  for (const int32_t ranks : {2, 3, 4, 8}) OnRanks(ranks, 60, RepeatRecordedGathers);
}

TEST_F(PeerCommunicatorTest, StepsOfUnequalKeysMeetInOneMemory) {
  for (const int32_t ranks : {2, 3, 4, 8}) OnRanks(ranks, 5, RepeatStepsOfUnequalKeys);
}

TEST_P(PeersOnGpusTest, EveryRankGetsTheColumnsOfAll) { OnGpus(60, GatherRandomRows); }

TEST_P(PeersOnGpusTest, ChunksTravelBesideWhatMakesAndTakesThem) {
  for (const Make make : {OverPeers, OverPeersByKernels}) {
    OnGpus(60, GatherInChunks, make);
    OnGpus(60, GatherTwoInChunks, make);
  }
}

TEST_P(PeersOnGpusTest, RecordedGathersCountOnWhenTheyAreReplayed) {
  OnGpus(60, RepeatRecordedGathers);
}

TEST_P(PeersOnGpusTest, StepsOfUnequalKeysMeetInOneMemory) { OnGpus(5, RepeatStepsOfUnequalKeys); }

/// NCCL's kernels wait for each other, on one GPU as on several.
TEST_F(PeerCommunicatorTest, NcclGivesEveryRankTheColumnsOfAll) {
  constexpr int kSharesGpus = 23007;
  std::optional<NcclLibrary> nccl;
  try {
    nccl.emplace();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  if (nccl->version() < kSharesGpus) {
    GTEST_SKIP() << "ranks of NCCL " << nccl->version() << " need a GPU each";
  }
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", /*overwrite=*/0);
  OnRanks(2, 60, GatherRandomRows, MakeNcclCommunicators);
  OnRanks(2, 60, RepeatRecordedGathers, MakeNcclCommunicators);
}

TEST_P(PeersOnGpusTest, NcclGivesEveryRankTheColumnsOfAll) {
  try {
    const NcclLibrary nccl;
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  OnGpus(60, GatherRandomRows, MakeNcclCommunicators);
  OnGpus(60, RepeatRecordedGathers, MakeNcclCommunicators);
}

/// `act` ends with an error that says this.
void ExpectError(const std::function<void()>& act, const std::string& told) {
  try {
    act();
    FAIL() << "nothing says: " << told;
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), told);
  }
}

/// All ranks but the last run a recorded gather.
void LeaveTheLastOut(const Context& context, const CudaOps& ops) {
  auto& ranks = static_cast<PeerCommunicator&>(*context.ranks);
  const int32_t last = context.place().ranks - 1;
  const Tensor all = RowsOnDevice(context, ops, 4, 64, 64);
  ranks.BeginMeasuring();
  GatherInPlace(context, all, Cut::kRows);
  ranks.EndMeasuring();
  ranks.BeginRecording();
  if (context.place().rank != last) GatherInPlace(context, all, Cut::kRows);
  ranks.EndRecording();
  ops.Synchronize();
  if (context.place().rank == last) return;
  ExpectError([&] { ranks.ThrowIfEnded(); },
              fmt::format("rank {} of {} has ended: its GPU has not answered for 0.5 s", last,
                          context.place().ranks));
}

/// A rank whose GPU comes to nothing in a recorded run: the others' GPUs stop to wait for it.
TEST_F(PeerCommunicatorTest, AGpuThatDoesNotComeIsNamed) {
  for (const int32_t ranks : {2, 3, 4, 8}) OnRanks(ranks, 0.5, LeaveTheLastOut);
}

TEST_P(PeersOnGpusTest, AGpuThatDoesNotComeIsNamed) { OnGpus(0.5, LeaveTheLastOut); }

/// Two ranks whose blocks have not posted for longer than 32 bits count. The second one comes late.
TEST_F(PeerCommunicatorTest, PostsAreWaitedForAfterManyCalls) {
  constexpr int64_t kRows = 64, kWidth = 4096;
  constexpr int64_t kPostBytes = kRows * kWidth;
  constexpr uint64_t kCalls = (uint64_t{1} << 32) - 3;
  const CudaOps first(0, 2, 2);
  const CudaOps second(0, 2, 2);
  const std::array<const CudaOps*, 2> ops = {&first, &second};
  PinnedMemory state(sizeof(ExchangeState));
  std::array<DeviceMemory, 2> counters;
  std::array<DeviceMemory, 2> posts;
  std::array<DeviceMemory, 2> rows;  // [kRows, 2 * kWidth]: this rank's columns are at their place
  ExchangeParams params;
  params.ranks = 2;
  params.state = new (state.data()) ExchangeState();
  params.patience_ns = 10'000'000'000;
  params.bytes = kPostBytes;
  params.shares_gpu = true;
  params.post_bytes = kPostBytes;
  for (size_t rank = 0; rank < 2; ++rank) {
    counters[rank] = DeviceMemory(sizeof(ExchangeCounters), "counters");
    posts[rank] = DeviceMemory(2 * kPostBytes, "posts");
    rows[rank] = DeviceMemory(2 * kPostBytes, "rows");
    CheckCuda(cudaMemset(posts[rank].data(), 0, posts[rank].bytes()), "posts");
    CheckCuda(cudaMemset(counters[rank].data(), 0, counters[rank].bytes()), "counters");
    CheckCuda(cudaMemcpy(&counters[rank].As<ExchangeCounters>()->calls, &kCalls, sizeof(kCalls),
                         cudaMemcpyHostToDevice),
              "counters");
    params.counters[rank] = counters[rank].As<ExchangeCounters>();
    params.posts[rank] = posts[rank].As<std::byte>();
  }
  CheckCuda(cudaDeviceSynchronize(), "counters");
  const auto column = [&](size_t rank, size_t of) {
    return rows[rank].As<std::byte>() + static_cast<int64_t>(of) * kWidth;
  };
  for (int call = 1; call <= 6; ++call) {
    for (size_t rank = 0; rank < 2; ++rank) {
      if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const size_t other = 1 - rank;
      const ColumnCopy store = {.from = column(rank, rank),
                                .to = posts[rank].As<std::byte>(),
                                .from_stride = 2 * kWidth,
                                .to_stride = kWidth,
                                .width = kWidth,
                                .rows = kRows};
      const ColumnCopy load = {.from = posts[other].As<std::byte>(),
                               .to = column(rank, other),
                               .from_stride = kWidth,
                               .to_stride = 2 * kWidth,
                               .width = kWidth,
                               .rows = kRows};
      params.rank = static_cast<int>(rank);
      params.stores = std::span(&store, 1);
      params.loads = std::span(&load, 1);
      CheckCuda(
          cudaMemset2DAsync(column(rank, rank), 2 * kWidth, 10 * call + static_cast<int>(rank),
                            kWidth, kRows, ops[rank]->stream()),
          "rows");
      CheckCuda(ExchangeRows(params, ops[rank]->stream()), "exchange");
    }
    first.Synchronize();
    second.Synchronize();
    for (size_t rank = 0; rank < 2; ++rank) {
      std::vector<uint8_t> got(rows[rank].bytes());
      CheckCuda(cudaMemcpy(got.data(), rows[rank].data(), got.size(), cudaMemcpyDeviceToHost),
                "rows");
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i], 10 * call + static_cast<int>(i / kWidth % 2))
            << "call " << call << ", rank " << rank << ", byte " << i;
      }
    }
  }
  uint64_t calls = 0;
  CheckCuda(cudaMemcpy(&calls, &params.counters[1]->calls, sizeof(calls), cudaMemcpyDeviceToHost),
            "counters");
  EXPECT_EQ(calls, kCalls + 6);
}

void GatherWithLateRanks(const Context& context, const CudaOps& ops) {
  for (int call = 0; call < 8; ++call) {
    const Scratch::Frame frame(context.arena);
    if ((call + context.place().rank) % 3 == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    const Tensor all = RowsOnDevice(context, ops, 40, 512, 512);
    const Share own = OwnShare(context, Cut::kRows, 512);
    Fill(ops, all.Columns(own.first, own.count), call, own.first);
    GatherInPlace(context, all, Cut::kRows);
    ExpectFilled(context, ops, all, call);
  }
}

/// A rank that comes late has what the others stored before it, and they have what it stores.
TEST_F(PeerCommunicatorTest, ARankMayBeLate) {
  for (const int32_t ranks : {2, 4}) OnRanks(ranks, 60, GatherWithLateRanks);
}

TEST_P(PeersOnGpusTest, ARankMayBeLate) { OnGpus(60, GatherWithLateRanks); }

TEST_F(PeerCommunicatorTest, ARankThatDoesNotComeIsNamed) {
  OnRanks(2, 0.2, [](const Context& context, const CudaOps& ops) {
    if (context.place().rank == 1) return;
    const Tensor all = RowsOnDevice(context, ops, 4, 64, 64);
    ExpectError([&] { GatherInPlace(context, all, Cut::kRows); },
                "rank 1 of 2 has ended: it has not answered for 0.2 s");
  });
}

/// A rank that gives chunks and then does not come.
TEST_F(PeerCommunicatorTest, ARankThatDoesNotBeginIsNamed) {
  OnRanks(2, 0.2, [](const Context& context, const CudaOps& ops) {
    const Tensor all = RowsOnDevice(context, ops, 64, 64, 64);
    const Share own = OwnShare(context, Cut::kRows, 64);
    ChunkedGathersOf(context).Give(0);
    if (context.place().rank == 1) return;
    const std::array shared = {SharedTensor{all.Columns(own.first, own.count), all, Cut::kRows}};
    ExpectError([&] { BeginGather(context, shared, RowChunks(64, 16, 4)); },
                "rank 1 of 2 has ended: it has not answered for 0.2 s");
  });
}

TEST(RowChunksTest, CoverAllRowsOnce) {
  for (const int64_t rows : {0, 1, 15, 16, 17, 100, 16384}) {
    for (const int64_t unit : {1, 16, 2816}) {
      for (const int64_t most : {0, 1, 3, 8, 100}) {
        const RowChunks chunks(rows, unit, most);
        ASSERT_GE(chunks.count(), 1);
        ASSERT_LE(chunks.count(), std::clamp<int64_t>(most, 1, RowChunks::kMost));
        int64_t end = 0;
        for (int i = 0; i < chunks.count(); ++i) {
          EXPECT_EQ(chunks.first(i), end);
          if (i + 1 < chunks.count()) {
            EXPECT_EQ(chunks.rows(i) % unit, 0);
          }
          EXPECT_TRUE(chunks.rows(i) > 0 || rows == 0);
          end = chunks.end(i);
        }
        EXPECT_EQ(end, rows);
      }
    }
  }
  EXPECT_EQ(RowChunks().count(), 0);
}

TEST_F(PeerCommunicatorTest, AGpuReachesItself) {
  EXPECT_FALSE(FindStrangers(std::array{0, 0, 0}));
}

}  // namespace
}  // namespace outrider::cuda
