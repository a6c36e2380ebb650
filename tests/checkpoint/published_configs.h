// config.json files as published with the models, without keys that only other programs read.
#pragma once

namespace outrider::test_checkpoints {

extern const char* const kDeepSeekV2Lite;
extern const char* const kDeepSeekV2;
extern const char* const kDeepSeekV3;  // DeepSeek-R1's is the same
extern const char* const kKimiK2;      // Kimi-K2-Instruct
extern const char* const kKimiK25;     // Kimi-K2.5 and K2.6: a text_config inside
extern const char* const kGlm47Flash;

}  // namespace outrider::test_checkpoints
