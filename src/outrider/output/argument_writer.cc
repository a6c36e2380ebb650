#include "outrider/output/argument_writer.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "outrider/output/white_space.h"

namespace outrider {
namespace {

// The inside of a JSON string. Byte by byte, so that it does not matter where a text is cut.
std::string Escaped(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (const auto byte = static_cast<uint8_t>(c); byte < 0x20) {
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  return out;
}

void Append(std::string_view text, std::vector<OutputPiece>* pieces) {
  AppendText(OutputPiece::Kind::kArguments, text, pieces);
}

}  // namespace

void ArgumentWriter::Begin(std::vector<OutputPiece>* pieces) { Append("{", pieces); }

void ArgumentWriter::BeginValue(std::string_view name, bool is_string,
                                std::vector<OutputPiece>* pieces) {
  is_string_ = is_string;
  value_.clear();
  Append(std::exchange(any_, true) ? ", \"" : "\"", pieces);
  Append(Escaped(name), pieces);
  Append(is_string ? "\": \"" : "\": ", pieces);
}

void ArgumentWriter::AddValue(std::string_view text, std::vector<OutputPiece>* pieces) {
  if (is_string_) {
    Append(Escaped(text), pieces);
  } else {
    value_ += text;  // whether it is JSON shows at its end
  }
}

void ArgumentWriter::EndValue(std::vector<OutputPiece>* pieces) {
  if (is_string_) {
    Append("\"", pieces);
  } else if (const std::string value(Trimmed(value_)); nlohmann::json::accept(value)) {
    Append(value, pieces);
  } else {
    Append("\"", pieces);
    Append(Escaped(value_), pieces);
    Append("\"", pieces);
  }
}

void ArgumentWriter::End(std::vector<OutputPiece>* pieces) { Append("}", pieces); }

}  // namespace outrider
