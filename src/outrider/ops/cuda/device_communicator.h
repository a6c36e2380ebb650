// What GPUs that share a model exchange, whatever carries it: the base of PeerCommunicator (over
// the GPUs' own memory) and NcclCommunicator. Bytes of the host go among the ranks' threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "outrider/kernels/cuda/rows/copy_columns.h"
#include "outrider/parallel/communicator.h"

namespace outrider::cuda {

class ChunkedGathers;  // chunked_gathers.h

/// Calls of Communicator move bytes of the host; GatherOnDevice those of the GPUs. They follow one
/// another on every rank in one order.
class DeviceCommunicator : public Communicator {
 public:
  RankPlace place() const override { return host_.place(); }
  void Store(std::span<const GatheredRows> rows) override { host_.Store(rows); }
  void Collect(std::span<const GatheredRows> rows) override { host_.Collect(rows); }
  void Broadcast(int32_t root, std::span<std::byte> bytes) override {
    host_.Broadcast(root, bytes);
  }
  void ShowProgress(std::function<uint64_t()> progress) override {
    host_.ShowProgress(std::move(progress));
  }
  void End(const std::string& reason) override { host_.End(reason); }
  void ThrowIfEnded() override { host_.ThrowIfEnded(); }

  /// Gather of rows in device memory, in the ranks' streams: what was launched before it has
  /// written `mine`, what is launched after it reads `all`. At most kMostRanks rows of parts; two
  /// where they are recorded.
  virtual void GatherOnDevice(std::span<const GatheredRows> rows) = 0;

  /// Null: gathers do not go in chunks, or not those of this step, as it may be recorded.
  virtual ChunkedGathers* chunked_gathers() { return nullptr; }

  /// all[i] becomes what rank i has there, among the ranks' threads.
  template <typename T>
  void Tell(std::span<T> all) {
    static_assert(std::is_trivially_copyable_v<T>);
    TellBytes(std::as_writable_bytes(all));
  }
  /// The least of the ranks' numbers.
  int32_t LeastOf(int32_t number);
  /// Returns when the threads of all ranks are here.
  void Meet() { LeastOf(0); }

  // Recorded steps.

  /// Gathers until EndMeasuring are those of a step that may be recorded.
  void BeginMeasuring() { measures_ = true; }
  /// Makes room for what these gathers were measured to need, where all ranks' threads meet.
  void EndMeasuring();
  /// Until EndRecording gathers are recorded, in streams that are being captured.
  void BeginRecording() { records_ = true; }
  void EndRecording() { records_ = false; }
  /// Another one, of all ranks alike, where larger memory took the place of what steps were
  /// recorded with. These must not be repeated: a rank would wait in the old memory for what
  /// another one, whose step was recorded since, stores in the new.
  int64_t recorded_version() const { return recorded_version_; }

 protected:
  /// host: among the same ranks; it must outlive this.
  explicit DeviceCommunicator(Communicator& host) : host_(host) {}

  /// Makes memory for recorded gathers of a rank's parts of up to `bytes`, a multiple of 16. All
  /// ranks ask for equal numbers of bytes, at a time when they can meet.
  virtual void ReserveRecorded(size_t bytes) = 0;
  bool records() const { return records_; }
  /// Whether the step is recorded or may be later. Both take equal memory.
  bool may_be_recorded() const { return records_ || measures_; }
  /// Runs a gather that is not recorded.
  void Measure(std::span<const GatheredRows> rows);

  // How a rank stores its parts: one row after another, each at a multiple of 16 bytes.

  /// Bytes of all parts that a rank stores; of the rank that stores most.
  static size_t BytesOf(std::span<const GatheredRows> rows, size_t rank);
  size_t MostBytes(std::span<const GatheredRows> rows) const;
  /// Adds copies of this rank's parts to `post`.
  void ListStores(std::span<const GatheredRows> rows, std::byte* post,
                  std::vector<ColumnCopy>& copies) const;
  /// Adds copies from where the ranks have stored their parts, of `posted` by rank, to where this
  /// rank wants them; of its own part to `own`.
  void ListReads(std::span<const GatheredRows> rows, std::span<std::byte* const> posted,
                 std::vector<ColumnCopy>& own, std::vector<ColumnCopy>& others) const;

 private:
  /// Tell, of equal parts of `all`.
  void TellBytes(std::span<std::byte> all);

  Communicator& host_;
  bool measures_ = false;
  bool records_ = false;
  size_t measured_ = 0;  // MostBytes of the largest gather
  size_t reserved_ = 0;  // bytes of it that there is room for
  int64_t recorded_version_ = 0;
};

}  // namespace outrider::cuda
