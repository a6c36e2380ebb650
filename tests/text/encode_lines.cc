// Encodes texts for tiktoken_test.py: `encode_lines DIRECTORY` loads a tokenizer, then answers each
// line of standard input. A line is "parse", "text" or "refuse" (what special tokens are), a space,
// and the text's bytes in hexadecimal. An answer is "refused", or the ids in decimal, and the bytes
// that they decode to with and without special tokens in hexadecimal, with commas between the
// three.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/text/stream_detokenizer.h"
#include "outrider/text/tokenizer.h"

namespace outrider {
namespace {

std::string FromHex(std::string_view hex) {
  std::string bytes;
  for (size_t at = 0; at + 1 < hex.size(); at += 2) {
    int byte = 0;
    std::from_chars(hex.data() + at, hex.data() + at + 2, byte, 16);
    bytes.push_back(static_cast<char>(byte));
  }
  return bytes;
}

std::string ToHex(std::string_view bytes) {
  std::string hex;
  for (const char byte : bytes) hex += fmt::format("{:02x}", static_cast<uint8_t>(byte));
  return hex;
}

std::string DecodedInHex(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip) {
  StreamDetokenizer stream(tokenizer, skip);
  std::string streamed;
  for (const int32_t id : ids) streamed += stream.Push(id);
  streamed += stream.Flush();
  OUTRIDER_CHECK(streamed == tokenizer.Decode(ids, skip), "the stream differs from the whole");
  return ToHex(streamed);
}

void AnswerLines(const Tokenizer& tokenizer) {
  const std::map<std::string, SpecialTokens> policies = {{"parse", SpecialTokens::kParse},
                                                         {"text", SpecialTokens::kText},
                                                         {"refuse", SpecialTokens::kRefuse}};
  std::string line;
  while (std::getline(std::cin, line)) {
    const size_t space = line.find(' ');
    const SpecialTokens policy = policies.at(line.substr(0, space));
    std::string answer = "refused";
    try {
      const std::vector<int32_t> ids =
          tokenizer.Encode(FromHex(std::string_view(line).substr(space + 1)), false, policy);
      answer = fmt::format("{},{},{}", fmt::join(ids, " "), DecodedInHex(tokenizer, ids, false),
                           DecodedInHex(tokenizer, ids, true));
    } catch (const Error&) {
      OUTRIDER_CHECK(policy == SpecialTokens::kRefuse, "{}", line);
    }
    std::cout << answer << '\n';
  }
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  if (argc != 2) return 2;
  try {
    outrider::AnswerLines(outrider::Tokenizer::FromModelDirectory(argv[1]));
  } catch (const outrider::Error& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
  return 0;
}
