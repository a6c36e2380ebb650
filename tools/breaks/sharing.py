"""What requests share: cached beginnings of prompts, the prompt rows of a step, the time of threads that
compile grammars.
"""
from mistake import Break

TOPICS = {
    "prefixes": "what is published, and who may find it",
    "rows": "prompt rows of a step, between short and long prompts",
    "compiling": "grammars that take long",
}

SCHEDULER = "schedule/scheduler.cc"

BREAKS = (
    Break("prefixes", "blocks of answers are found over a latent cache", SCHEDULER,
          "if (config_.publish_answers) return", "if (config_.max_model_len > 0) return",
          "schedule_test", "PrefixCachingTest.AnswersAreCachedWhereTheyMayBe"),
    Break("prefixes", "blocks of answers are found over a latent cache", SCHEDULER,
          "if (config_.publish_answers) return", "if (config_.max_model_len > 0) return",
          "engine_test", "Drafters/PrefixCacheTest.AConversationKeepsItsBits/*"),
    Break("prefixes", "the blocks of a last step are forgotten", "engine/engine_core.cc",
          "(planned.publishes && !failed && emitted > 0)", "false",
          "engine_test", "Drafters/PrefixCacheTest.APromptOfOneStepIsFoundAgain/*"),
    Break("prefixes", "the drafter does not see the rows of a last step", "execute/step_runner.cc",
          "  DraftFor(/*depth=*/0);\n", "",
          "engine_test", "Drafters/PrefixCacheTest.APromptOfOneStepIsFoundAgain/*"),
    Break("prefixes", "drafts behind the end of a request count as its tokens", "engine/engine_core.cc",
          "std::min(results[i].verified.num_accepted, emitted - 1)", "results[i].verified.num_accepted",
          "engine_test", "Drafters/PrefixCacheTest.WhatEndsInTheMiddleOfAWindow*"),
    Break("prefixes", "plans do not say what a last step would publish", SCHEDULER,
          "std::min(most_computed, PublishableTokens(entry))",
          "std::min(planned.context_length, PublishableTokens(entry))",
          "schedule_test", "PrefixCachingTest.PlansSayWhetherALastStepWouldPublish"),
    Break("prefixes", "prompts that are scored take what is cached", SCHEDULER,
          "std::clamp(entry.prompt_length - std::max(config_.tokens_ahead, 1), 0, entry.most_shared);",
          "std::max(entry.prompt_length - std::max(config_.tokens_ahead, 1), 0);",
          "schedule_test", "PrefixCachingTest.WhoWantsAllRows*"),
    Break("rows", "a long prompt takes all rows", SCHEDULER, "int32_t share = budget_ / 2;",
          "int32_t share = 0;", "schedule_test", "PromptSharesProperty.AShortPromptsWait*"),
    Break("rows", "short prompts take more than half of the rows", SCHEDULER,
          "int32_t share = budget_ / 2;", "int32_t share = budget_ - 1;",
          "schedule_test", "PromptSharesProperty.WhatComesLater*"),
    Break("rows", "prompts of like lengths share rows", SCHEDULER,
          "entry->RowsLeft() < long_one.RowsLeft() / 2", "entry->RowsLeft() > 0",
          "schedule_test", "PromptSharesTest.PromptsOfLikeLengths*"),
    Break("rows", "short prompts come before more important ones", SCHEDULER,
          " || entry->priority != long_one.priority", "",
          "schedule_test", "PromptSharesTest.PriorityComesBeforeLength"),
    Break("rows", "short prompts take the places of those before them", SCHEDULER,
          "(LeavesRoom(entry) && Admit(entry, share))", "Admit(entry, share)",
          "schedule_test", "PromptSharesTest.NobodyPasses*"),
    Break("rows", "what is cached of a prompt counts as its length", SCHEDULER,
          "    entry->likely_hit = cache_.FindPrefix(entry->keys->blocks, MostShared(*entry));\n", "",
          "schedule_test", "PromptSharesTest.WhatIsCached*"),
    Break("compiling", "refusals are forgotten", "grammar/grammar_compiler.cc",
          "    impl_->cache.Put(spec, {nullptr, refusal});\n    throw;", "    throw;",
          "grammar_test", "GrammarCompilerTest.RemembersRefusals"),
    Break("compiling", "the deadline is not looked at while a grammar is made",
          "grammar/compile_deadline.h", "if (++calls % 256 == 0) CheckCompileDeadline();", "++calls;",
          "grammar_test", "Hostile/CompileBoundTest.*"),
)
