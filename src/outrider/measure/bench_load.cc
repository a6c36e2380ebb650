#include "outrider/measure/bench_load.h"

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "outrider/base/error.h"
#include "outrider/base/random.h"
#include "outrider/text/text_prompt_encoder.h"

namespace outrider {

std::vector<std::vector<int32_t>> RandomPrompts(int32_t count, int32_t length, int32_t vocab_size,
                                                uint64_t seed) {
  const auto vocab = static_cast<uint64_t>(vocab_size);
  std::vector<std::vector<int32_t>> prompts(static_cast<size_t>(count));
  for (size_t i = 0; i < prompts.size(); ++i) {
    prompts[i].resize(static_cast<size_t>(length));
    for (size_t j = 0; j < prompts[i].size(); ++j) {
      const auto words =
          Philox4x32(seed, {static_cast<uint32_t>(j), static_cast<uint32_t>(i), 0, 0x62656e63U});
      // The first token counts the prompts, starting anywhere.
      const uint64_t drawn = j == 0 ? Philox4x32(seed, {})[0] + i : words[0];
      prompts[i][j] = static_cast<int32_t>(drawn % vocab);
    }
  }
  return prompts;
}

std::vector<PromptLine> ParsePromptLines(std::string_view where, std::string_view text) {
  using Json = nlohmann::json;
  std::vector<PromptLine> lines;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    for (const char* key : {"prompt", "question"}) {
      if (object.is_object() && object.contains(key) && object[key].is_string()) {
        lines.push_back({object[key].get<std::string>(), std::string_view(key) == "question"});
        break;
      }
      if (std::string_view(key) == "question") {
        throw InvalidArgument(
            R"({}, line {}: must be a JSON object with a text under "prompt" or "question")", where,
            number);
      }
    }
  }
  if (lines.empty()) throw InvalidArgument("{}: holds no prompt", where);
  return lines;
}

std::vector<PromptLine> ReadPromptsFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.is_open() || file.bad()) throw NotFound("--prompts-file: cannot read '{}'", path);
  return ParsePromptLines(path, text);
}

std::vector<std::vector<int32_t>> EncodePromptsFile(const LoadedEngine& loaded,
                                                    const std::string& path) {
  const TextPromptEncoder encoder = MakePromptEncoder(loaded);
  std::vector<std::vector<int32_t>> prompts;
  for (const PromptLine& line : ReadPromptsFile(path)) {
    prompts.push_back(line.chat ? encoder.EncodeChat(ConversationOf(line.text, nullptr)).token_ids
                                : encoder.EncodeText(line.text, /*add_special_tokens=*/true));
  }
  return prompts;
}

std::vector<GenerationRequest> MakeRequests(const std::vector<std::vector<int32_t>>& prompts,
                                            int32_t count, const SamplingParams& sampling,
                                            uint64_t seed) {
  std::vector<GenerationRequest> requests(static_cast<size_t>(count));
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt_token_ids = prompts[i % prompts.size()];
    requests[i].sampling = sampling;
    requests[i].sampling.seed = seed + i;
  }
  return requests;
}

}  // namespace outrider
