// What each step drafted and what became of it, for answers with detailed speculation metrics.
#pragma once

#include <string>

#include "outrider/engine/generation.h"
#include "outrider/text/prompt_encoder.h"

namespace outrider::openai {

/// The delta's steps: [{"drafts":[TOKEN],"num_accepted":n,"tokens":[TOKEN]}], where a TOKEN is
/// {"id","text"}, with "bytes" where they are not the text's: a part of a character. A step with
/// fewer drafts than k has "draft_limit", the name of its DraftLimit.
std::string StepsJson(const OutputDelta& delta, const PromptEncoder& encoder);

}  // namespace outrider::openai
