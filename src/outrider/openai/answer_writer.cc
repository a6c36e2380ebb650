#include "outrider/openai/answer_writer.h"

namespace outrider::openai {

std::string Event(const std::string& data) { return "data: " + data + "\n\n"; }

}  // namespace outrider::openai
