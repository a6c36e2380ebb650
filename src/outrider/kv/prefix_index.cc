#include "outrider/kv/prefix_index.h"

#include <bit>
#include <cstring>

#include "outrider/base/error.h"

namespace outrider {

namespace {

constexpr int32_t kFree = -1;

}  // namespace

PrefixIndex::PrefixIndex(int32_t num_blocks)
    : keys_(static_cast<size_t>(num_blocks)),
      present_(static_cast<size_t>(num_blocks), 0),
      table_(std::bit_ceil(static_cast<size_t>(num_blocks) * 2), kFree) {}

size_t PrefixIndex::Home(const BlockKey& key) const {
  size_t hash = 0;
  std::memcpy(&hash, key.data(), sizeof(hash));
  return hash & (table_.size() - 1);
}

size_t PrefixIndex::Place(const BlockKey& key) const {
  size_t place = Home(key);
  while (table_[place] != kFree && KeyAt(place) != key) place = (place + 1) & (table_.size() - 1);
  return place;
}

std::optional<int32_t> PrefixIndex::Find(const BlockKey& key) const {
  const int32_t block = table_[Place(key)];
  return block == kFree ? std::nullopt : std::optional(block);
}

bool PrefixIndex::Insert(const BlockKey& key, int32_t block) {
  const size_t place = Place(key);
  if (table_[place] != kFree || Holds(block)) return false;
  keys_[static_cast<size_t>(block)] = key;
  present_[static_cast<size_t>(block)] = 1;
  table_[place] = block;
  return true;
}

void PrefixIndex::Erase(int32_t block) {
  OUTRIDER_CHECK(Holds(block));
  present_[static_cast<size_t>(block)] = 0;
  const size_t mask = table_.size() - 1;
  size_t hole = Place(keys_[static_cast<size_t>(block)]);
  // Closes the gap: an entry further on moves into the hole unless its home lies after the hole.
  for (size_t next = (hole + 1) & mask; table_[next] != kFree; next = (next + 1) & mask) {
    if (((next - Home(KeyAt(next))) & mask) >= ((next - hole) & mask)) {
      table_[hole] = table_[next];
      hole = next;
    }
  }
  table_[hole] = kFree;
}

}  // namespace outrider
