"""What an engine decides before weights are read."""
from mistake import Break

TOPICS = {"plans": "what is decided from options, configs and facts of the machine"}

BREAKS = tuple(Break("plans", mistake, f"engine/plan/{source}", old, new, "plan_test", tests)
               for mistake, source, old, new, tests in (
    ("modules that never run are loaded", "draft_plan.cc", ".modules = k,", ".modules = model.modules,",
     "DraftPlan.AChainDrafts*"),
    ("a DSpark drafter without some of its stages", "draft_plan.cc", ".modules = model.modules,", ".modules = k,",
     "DraftPlan.ADSpark*"),
    ("a drafter for another vocabulary", "draft_plan.cc",
     '  check("vocab_size", c.vocab_size, target.vocab_size);\n', "", "DraftPlan.AnEagle3*"),
    ("modules behind a window keep rows", "cache_layout.cc", " || windows) return layout;", ") return layout;",
     "CachePlan.ModulesThatNeverLag*"),
    ("rows are read again without their windows", "cache_layout.cc",
     "  layout.config.rerun_tokens = drafts.reach.rerun_tokens;\n", "", "CachePlan.TheScheduler*"),
    ("weights count as work space", "cache_plan.cc", "memory.total - memory.free - weight_bytes",
     "memory.total - memory.free", "CacheMemory.IsWhatIsLeftOfAGpu"),
    ("a length that was asked for shrinks", "cache_plan.cc",
     "holds < 2 || (options.max_model_len && holds < wanted)", "holds < 2", "CachePlan.LengthShrinks*"),
    ("answers are shared whatever path they took", "cache_plan.cc",
     "!plan.form.paths.ByRole() || options.fast_prefix", "true", "CachePlan.AnswersAreShared*"),
    ("a GPU gets the form that saves a processor work", "form_plan.cc",
     "} else if (device == DeviceKind::kCuda) {", "} else if (false) {", "FormPlan.AGpu*"),
    ("a cache of 8 bits on any processor", "number_plan.cc", "if (device.kind == DeviceKind::kCuda) return;",
     "if (true) return;", "NumberPlan.ACacheOf8Bits*"),
    ("a part of the processors is pinned", "rank_plan.cc", "threads.count == usable", "threads.count <= usable",
     "ThreadPlan.OnlyATeam*"),
    ("blocks of drafts have no room behind a step", "engine_plan.cc",
     "std::max(drafts.k, drafts.reach.lookahead)", "drafts.k", "EnginePlan.AStepHasRoom*"),
    ("caches of ranks on one GPU each fill it", "rank_plan.cc",
     "different.size() == options.rank_devices.size() || ", "true || ", "RankPlan.SeveralGpus*"),
    ("one rank is listed as several", "memory_report.cc", "if (plan.ranks > 1) {", "if (true) {",
     "MemoryReport.AddsUp*"),
    ("pages that grow for states have a size that a GPU does not read", "cache_layout.cc",
     "device != DeviceKind::kCuda || config.state.heads == 0", "device != DeviceKind::kCuda || config.state.heads >= 0",
     "EnginePlan.PagesThatGrow*"),
    ("any number of drafts", "check_options.cc", "*k > kMostDrafts", "false", "CheckOptions.TheNumberOfDrafts*"),
))
