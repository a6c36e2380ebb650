// Stop strings are about the answer, however its text is cut.
#include "outrider/output/answer_scope.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "outrider/text/scoped_stop_matcher.h"

namespace outrider {
namespace {

struct Released {
  std::string text;
  bool stopped = false;

  bool operator==(const Released&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Released& released) {
  return out << released.text << (released.stopped ? " [stop]" : "");
}

OutputTask ScopeTask(const char* format, bool open) {
  OutputTask task;
  task.reasoning = true;
  task.reasoning_open = open;
  task.tools = ChooseOutputFormat(format, "none", "", "").tools;
  return task;
}

Released Match(const OutputTask& task, const std::vector<std::string>& texts,
               const std::vector<std::string>& stops, size_t not_looked_at = 0) {
  ScopedStopMatcher matcher(stops, /*include_stop=*/false, MakeAnswerScope(task)());
  Released released;
  for (size_t i = 0; i < texts.size(); ++i) {
    released.text += matcher.Push(texts[i], /*may_stop=*/i >= not_looked_at);
  }
  released.text += matcher.End("");
  released.stopped = matcher.stopped();
  return released;
}

// In one piece, in two, and byte by byte; the texts are ASCII.
Released MatchInAnyCut(const OutputTask& task, const std::string& text,
                       const std::vector<std::string>& stops) {
  const Released whole = Match(task, {text}, stops);
  std::vector<std::string> bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    bytes.push_back(text.substr(i, 1));
    EXPECT_EQ(Match(task, {text.substr(0, i), text.substr(i)}, stops), whole) << i;
  }
  EXPECT_EQ(Match(task, bytes, stops), whole);
  return whole;
}

TEST(AnswerScopeTest, StopStringsAreNotLookedForInReasoning) {
  const OutputTask task = ScopeTask("glm47", true);
  // lm_eval sends such ones with every request.
  const std::vector<std::string> stops = {"\n\n", "Question:", "<", "think"};
  EXPECT_EQ(MatchInAnyCut(task, "Question: a\n\nb</think>\n\nYes.\n\nQuestion: c", {"\n\n"}),
            (Released{"Question: a\n\nb</think>\n\nYes.", true}));
  EXPECT_EQ(MatchInAnyCut(task, "a Question: b</think>It is 4. Question: c", stops),
            (Released{"a Question: b</think>It is 4. ", true}));
  EXPECT_EQ(MatchInAnyCut(task, "a\n\n<b think", stops), (Released{"a\n\n<b think", false}));
  EXPECT_EQ(MatchInAnyCut(ScopeTask("none", false), "<think>a\n\n</think>b<c", stops),
            (Released{"<think>a\n\n</think>b", true}));
  EXPECT_EQ(MatchInAnyCut(ScopeTask("none", false), "I think", stops), (Released{"I ", true}));
  // None goes across the border.
  EXPECT_EQ(MatchInAnyCut(task, "ab</think>cd", {"bc", "b</think>c", "</think>"}),
            (Released{"ab</think>cd", false}));
}

TEST(AnswerScopeTest, NorInCalls) {
  const std::string call =
      "<tool_call>f<arg_key>a</arg_key><arg_value>x\n\nObservation: y</arg_value></tool_call>";
  const std::vector<std::string> stops = {"\n\n", "Observation:", "tool"};
  const OutputTask task = ScopeTask("glm47", false);
  EXPECT_EQ(MatchInAnyCut(task, call, stops), (Released{call, false}));
  EXPECT_EQ(MatchInAnyCut(task, call + call + "\nObservation: z", stops),
            (Released{call + call + "\n", true}));
  EXPECT_EQ(MatchInAnyCut(task, "See Observation: " + call, stops), (Released{"See ", true}));
  // What only looks like one is text.
  EXPECT_EQ(MatchInAnyCut(task, "Use <tool_call> as Observation: z", stops),
            (Released{"Use <", true}));
  EXPECT_EQ(MatchInAnyCut(task, "Use <tool_call> as Observation: z", {"Observation"}),
            (Released{"Use <tool_call> as ", true}));
}

TEST(AnswerScopeTest, MinTokensComeFirst) {
  const OutputTask task = ScopeTask("none", true);
  EXPECT_EQ(Match(task, {"a</think>", "b b ", "c b"}, {"b"}, 2),
            (Released{"a</think>b b c ", true}));
}

TEST(AnswerScopeTest, WithoutPartsAllIsTheAnswer) { EXPECT_FALSE(MakeAnswerScope(OutputTask())); }

}  // namespace
}  // namespace outrider
