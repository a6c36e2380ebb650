// What a request can say about a prompt of DeepSeek-V4: whether the model thinks, and how hard.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace outrider {

/// The instruction about reasoning before the conversation.
enum class DeepSeekV4Instruction : uint8_t { kNone, kThorough, kExhaustive };

struct DeepSeekV4Options {
  bool thinking = true;
  bool drop_reasoning = true;  // of answers before the last question; never where there are tools
  DeepSeekV4Instruction instruction = DeepSeekV4Instruction::kNone;  // while thinking
  bool add_generation_prompt = true;    // end with what begins the assistant's turn
  bool continue_final_message = false;  // end within the last message, for the model to continue it
};

/// Which instruction an effort asks for: "low" to "max" have three levels since the release of July
/// 31, and two before.
enum class DeepSeekV4Efforts : uint8_t { kPreview, kRelease0731 };

/// The efforts of a checkpoint's directory: its published encoder, read as text, says so; where it
/// is not there, a DSpark drafter in config.json does.
DeepSeekV4Efforts DeepSeekV4EffortsOf(const std::filesystem::path& directory);

/// The options that a request's template arguments ask for, a JSON object: "thinking" or
/// "enable_thinking" (default true), "reasoning_effort" ("none" ends thinking), "drop_thinking".
/// Others are ignored. Throws Error (kInvalidArgument).
DeepSeekV4Options ParseDeepSeekV4Options(std::string_view arguments_json,
                                         DeepSeekV4Efforts efforts);

}  // namespace outrider
