#include "outrider/cli/explain_batch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

namespace outrider::cli {

namespace {

using Object = nlohmann::ordered_json;

/// "5-41", "5", "-" for nothing.
std::string RangeText(int64_t first, int64_t count) {
  if (count == 0) return "-";
  return count == 1 ? fmt::to_string(first) : fmt::format("{}-{}", first, first + count - 1);
}

std::string CountText(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string_view PhaseText(Phase phase) {
  switch (phase) {
    case Phase::kDecode:
      return "decode";
    case Phase::kPromptChunk:
      return "prompt chunk";
    case Phase::kPromptEnd:
      return "prompt end";
  }
  return "";
}

/// Rows of cells under a heading, two blanks apart; every column as wide as its widest cell, but
/// the last one is not filled up.
template <size_t N>
std::string Table(const std::vector<std::array<std::string, N>>& rows) {
  std::array<size_t, N> widths{};
  for (const auto& row : rows) {
    for (size_t i = 0; i < N; ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    out += ' ';
    for (size_t i = 0; i + 1 < N; ++i) out += fmt::format(" {:<{}} ", row[i], widths[i]);
    out += fmt::format(" {}\n", row[N - 1]);
  }
  return out;
}

int32_t NumRows(std::span<const RequestRows> requests) {
  int32_t rows = 0;
  for (const RequestRows& r : requests) rows += r.query_length;
  return rows;
}

/// "0, 5-41": rows of the step, neighbours joined.
std::string RowsText(std::span<const RequestRows> requests) {
  std::vector<std::string> ranges;
  for (size_t i = 0; i < requests.size();) {
    const int32_t first = requests[i].first_row;
    int32_t end = first;
    for (; i < requests.size() && requests[i].first_row == end; ++i) {
      end += requests[i].query_length;
    }
    ranges.push_back(RangeText(first, end - first));
  }
  return ranges.empty() ? "-" : fmt::format("{}", fmt::join(ranges, ", "));
}

}  // namespace

ExplainedBatch::ExplainedBatch(std::span<const BatchItem> items, AttentionBackend backend,
                               KvCacheForm form, RowPaths paths, int32_t k, int32_t block_size)
    : items_(items.begin(), items.end()),
      form_(form),
      k_(k),
      layout_(block_size),
      plan_(backend, 1 + k, paths) {
  size_t most_rows = 0;
  size_t longest = 0;
  for (const BatchItem& item : items_) {
    most_rows = std::max(most_rows, static_cast<size_t>(item.rows));
    longest = std::max(longest, static_cast<size_t>(item.rows) + static_cast<size_t>(item.context));
  }
  tokens_.resize(most_rows);
  blocks_.resize(longest / static_cast<size_t>(block_size) + 1);
  std::vector<RequestWork> work;
  for (const BatchItem& item : items_) {
    const bool verifies = item.phase == Phase::kDecode && item.rows <= 1 + k;
    const auto rows = static_cast<size_t>(item.rows);
    const std::span<const int32_t> tokens = std::span(tokens_).first(rows);
    work.push_back({.slot = static_cast<int32_t>(work.size()),
                    .phase = item.phase,
                    .context_length = item.context,
                    .tokens = verifies ? tokens.first(1) : tokens,
                    .draft_tokens = verifies ? tokens.subspan(1) : tokens.first(0),
                    .samples = item.phase != Phase::kPromptChunk,
                    .block_tables = {&blocks_, 1}});
  }
  layout_.Assign(work);
  plan_.Assign(layout_);
}

std::string ExplainedBatch::LayoutTable() const {
  std::vector<std::array<std::string, 8>> table = {
      {"request", "phase", "rows", "length", "context", "positions", "drafts", "logits rows"}};
  for (const RequestRows& r : layout_.requests()) {
    const bool recomputed = r.phase == Phase::kDecode && r.query_length > 1 + k_;
    table.push_back({ItemText(r),
                     recomputed ? "decode, recomputed" : std::string(PhaseText(r.phase)),
                     RangeText(r.first_row, r.query_length), fmt::to_string(r.query_length),
                     fmt::to_string(r.context_length), RangeText(r.context_length, r.query_length),
                     r.phase == Phase::kDecode ? fmt::to_string(r.num_drafts) : "-",
                     RangeText(r.first_logits_row, r.num_logits_rows)});
  }
  return Table(table);
}

std::string ExplainedBatch::SplitTable() const {
  const auto runs = plan_.decode_runs();
  const auto num_runs = static_cast<int64_t>(runs.size());
  std::vector<std::array<std::string, 4>> table = {{"kernel", "rows", "how", "requests"}};
  const auto requests_text = [&](std::span<const RequestRows> requests) {
    std::vector<std::string_view> texts;
    int32_t last = -1;
    for (const RequestRows& r : requests) {
      if (r.work_index != last) texts.push_back(ItemText(r));
      last = r.work_index;
    }
    return fmt::format("{}", fmt::join(texts, " "));
  };
  for (const RowPath path : {RowPath::kListed, RowPath::kPerHead}) {
    if (!plan_.paths().Has(path)) continue;
    table.push_back({fmt::format("all, {}", RowPathName(path)), RowsText(plan_.one_path()),
                     "each request at its own length", requests_text(plan_.one_path())});
  }
  if (!runs.empty()) {
    std::string how = "each request at its own length";
    if (plan_.backend() == AttentionBackend::kUniformPad) {
      const int64_t padding = num_runs * plan_.query_length() - NumRows(runs);
      how = fmt::format("{} of {}, {} of padding", CountText(num_runs, "run"),
                        CountText(plan_.query_length(), "row"), CountText(padding, "row"));
    } else if (plan_.query_length() > 0) {
      how = fmt::format("{} of {}", CountText(num_runs, "request"),
                        CountText(plan_.query_length(), "row"));
    }
    table.push_back({"decode, absorbed", RowsText(runs), how, requests_text(runs)});
  }
  if (!plan_.left_over().empty()) {
    table.push_back({"left over, expanded", RowsText(plan_.left_over()),
                     "context and new tokens merged", requests_text(plan_.left_over())});
  }
  if (!plan_.prompts().empty()) {
    table.push_back({"prompts, expanded", RowsText(plan_.prompts()), "one softmax over all keys",
                     requests_text(plan_.prompts())});
  }
  return Table(table);
}

std::string ExplainedBatch::Text() const {
  const AttentionBackend backend = plan_.backend();
  return fmt::format(
      "Step of {}, {}; k = {}: decode requests have up to {}\n\n{}\n"
      "KV cache form: {}\nAttention backend: {} ({})\n{}\n\n{}",
      CountText(static_cast<int64_t>(items_.size()), "request"),
      CountText(layout_.num_rows(), "row"), k_, CountText(int64_t{1} + k_, "row"), LayoutTable(),
      KvCacheFormName(form_), AttentionBackendName(backend),
      KeepsExactness(backend) ? "exact: output does not depend on batching or drafts"
                              : "NOT exact: output can depend on batching and drafts",
      AttentionBackendSummary(backend), SplitTable());
}

std::string ExplainedBatch::Json() const {
  Object requests = Object::array();
  for (const RequestRows& r : layout_.requests()) {
    requests.push_back({{"request", ItemText(r)},
                        {"phase", PhaseText(r.phase)},
                        {"first_row", r.first_row},
                        {"query_length", r.query_length},
                        {"context_length", r.context_length},
                        {"num_drafts", r.num_drafts},
                        {"first_logits_row", r.first_logits_row},
                        {"num_logits_rows", r.num_logits_rows}});
  }
  const auto rows = [&](std::span<const RequestRows> part) {
    Object list = Object::array();
    for (const RequestRows& r : part) {
      list.push_back({{"request", ItemText(r)},
                      {"first_row", r.first_row},
                      {"query_length", r.query_length},
                      {"context_length", r.context_length}});
    }
    return list;
  };
  const auto on_path = [&](RowPath path) {
    return plan_.paths().Has(path) ? plan_.one_path() : std::span<const RequestRows>();
  };
  const Object object = {{"num_rows", layout_.num_rows()},
                         {"num_speculative_tokens", k_},
                         {"requests", requests},
                         {"attention",
                          {{"backend", AttentionBackendName(plan_.backend())},
                           {"exact", KeepsExactness(plan_.backend())},
                           {"kv_cache_form", KvCacheFormName(form_)},
                           {"kernel_query_length", plan_.query_length()},
                           {"per_head", rows(on_path(RowPath::kPerHead))},
                           {"listed", rows(on_path(RowPath::kListed))},
                           {"decode", rows(plan_.decode_runs())},
                           {"left_over", rows(plan_.left_over())},
                           {"prompts", rows(plan_.prompts())}}}};
  return object.dump(2, ' ', false, Object::error_handler_t::replace) + "\n";
}

}  // namespace outrider::cli
