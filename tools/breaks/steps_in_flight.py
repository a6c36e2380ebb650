"""What must hold while the next step is planned and launched before the last is committed. Most of
these mistakes were made by other engines.
"""
from mistake import Break

TOPICS = {
    "pages": "pages behind the step in flight",
    "budget": "drafts that are not known yet, in the budget",
    "length": "a request's last token",
    "preempt": "pages run out with a step in flight",
    "publish": "prefixes that are in flight",
    "owner": "a slot's next request, with a step of the last in flight",
    "resumed": "what a preempted request leaves in its slot",
    "masks": "masks after what the step in flight accepts",
    "end": "a request that ended in the step in flight",
    "stop-string": "a stop string, and an end behind it",
    "gone": "requests that go with a step in flight",
}

BREAKS = (
    Break("pages", "pages are reserved from the least length", "schedule/scheduler.cc",
          "bounded(entry.MostComputed() + rows)", "bounded(entry.LeastComputed() + rows)",
          "schedule_test", "StepsInFlightTest.PagesReachBehindTheStepInFlight"),
    Break("budget", "the drafts of the step before count", "schedule/scheduler.cc",
          "budget_ -= 1 + num_drafts;", "budget_ -= 1 + entry->num_drafts;",
          "schedule_test", "StepsInFlightTest.TheBudgetCountsDraftsThatMayCome"),
    Break("length", "steps are planned beyond the last token", "schedule/scheduler.cc",
          "if (!entry->Decodes() || entry->Ends()) continue;", "if (!entry->Decodes()) continue;",
          "schedule_test", "StepsInFlightTest.NothingIsPlannedBeyondARequestsLastToken"),
    Break("preempt", "a request in flight is preempted", "schedule/scheduler.cc",
          "    if (!reserved && num_in_flight_ > 0) return false;\n", "",
          "schedule_test", "StepsInFlightTest.NobodyIsPreemptedWhileAStepIsInFlight"),
    Break("publish", "blocks are published when they are planned", "schedule/scheduler.cc",
          "  planned.tables = &entry.tables;\n",
          "  planned.tables = &entry.tables;\n  if (entry.keys != nullptr) {\n"
          "    cache_.Publish(entry.tables, entry.keys->blocks, entry.MostComputed());\n  }\n",
          "schedule_test", "StepsInFlightTest.NothingInFlightIsPublished"),
    Break("publish", "blocks are published when they are planned", "schedule/scheduler.cc",
          "  planned.tables = &entry.tables;\n",
          "  planned.tables = &entry.tables;\n  if (entry.keys != nullptr) {\n"
          "    cache_.Publish(entry.tables, entry.keys->blocks, entry.MostComputed());\n  }\n",
          "schedule_test", "PrefixCachingProperty.*"),
    Break("owner", "results go to whoever has the slot", "engine/engine_core.cc",
          "if (state == nullptr || state->id() != planned.id) continue;",
          "if (state == nullptr) continue;",
          "engine_test", "Drafters/LateStepsTest.SlotsAndPagesInFlightGoToTheNextRequest/*"),
    Break("resumed", "drafts stay in the slot", "execute/request_slot.cc",
          "  drafts.clear();\n", "",
          "engine_test", "Drafters/LateStepsTest.PreemptedRequestsLoseNothing/*"),
    Break("resumed", "drafts stay in the slot", "execute/request_slot.cc",
          "  drafts.clear();\n", "",
          "execute_test", "RequestSlotTest.NothingOfALifeBeforeIsLeft"),
    Break("masks", "the grammar stands before the step's last token", "execute/request_slot.cc",
          "grammar->Advance(std::span(tokens).subspan(before))",
          "grammar->Advance(std::span(tokens).subspan(before == size_t(parameters->prompt_length) "
          "? before : before - 1, tokens.size() - 1 - (before == size_t(parameters->prompt_length) "
          "? before : before - 1)))",
          "engine_test", "Drafters/LateStepsTest.MasksFollowWhatTheStepInFlightAccepts/*"),
    Break("end", "a request that has ended runs on", "execute/inline_executor.cc",
          "slot.parameters != nullptr && !slot.ended;", "slot.parameters != nullptr;",
          "engine_test", "Drafters/LateStepsTest.ShortAnswersEndInTheStepInFlight/*"),
    Break("end", "drafts reach past the context's end", "execute/request_slot.cc",
          "return std::clamp(parameters->max_total_tokens - num_tokens() - 1, 0, most);",
          "return most;",
          "engine_test", "Drafters/LateStepsTest.EndsInTheStepInFlightAtTheContextsEnd/*"),
    Break("stop-string", "an end by token comes before the stop string", "engine/request_state.cc",
          "  if (stop_matcher_.stopped()) {\n    delta.stop_reason",
          "  if (stop_matcher_.stopped() && end == TokenEnd::kGoesOn && false) {\n"
          "    delta.stop_reason",
          "engine_test", "Drafters/LateStepsTest.AStopStringComesBeforeAnEndBehindIt/*"),
    Break("gone", "an aborted request keeps its slot", "engine/engine_core.cc",
          "  LeaveSlot(*it->second);\n", "",
          "engine_test", "Drafters/LateStepsTest.AbortedWithAStepInFlight/*"),
    Break("gone", "the steps of who is removed stay counted", "schedule/scheduler.cc",
          "  num_in_flight_ -= entry->steps_in_flight;\n", "",
          "schedule_test", "StepsInFlightTest.PreemptionIsPossibleAfterRequestsInFlightHaveGone"),
)
