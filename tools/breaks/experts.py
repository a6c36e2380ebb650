"""The experts of tokens: mistakes by which answers tell others than those of a request alone."""
from mistake import Break

TOPICS = {"experts": "the experts of tokens in answers"}

TOGETHER = "Configurations/RoutedExpertsTest.TogetherEqualsAlone/"


def engine_break(mistake, source, old, new, tests):
    return Break("experts", mistake, source, old, new, "engine_test", tests)


def server_break(mistake, source, old, new, tests):
    return Break("experts", mistake, source, old, new, "server_test", tests)


BREAKS = (
    engine_break("drafts that were wrong count as tokens", "execute/step_runner.cc",
                 "rows.query_length - start.num_rejected);", "rows.query_length);",
                 TOGETHER + "chain3"),
    engine_break("a request has the rows of the one before it", "execute/rank.cc",
                 "subspan(static_cast<size_t>(first_row) * size,", "subspan(0 * static_cast<size_t>(first_row),",
                 TOGETHER + "chain3"),
    engine_break("a step without drafts leaves its experts to the next", "execute/step_runner.cc",
                 "if (step_.tells_experts() && !outputs().for_drafter) return false;", "",
                 "RoutedExpertsLateTest.TogetherEqualsAlone"),
    engine_break("tokens that are computed again are told twice", "engine/request_state.cc",
                 "const int64_t known = std::min(next - result.experts_from, rows);",
                 "const int64_t known = 0;", TOGETHER + "chain3_preempted"),
    engine_break("what is asked for may come from the cache", "engine/request_state.h",
                 "return parameters_->experts_from.value_or(prompt_length());",
                 "return prompt_length();",
                 "RoutedExpertsScenarioTest.CachedTokensAreThoseThatNobodyAsksFor"),
    engine_break("nothing comes from the cache", "engine/request_state.h",
                 "return parameters_->experts_from.value_or(prompt_length());",
                 "return parameters_->experts_from ? 0 : prompt_length();",
                 "RoutedExpertsScenarioTest.CachedTokensAreThoseThatNobodyAsksFor"),
    engine_break("rows behind the end are told", "engine/request_state.cc",
                 "std::clamp<int64_t>(num_tokens() - 1 - experts_.from, 0, taken)", "taken",
                 "RoutedExpertsScenarioTest.EndWithTheLastTokenButOne"),
    engine_break("all layers write to the first", "ops/moe.h",
                 "return {ids + layer * shape.top_k, shape.RowSize()};",
                 "return {ids + 0 * layer, shape.RowSize()};",
                 "RoutedExpertsScenarioTest.HaveTheModelsShape"),
    Break("experts", "rows are told as the groups of experts have them", "ops/cpu/expert_ops.cc",
          "std::transform(r.ids + row * r.top_k, r.ids + (row + 1) * r.top_k, chosen.From(row).ids,",
          "std::transform(r.source_row + row * r.top_k, r.source_row + (row + 1) * r.top_k, "
          "chosen.From(row).ids,", "ops_test", "RouterTest.ChosenExpertsAreToldRowByRow"),
    engine_break("DeepSeek-V4's layers tell nothing", "networks/deepseek_v4_network.cc",
                 "step.chosen = taps.experts.Layer(static_cast<int64_t>(i));", "",
                 "RoutedExpertsScenarioTest.V4HasExpertsByTableAndByScore"),
    engine_break("experts of weights that drew nothing stay", "engine/request_state.h",
                 "if (num_tokens() == prompt_length()) experts_.ids.clear();", "",
                 "WeightUpdateTest.ExpertsAreThoseOfTheWeightsThatDrewTheToken"),
    engine_break("an engine without the option takes requests for them", "engine/request_check.cc",
                 "if (!parts.routed) {", "if (false) {",
                 "RoutedExpertsScenarioTest.RefusesWhatItCannotTell"),
    engine_break("a step's experts are those of the step before", "execute/rank.cc",
                 "    experts_.clear();\n", "", TOGETHER + "chain3"),
    server_break("numbers are told as another type", "openai/experts_json.cc",
                 "'descr': '<i2'", "'descr': '<i4'", "RoutedExpertsApiTest.AreInAnswersInVllmsForm"),
    server_break("base64 without padding", "openai/experts_json.cc",
                 "kDigits[group >> (18 - 6 * d) & 63U] : '=';",
                 "kDigits[group >> (18 - 6 * d) & 63U] : 'A';",
                 "RoutedExpertsApiTest.*"),
    server_break("SGLang's clients get them unasked", "openai/parse_sglang_request.cc",
                 "ParseExperts(fields, sampling, limits, /*by_default=*/false, &request);",
                 "ParseExperts(fields, sampling, limits, /*by_default=*/true, &request);",
                 "RoutedExpertsApiTest.AreInAnswersInSglangsForm"),
    server_break("a router's fields are unknown in chats", "openai/parse_chat_request.cc",
                 "  ParseWhatRoutersAdd(fields, &request);\n", "",
                 "RouterApiTest.TakesTheDefaultsThatRoutersAdd"),
    server_break("a router's fields change nothing", "openai/parse_shared.cc",
                 "request->sampling.include_stop_str_in_output = true;\n  }\n  fields.Unsupported(\"return_hidden",
                 "request->sampling.include_stop_str_in_output = false;\n  }\n  fields.Unsupported(\"return_hidden",
                 "RouterApiTest.TakesTheDefaultsThatRoutersAdd"),
    server_break("they are asked for where the server does not tell them", "openai/parse_shared.cc",
                 "if (asked.value_or(false) && !limits.tells_experts) {", "if (false) {",
                 "RoutedExpertsOffTest.AreRefusedByName"),
    server_break("the cache is flushed by POST only", "server/api.cc",
                 "AdminRoute::kFlushCache, /*takes_get=*/true}", "AdminRoute::kFlushCache}",
                 "AdminApiTest.FlushesTheCacheForGetToo"),
)
