// Turns what the engine gives for one API request into the bytes of its answer: server-sent events
// while tokens come, or one object at the end. Knows nothing of HTTP or the engine; each endpoint
// has its own writer.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "outrider/engine/generation.h"
#include "outrider/openai/api_error.h"

namespace outrider::openai {

/// One event, by the letter of server-sent events. `data` has no line ends.
std::string Event(const std::string& data);

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  /// Whether the answer is a stream of events.
  virtual bool streams() const = 0;

  /// Streaming: appends what comes before the first delta.
  virtual void WriteStart(std::string* /*out*/) {}
  /// Streaming: appends the events of one delta of one choice, possibly none.
  virtual void WriteDelta(size_t choice, const OutputDelta& delta, std::string* out) = 0;
  /// Streaming: whether deltas of this choice cannot be written yet: others must come first.
  virtual bool MustWait(size_t /*choice*/) const { return false; }
  /// Streaming: appends what follows the last delta of the last choice.
  virtual void WriteEnd(std::string* out) = 0;

  /// Streaming: appends what tells of an error; nothing follows it.
  virtual void WriteError(const ApiError& error, std::string* out) {
    *out += Event(ErrorJson(error));
  }

  /// Not streaming: the whole answer, from the merged deltas of each choice. Called once.
  virtual std::string Body(std::vector<OutputDelta> choices) = 0;
};

}  // namespace outrider::openai
