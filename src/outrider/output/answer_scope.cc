#include "outrider/output/answer_scope.h"

#include <string_view>
#include <utility>
#include <vector>

namespace outrider {
namespace {

class AnswerScope : public StopScope {
 public:
  explicit AnswerScope(std::shared_ptr<const OutputTask> task)
      : task_(std::move(task)), parser_(*task_) {}

  void Push(std::string_view text, bool final, std::vector<Run>* runs) override {
    std::vector<OutputPiece> pieces;
    parser_.Push(text, &pieces);
    if (final) parser_.Finish(OutputParser::TextEnd::kCutOff, &pieces);
    for (const OutputRun& run : parser_.TakeRuns()) {
      runs->push_back({run.bytes, run.part == OutputRun::Part::kContent});
    }
  }

 private:
  std::shared_ptr<const OutputTask> task_;
  OutputParser parser_;
};

}  // namespace

MakeStopScope MakeAnswerScope(const OutputTask& task) {
  if (!task.reasoning && task.tools == nullptr) return {};
  return [shared = std::make_shared<const OutputTask>(task)] {
    return std::make_unique<AnswerScope>(shared);
  };
}

}  // namespace outrider
