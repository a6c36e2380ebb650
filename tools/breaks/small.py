"""Small faults that were found from outside, each made again: its test must notice."""
from mistake import Break

TOPICS = {"small": "small faults that were found from outside"}

HEADS = "*RefusesHeadsThatHttpForbids*"
OFFSETS = "*OffsetsOfAnEcho*"
RANGES = "*RangesAreToldAsTheyAre"

BREAKS = tuple(Break("small", *row[:4], program, row[4]) for program, rows in {
    "server_test": (
        ("BOS counts in an echo", "generate/request_preparer.cc",
         "echo{text, std::vector<int32_t>(token_ids.size(), 0)}",
         "echo{text, EchoTokens(token_ids, false).token_characters}", OFFSETS),
        ("special tokens are echoed", "generate/request_preparer.cc",
         "(ids, request->sampling.skip_special_tokens)", "(ids, false)", OFFSETS),
        ("Bearer has a case", "server/api_keys.cc",
         '!EqualIgnoringCase(header.substr(0, space), "Bearer")',
         'header.substr(0, space) != "Bearer"', "*GuardsEverythingButHealth*"),
        ("any expectation is met", "http/http_head.cc",
         '!AllAre(head, "Expect", "100-continue")', "false", HEADS),
        ("no Host", "http/http_head.cc", " || (hosts == 0 && !http_1_0)", "", HEADS),
        ("coded bodies", "http/http_head.cc",
         '!AllAre(head, "Content-Encoding", "identity")', "false", HEADS),
        ("a number as code", "http/http_stream.cc", '"code":null', '"code":400', "*PlainHttp*"),
        ("credentials without origins", "http/cors.cc",
         "options_.allowed_origins.empty() && options_.allow_credentials", "false",
         "*CredentialsGoWithOriginsByName"),
        ("--uds removes files", "http/http_listener.cc",
         "!S_ISSOCK(found.st_mode)", "false", "*AFileThatIsNoSocket*"),
        ("a grammar waits for thinking in the text", "generate/request_preparer.cc",
         "!task.reasoning || !", "!", "*WithoutAReasoningParser*"),
        ("tools keep all special tokens", "text/stream_detokenizer.cc",
         "std::find(kept.begin(), kept.end(), id) != kept.end()", "!kept.empty()",
         "*SpecialTokensAreNoContent*"),
        ("requests of other keys end", "server/request_registry.cc",
         " && response->caller() == caller", "", "AbortTest.AKeyEnds*"),
        ("keys share prefixes", "server/request_starter.cc",
         "if (!share_prefix_cache_) request", "if (false) request", "CacheSaltTest.*"),
        ("any host is answered", "server/allowed_hosts.cc",
         "named_.empty() ? !restricted :", "named_.empty() ? true :", "AllowedHostsTest.OnLoopback*"),
        ("forms of pages generate", "server/api.cc", "!is_get && !IsJson(", "false && !IsJson(",
         "ContentTypeTest.*"),
        ("every key pauses", "server/api.cc",
         "is_admin && !admin_keys_.IsAuthorized(head)", "false", "AdminApiTest.TakesItsOwnKeyOnly"),
        ("any number listens", "server/api.cc",
         "step_feeds_.size() >= kMostStepListeners", "false", "StepListenersTest.*"),
        ("faults are told with their files", "server/generation_response.cc",
         "if (is_of_request) return reason;", "return reason;", "FaultTest.*")),
    "options_test": (
        ("bench serve is completed as serve", "options/completion.cc",
         'command="bench ${{COMP_WORDS[2]}}"', 'command="${{COMP_WORDS[2]}}"', "Completion.*EachCommands*"),),
    "base_test": (
        ("lines wait without end", "base/line_writer.cc",
         "state_->bytes + line.size() > state_->max_bytes", "false", "LineWriterTest.*Stalls*"),
        ("the caches of files are taken", "base/host_memory.cc",
         "*limit - *usage + cached", "*limit - *usage + 0 * cached", "HostMemoryTest.AGroup*")),
    "sampling_test": (
        ("one NaN is a number", "sampling/verifier.cc", "HasNan(row) || ", "", "*.OneNaN*"),),
    "kernels_test": (
        ("one NaN is no overflow", "kernels/cpu/matmul.cc", "HasNan(outputs) ?", "false ?",
         "*.OneNaN*"),),
    "chat_command_test.py": (
        ("a second Ctrl-C ends a chat", "cli/interrupt.cc",
         "Install(SIGINT, 0);", "Install(SIGINT, static_cast<int>(SA_RESETHAND));", ""),
        ("a question that was refused is asked again", "cli/chat_command.cc",
         "      session.Withdraw();\n", "", ""),
        ("a chat forgets its answers", "cli/chat_session.cc",
         'messages_.emplace_back("assistant", text);', "", "")),
    "serve_process_test.py": (
        ("SIGHUP drains nothing", "http/stop_signals.cc",
         "if (!IsIgnored(SIGHUP)) signals_.add(SIGHUP);", "", ""),
        ("SIGPIPE ends the server", "cli/serve_command.cc",
         "  std::signal(SIGPIPE, SIG_IGN);\n", "", ""),
        ("templates are not looked at", "cli/serve_command.cc",
         "  PrepareChats(settings.engine);\n", "", ""),
        ("steps of many are measured for one", "cli/generate_command.cc",
         "engine.max_num_seqs = 1;", "", "")),
    "openai_test": (
        ("an empty level too many", "base/bounded_json.h",
         "open_.size() == limits_.max_depth", "open_.size() == limits_.max_depth + 1", "*NestAsDeepAsDocumented"),
        ("errors of JSON without a reason", "base/bounded_json.cc",
         "what.remove_prefix(before + kBefore.size())", 'what = "byte 11"',
         "*RefusesWhatIsNotAJsonObject"),
        ("calls have sorted members", "openai/parse_messages.cc",
         'ParseInOrder(RawJson(raw, {"messages"}))', "ordered_json()",
         "*TakesCallsAndTheirResults*"),
        ("temperatures up to 2", "openai/parse_sampling.cc",
         'body.NonNegative("temperature")', 'body.Number("temperature", 0, 2)',
         "*AnyFiniteTemperature*")),
    "engine_test": (
        ("free slots do not count", "engine/engine.cc",
         "slots - counters.num_requests_running", "0", "QueueLimitTest.FreeSlots*"),
        ("what can never run is to come again", "engine/engine.cc",
         "count > slots + limit", "false", "QueueLimitTest.WhatCanNever*"),
        ("a prompt's end counts as cut by the schedule", "execute/step_layout.cc",
         "planned.phase != Phase::kDecode && slots.have_drafts()", "false", "StepTraceTest.TellsWhy*"),
        ("what a grammar refuses is the drafter's", "execute/step_runner.cc",
         ".proposed = proposed,", ".proposed = allowed_drafts,", "StepTraceTest.TellsWhy*"),
        ("what does not fit is loaded", "engine/executor_maker.cc",
         "  plan_.CheckFitsHost();\n", "", "HostFitTest.AModelThatDoesNot*")),
    "execute_test": (
        ("the first limit on drafts is told, not the last", "execute/draft_limit.h",
         "    fewest = left[i];\n    limit = kLimits[i];\n",
         "    fewest = left[i];\n    if (limit == DraftLimit::kNone) limit = kLimits[i];\n", "DraftLimitTest.TheLast*"),
        ("a slot keeps the limit of the request before", "execute/request_slot.cc",
         "  draft_limit = DraftLimit::kNone;\n", "", "*NothingOfALifeBefore*")),
    "generate_test": (
        ("any number of example questions", "generate/model_defaults.cc",
         " || list.size() > kMostQuestions", "", "ExampleQuestionsTest.OtherFiles*"),),
    "full_disk_test.sh": (
        ("a full disk is no error", "cli/program.cc",
         "!std::cout || std::fflush(stdout) != 0", "false", ""),),
    "port_in_use_test.py": (
        ("a port in use is told late", "cli/serve_command.cc",
         "  HttpServer::CheckAddress(http);\n", "", ""),),
    "options_test": (
        ("no threads", "options/engine_option_rows.cc",
         "num_threads = Int32(v, 1,", "num_threads = Int32(v, 0,", RANGES),
        ("--top-p from 1e-09", "options/generate_option_rows.cc",
         "top_p = Share(v)", "top_p = Number(v, 1e-9, 1)", RANGES),
        ("shared options first", "options/help_text.cc",
         "return !IsShared", "return IsShared", "*ACommandsOwnOptionsComeFirst")),
    "tokenizer_test": (
        ("digits are all numbers", "text/split_pattern.cc",
         'set(UnicodeProperty("nd"));', 'set(UnicodeProperty("n"));', "*TakesProperties*"),
        ("ss where case is ignored", "text/split_pattern.cc",
         "pair[0] == last_letter_", "false", "SplitPattern.IgnoresCase*"),
        ("BOS twice", "text/tokenizer.cc",
         "!tokenizer.impl_->prefix.empty() || !tokenizer.impl_->suffix.empty()", "false",
         "*ReadsWhetherBosIsAdded*"),
        ("tokens of white space are taken along", "text/added_tokens.cc",
         "    done = end;", "    done = position = end;", "*EncodesLikeTheReference*")),
    "checkpoint_test": (
        ("truncate is not read", "checkpoint/deepseek_config.cc",
         "yarn.truncate = rope", "rope", "*YarnsTruncateIsRead"),
        ("keys of other networks", "checkpoint/foreign_keys.cc",
         "*value == json::parse(foreign.neutral)", "true", "*KeysOfOtherNetworks")),
    "networks_test": (
        ("a layer behind the modules", "ops/weight_loader.cc",
         "CountMtpLayers(source(), config));", "CountMtpLayers(source(), config) + 1);",
         "*ALayerBehindTheMtpModules*"),
        ("fewer layers than in the files", "ops/weight_loader.cc",
         "of_model(name) && LayerOf(name) >= layers", "false", "*FewerLayers*")),
    "layers_test": (
        ("truncate is ignored", "layers/rotary.cc",
         "if (yarn.truncate)", "if (true)", "*YarnsRampMayBeginBetween*"),),
    "ops_test": (
        ("a lone expert is not normalised", "ops/cpu/router.cc",
         "spec.normalise ?", "spec.normalise && spec.top_k > 1 ?", "*TheWeightOfASingleExpert*"),),
    "grammar_test": (
        ("schemas with not", "grammar/json_schema.cc", '{"not", "if"', '{"if"', "*RefusesByName*"),
        ("thinking may end the answer", "grammar/request_grammar.cc",
         "if (!Contains(start_after_, token)) not", "if (false) not", "*NothingEndsTheRequest*")),
}.items() for row in rows)
