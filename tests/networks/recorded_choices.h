// What indexers see and choose in passes over one request, taken down on any device; and a CPU that
// reads what was chosen elsewhere (sparse.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/cpu/entry_codec.h"
#include "outrider/ops/sparse.h"

namespace outrider {

/// A row of an indexer, with the numbers that its scores are made of: rounded as its keys are,
/// where those are codes.
struct IndexedRow {
  std::vector<float> q;        // [heads, D]
  std::vector<float> weights;  // [heads]
  std::vector<int32_t> chosen;
};

/// Of one layer: a key of each position, and rows by position.
struct IndexedLayer {
  int32_t heads = 0;
  int32_t top_k = 0;
  std::vector<std::vector<float>> keys;  // [D] each
  std::map<int32_t, IndexedRow> rows;
};

/// One request's, by layer. Every pass runs some rows of all layers that choose, from BeginPass on.
class ChoiceLog {
 public:
  /// table: the request's blocks of the group that has its index keys.
  explicit ChoiceLog(std::vector<int32_t> table) : table_(std::move(table)) {}

  void BeginPass(int32_t first_position) {
    first_ = first_position;
    next_layer_ = 0;
  }

  /// Returns the layer.
  size_t Add(const Context& context, const SelectEntriesArgs& args,
             const SelectedEntries& selected) {
    OUTRIDER_CHECK(args.ratio == 1 && !args.keys.holds_rounded && args.keys.code_bytes == 0);
    const size_t number = next_layer_++;
    layers_.resize(std::max(layers_.size(), next_layer_));
    IndexedLayer& layer = layers_[number];
    layer.heads = args.heads;
    layer.top_k = args.top_k;
    const Ops& ops = context.ops;
    const int64_t rows = args.q.rows;
    std::vector<float> q(static_cast<size_t>(rows * args.q.cols));
    std::vector<float> weights(static_cast<size_t>(rows * args.heads));
    std::vector<int32_t> counts(static_cast<size_t>(rows));
    std::vector<int32_t> entries(static_cast<size_t>(rows * selected.stride));
    ops.ToHost(context, args.q, q);
    ops.ToHost(context, args.weights, weights);
    CopyNumbers(ops, selected.counts, counts);
    CopyNumbers(ops, selected.entries, entries);
    for (int64_t r = 0; r < rows; ++r) {
      const auto position = static_cast<int32_t>(first_ + r);
      IndexedRow& row = layer.rows[position];
      row.q.assign(q.begin() + r * args.q.cols, q.begin() + (r + 1) * args.q.cols);
      if (args.keys.has_scales) {
        for (int32_t h = 0; h < args.heads; ++h) {
          cpu::RoundIndexQuery(args.keys, row.q.data() + int64_t{h} * args.keys.width);
        }
      }
      row.weights.assign(weights.begin() + r * args.heads, weights.begin() + (r + 1) * args.heads);
      const auto chosen = entries.begin() + r * selected.stride;
      row.chosen.assign(chosen, chosen + counts[static_cast<size_t>(r)]);
      layer.keys.resize(static_cast<size_t>(position) + 1);
      layer.keys.back() = KeyAt(ops, args.keys, position);
    }
    return number;
  }

  const std::vector<IndexedLayer>& layers() const { return layers_; }
  int32_t first_position() const { return first_; }

 private:
  static void CopyNumbers(const Ops& ops, const int32_t* from, std::vector<int32_t>& to) {
    ops.CopyToHost(reinterpret_cast<const std::byte*>(from), std::as_writable_bytes(std::span(to)));
  }

  /// A key as the device's cache has it.
  std::vector<float> KeyAt(const Ops& ops, const LayerCache& cache, int32_t position) const {
    const int64_t slot = cpu::EntrySlot(cache, table_.data(), position);
    const auto bytes_of_number = static_cast<int64_t>(DTypeSize(cache.dtype));
    std::vector<std::byte> entry(static_cast<size_t>(cache.width * bytes_of_number));
    ops.CopyToHost(cache.data + cache.SlotOffset(slot) * bytes_of_number, entry);
    float scale = 1;
    if (cache.has_scales) {
      ops.CopyToHost(cache.data + cache.ScaleOffset(slot),
                     std::as_writable_bytes(std::span(&scale, 1)));
    }
    std::vector<float> key;
    for (int32_t i = 0; i < cache.width; ++i) {
      const std::byte* const at = entry.data() + i * bytes_of_number;
      switch (cache.dtype) {
        case DType::kF32: {
          float number;
          std::memcpy(&number, at, sizeof(number));
          key.push_back(number);
          break;
        }
        case DType::kBF16: {
          BFloat16 number;
          std::memcpy(&number, at, sizeof(number));
          key.push_back(ToFloat(number));
          break;
        }
        default:
          OUTRIDER_CHECK(cache.dtype == DType::kF8E4M3 && cache.has_scales);
          key.push_back(scale * Float8E4M3ToFloat(std::to_integer<uint8_t>(*at)));
      }
    }
    return key;
  }

  std::vector<int32_t> table_;
  std::vector<IndexedLayer> layers_;
  int32_t first_ = 0;
  size_t next_layer_ = 0;
};

/// The operations `Base`, whose choices are taken down. The log must outlive it.
template <typename Base>
class RecordingOps : public Base {
 public:
  template <typename... Args>
  explicit RecordingOps(ChoiceLog& log, Args&&... args)
      : Base(std::forward<Args>(args)...), log_(log) {}

  SelectedEntries SelectEntries(const Context& context, const StepInputs& inputs,
                                const SelectEntriesArgs& args) const override {
    const SelectedEntries selected = Base::SelectEntries(context, inputs, args);
    log_.Add(context, args, selected);
    return selected;
  }

 private:
  ChoiceLog& log_;
};

/// The CPU's operations in float32.
class ExactOps : public cpu::CpuOps {
 public:
  ExactOps() : CpuOps(GetKernels(SelectIsa())) {}
};

/// The CPU's operations `Base`, which write their own choice down and read the entries that rows
/// have in `others`.
template <typename Base>
class FollowingOps : public Base {
 public:
  FollowingOps(ChoiceLog& log, const ChoiceLog& others) : log_(log), others_(others) {}

  SelectedEntries SelectEntries(const Context& context, const StepInputs& inputs,
                                const SelectEntriesArgs& args) const override {
    const SelectedEntries own = Base::SelectEntries(context, inputs, args);
    const size_t number = log_.Add(context, args, own);
    const IndexedLayer& other = others_.layers().at(number);
    auto* const entries = context.arena.Take<int32_t>(args.q.rows * int64_t{args.top_k});
    auto* const counts = context.arena.Take<int32_t>(args.q.rows);
    for (int64_t r = 0; r < args.q.rows; ++r) {
      const auto position = static_cast<int32_t>(log_.first_position() + r);
      const std::vector<int32_t>& chosen = other.rows.at(position).chosen;
      OUTRIDER_CHECK(static_cast<int64_t>(chosen.size()) <= args.top_k);
      std::ranges::copy(chosen, entries + r * args.top_k);
      counts[r] = static_cast<int32_t>(chosen.size());
    }
    return {entries, counts, args.top_k};
  }

 private:
  ChoiceLog& log_;
  const ChoiceLog& others_;
};

}  // namespace outrider
