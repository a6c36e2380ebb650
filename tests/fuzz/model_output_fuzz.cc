// Reasoning and tool calls in any text: the same however it is cut, and arguments of complete calls
// with keys and values are JSON.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/output/output_parser.h"

namespace {

using outrider::OutputPiece;

std::vector<OutputPiece> Parse(const outrider::OutputTask& task, std::string_view text,
                               size_t step) {
  outrider::OutputParser parser(task);
  std::vector<OutputPiece> all;
  const auto take = [&](const std::vector<OutputPiece>& pieces) {
    for (const OutputPiece& piece : pieces) {
      if (piece.kind == OutputPiece::Kind::kToolCall) {
        OUTRIDER_CHECK(!piece.text.empty());
        all.push_back(piece);
      } else {
        outrider::AppendText(piece.kind, piece.text, &all);
      }
    }
  };
  for (size_t i = 0; i < text.size(); i += step) {
    // Whole characters, as the engine gives them.
    size_t end = std::min(text.size(), i + step);
    while (end < text.size() && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) ++end;
    std::vector<OutputPiece> pieces;
    parser.Push(text.substr(i, end - i), &pieces);
    take(pieces);
    i = end - step;
  }
  std::vector<OutputPiece> pieces;
  parser.Finish(outrider::OutputParser::TextEnd::kByModel, &pieces);
  take(pieces);
  size_t told = 0;
  for (const outrider::OutputRun& run : parser.TakeRuns()) told += run.bytes;
  OUTRIDER_CHECK(told == text.size());
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<std::string> kFormats = {"none",        "deepseek_v3",  "deepseek_v31",
                                                    "kimi_k2",     "glm45",        "glm47",
                                                    "deepseek_v4", "deepseek_v32", "step3p5"};
  if (size < 2) return 0;
  outrider::OutputTask task;
  task.tools =
      outrider::ChooseOutputFormat(kFormats[data[0] % kFormats.size()], "none", "", "").tools;
  task.reasoning = (data[0] & 0x40) != 0;
  task.reasoning_open = (data[0] & 0x80) != 0;
  task.types = {{"f", {{"a", {outrider::ValueTypes::kString, {}}}}}};
  const std::string_view text(reinterpret_cast<const char*>(data + 2), size - 2);
  const size_t step = data[1] % 16 + 1;
  OUTRIDER_CHECK(Parse(task, text, step) == Parse(task, text, text.size() + 1));
  return 0;
}
