// Events about cached blocks: which blocks of tokens can be found, and which are forgotten. A
// router reads them to send requests to where their prefix is cached.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "outrider/kv/block_key.h"
#include "outrider/kv/block_pool.h"

namespace outrider {

struct KvEvent {
  enum class Kind : uint8_t { kStored, kRemoved, kCleared };

  Kind kind = Kind::kCleared;
  std::vector<uint64_t> hashes = {};  // of the blocks: the first eight bytes of their keys
  std::optional<uint64_t> parent =
      {};  // kStored: of the block before the first; unset: there is none
  std::vector<int32_t> token_ids = {};  // kStored: of all these blocks
  int32_t block_size = 0;               // kStored: tokens
  std::string cache_salt = {};          // kStored: of the request; "": none

  bool operator==(const KvEvent&) const = default;
};

/// Takes the events of a step, in order, on the engine's thread. Must not block.
using KvEventSink = std::function<void(std::vector<KvEvent>&&)>;

/// Turns the keys that a BlockPool logs into events with tokens. With several cache groups the
/// events are those of the first, whose keys are the requests' keys.
class KvEventLog {
 public:
  /// `tokens_per_key`: of each block.
  explicit KvEventLog(int32_t tokens_per_key) : block_size_(tokens_per_key) {}

  /// The log that the pool is to write to (BlockPool::SetLog).
  std::vector<BlockPoolEvent>* pool_log() { return &pool_log_; }

  /// A request that has published blocks.
  struct Writer {
    const std::vector<int32_t>& tokens;
    const BlockKeys& keys;  // of `tokens`
    const std::string& cache_salt;
  };

  /// Takes what was logged while blocks of these requests were published.
  void TakePublished(std::span<const Writer> writers);

  /// What was logged since the last time.
  std::vector<KvEvent> TakeEvents();

 private:
  void Forget(const BlockPoolEvent& event);
  void Store(size_t block, const Writer& writer);

  int32_t block_size_;
  std::vector<BlockPoolEvent> pool_log_;
  std::vector<KvEvent> events_;
  std::unordered_set<uint64_t> told_;  // hashes of blocks that can be found
};

}  // namespace outrider
