#!/usr/bin/env python3
"""Breaks the product on purpose, one mistake at a time, and sees the tests of speculation fail.

    python3 tools/break_scenarios.py            all breaks
    python3 tools/break_scenarios.py --only 2,7 those of scenarios 2 and 7
    python3 tools/break_scenarios.py --list     what would be broken, and which test must notice
    python3 tools/break_scenarios.py --check    only whether every break still fits the sources

Twenty scenarios in which naive engines with speculative decoding go wrong each have a test. Here
stands, for each, a small mistake of the kind that the scenario guards against. The sources are
copied to build/breaks and built there (Release); the tests must pass first. Then one mistake after
the other is made in the copy, the one test program built, and the test named must fail. The
checkout itself is only read. A second run builds what has changed.

Prints a Markdown table. A test "fails" by what it expects; "stopped" means that the product noticed
first, by an OUTRIDER_CHECK, or crashed. Ends with 0 when every test failed on its break; 1 when one
still passes or a break does not compile; 2 when nothing could be said: a test fails without any
break, a text to be replaced is gone.
"""
import argparse
import dataclasses
import filecmp
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPIED = ("CMakeLists.txt", "cmake", "models", "src", "tests")
ROOM_OF = {"batch_test": "batch", "engine_test": "engine", "model_test": "model",
           "sampling_test": "sampling", "speculate_test": "speculate"}
TEST_SECONDS = 600  # a broken engine may never come to an end

SCENARIOS = {
    1: "2, 0, 1 and 3 drafts rejected in one batch",
    2: "every number of accepted drafts after every other, three modules",
    3: "nothing accepted, again and again, right after the prompt",
    4: "prompts of one and two tokens, then nothing accepted",
    5: "last chunk of one token, then nothing accepted",
    6: "chunk ends 1 to k tokens before the prompt does",
    7: "prefix hit that ends on a block's edge, then nothing accepted",
    8: "same prefix, another next token: acceptance as before",
    9: "requests finish and join at every step",
    10: "preempted in the middle of speculation, then resumed",
    11: "few positions left in the context; pages that end inside the window",
    12: "EOS, max_tokens and min_tokens inside the window",
    13: "penalties where the first two drafts are the same token",
    14: "bad word over an accepted draft and the bonus token",
    15: "long chunks, grammars and plain requests in one batch",
    16: "grammar refuses, ends or begins inside the window",
    17: "drawn drafts leave the distribution as it is",
    18: "seeded output is equal for every k and batch",
    19: "number of drafts falls to none and comes back",
    20: "later drafts are accepted almost as often as the first",
}


@dataclasses.dataclass(frozen=True)
class Break:
    """A mistake: in `source`, under src/outrider, `old` (found once) becomes `new`."""
    scenario: int
    mistake: str
    source: str
    old: str
    new: str
    program: str
    tests: str  # a gtest filter


BREAKS = (
    Break(1, "drafts go on from the window's end, rejected rows included", "batch/padded_drafts.h",
          ".frontier = rows.context_length + rows.query_length - 1 - rejected};",
          ".frontier = rows.context_length + rows.query_length - 1};",
          "batch_test", "PaddedDraftsTest.RejectionsTwoNoneOneThreeInOneBatch"),
    Break(2, "stale rows run again, but for the first of them",
          "speculate/mtp_chain_drafter.cc",
          "std::clamp(LastRightToken(r) - (k_ - 1), 0, start);",
          "std::clamp(LastRightToken(r) - (k_ - 2), 0, start);",
          "speculate_test", "Drafters/DrafterScenarioTest.EveryAcceptedCountAfterEveryOther/*"),
    Break(3, "no row of the prompt runs again after it has ended", "speculate/mtp_chain_drafter.cc",
          "} else if (start > 0) {", "} else if (start > r.prompt_length) {",
          "speculate_test",
          "Drafters/DrafterScenarioTest.AllRejectedAgainAndAgainRightAfterThePrompt/*"),
    Break(4, "nothing runs again while there are fewer rows than modules",
          "speculate/mtp_chain_drafter.cc",
          "} else if (start > 0) {", "} else if (start >= k_) {",
          "speculate_test",
          "Drafters/DrafterScenarioTest.PromptsOfOneAndTwoTokensThenAllRejected/*"),
    Break(5, "a chunk without drafts leaves no hidden rows behind",
          "speculate/mtp_chain_drafter.cc",
          "  state.drafts.assign(drafts.begin(), drafts.end());\n",
          "  state.drafts.assign(drafts.begin(), drafts.end());\n  if (drafts.empty()) return;\n",
          "speculate_test", "Drafters/DrafterScenarioTest.LastChunkOfOneTokenThenAllRejected/*"),
    Break(6, "one prompt token past a chunk is read, later modules' are not",
          "speculate/mtp_chain_drafter.cc",
          "const auto known = static_cast<int32_t>(r.tokens.size());\n  if (index < known)",
          "const int32_t known = r.frontier + 2;\n  if (index < known)",
          "speculate_test",
          "Drafters/DrafterScenarioTest.ChunkBoundaryOneToKTokensBeforeThePromptsEnd/*"),
    Break(7, "entries of a prefix hit are taken for stale", "speculate/mtp_chain_drafter.cc",
          "state.last_known = computed - 1 + (computed > 0 ? k_ : 0);",
          "state.last_known = computed - 1;",
          "engine_test",
          "Drafters/SpeculationScenarioTest.PrefixHitOnABlocksEdgeThenEverythingRejected/*"),
    Break(8, "a block's key leaves out the tokens after it", "kv/block_key.cc",
          "Bytes(tokens.subspan(first, length))", "Bytes(tokens.subspan(first, block))",
          "engine_test",
          "Drafters/SpeculationScenarioTest.SamePrefixOtherNextTokenKeepsItsAcceptance/*"),
    Break(9, "hidden rows are looked up by place in the batch", "speculate/mtp_chain_drafter.cc",
          ": Ring(r.slot, p);", ": Ring(static_cast<int32_t>(i), p);",
          "engine_test",
          "Drafters/SpeculationScenarioTest.FinishAndInsertEveryStepWithStateLive/*"),
    Break(10, "what a resumed request had generated counts as its prompt", "schedule/scheduler.cc",
          "const int32_t end = prompt ? entry.prompt_length : entry.num_tokens;",
          "const int32_t end = entry.num_tokens;",
          "engine_test",
          "Drafters/SpeculationScenarioTest.PreemptedInTheMiddleOfSpeculationThenResumed/*"),
    Break(11, "drafts reach past the context's end", "engine/request_state.cc",
          "return std::clamp(max_total_tokens_ - num_tokens() - 1, 0, most);", "return most;",
          "engine_test",
          "Drafters/SpeculationScenarioTest.OneTwoOrThreePositionsLeftInTheContext/*"),
    Break(11, "rows after a page's end go to the page next to it", "batch/batch_layout.cc",
          "std::min(end, (block + 1) * block_size_)", "end",
          "engine_test", "Drafters/SpeculationScenarioTest.PageEdgesInsideTheDraftWindow/*"),
    Break(12, "what follows EOS in the window is emitted", "engine/request_state.cc",
          "i < verified.tokens.size() && !finished(); ++i", "i < verified.tokens.size(); ++i",
          "engine_test", "RequestStateTest.EosAtAcceptedDraft1Of3"),
    Break(12, "max_tokens is noticed one token late", "engine/request_state.cc",
          "num_tokens() >= max_total_tokens_", "num_tokens() > max_total_tokens_",
          "engine_test", "RequestStateTest.MaxTokensMidWindow"),
    Break(12, "min_tokens counts emitted tokens only", "sampling/logits_processors.cc",
          "history.num_output() < min_tokens_",
          "history.tokens.size() - history.prompt_length < min_tokens_",
          "sampling_test", "VerifierTest.MinTokensEndsMidWindow"),
    Break(13, "rows do not see the drafts before them", "sampling/verifier.cc",
          "input.drafts.first(accepted)}", "input.drafts.first(0)}",
          "sampling_test", "VerifierTest.RepetitionPenaltyWhereDraft1IsDraft2"),
    Break(13, "drafts are counted for good", "sampling/logits_processors.cc",
          "  for (const int32_t token : history.drafts) counts_->Remove(token);\n", "",
          "sampling_test", "VerifierTest.RepetitionPenaltyWhereDraft1IsDraft2"),
    Break(14, "a bad word must begin before the window", "sampling/logits_processors.cc",
          "if (before > history.num_output()) continue;",
          "if (before > history.tokens.size() - history.prompt_length) continue;",
          "sampling_test", "VerifierTest.BadWordSpansAcceptedDraftAndBonus"),
    Break(15, "masks are read by the request's number, not by its row", "engine/engine_core.cc",
          "masks.Rows(first_row, request.num_logits_rows)",
          "masks.Rows(std::min(request.work_index, rows - request.num_logits_rows), "
          "request.num_logits_rows)",
          "engine_test", "Drafters/GrammarScenarioTest.MixedBatchesOfLongChunks*"),
    Break(16, "the walk over refused drafts is not taken back", "grammar/request_grammar.cc",
          "  ReturnTo(before);\n  return count;",
          "  if (count == drafts.size()) ReturnTo(before);\n  return count;",
          "engine_test", "Drafters/GrammarScenarioTest.RefusesADraftInsideTheWindow/*"),
    Break(16, "an end inside the window drops the drafts before it", "sampling/verifier.cc",
          "      result->dead_end = true;\n",
          "      result->dead_end = true;\n      result->tokens.clear();\n"
          "      result->num_accepted = 0;\n",
          "engine_test", "Drafters/GrammarScenarioTest.EndsInsideTheWindow/*"),
    Break(16, "a grammar that begins inside the window holds from the next step on",
          "grammar/request_grammar.cc",
          "    if (possible) {", "    if (possible && (before.started || j == 0)) {",
          "engine_test", "Drafters/GrammarScenarioTest.ThinkingEndsInsideTheWindow/*"),
    Break(17, "a draft is judged with the number that it was drawn with",
          "sampling/acceptance.cc",
          "UniformDouble(seed, at, RandomStream::kAccept) * q_draft",
          "UniformDouble(seed, at, RandomStream::kDraft) * q_draft",
          "speculate_test", "LosslessTest.StandardWithDrawnDraftsFollowsTheTarget"),
    Break(18, "all rows of a window are drawn with one random number", "sampling/verifier.cc",
          "static_cast<int64_t>(input.tokens.size() + index);",
          "static_cast<int64_t>(input.tokens.size());",
          "engine_test", "Drafters/SpeculationScenarioTest.SeededOutputIsEqualForEveryKAndBatch/*"),
    Break(19, "at no drafts the drafter does not run", "engine/engine_core.cc",
          "  counters_.num_speculative_tokens = wanted;\n",
          "  counters_.num_speculative_tokens = wanted;\n  if (wanted == 0) return;\n",
          "engine_test", "DraftingTest.DynamicKFallsToNoneWithManyRequestsAndRecoversAtOnce"),
    Break(19, "the drafts of the step before stay planned", "schedule/scheduler.cc",
          "  entry.num_drafts = num_drafts;\n",
          "  if (num_drafts > 0) entry.num_drafts = num_drafts;\n",
          "engine_test", "DraftingTest.DynamicKFallsToNoneWithManyRequestsAndRecoversAtOnce"),
    Break(19, "hidden rows of steps without drafts are not kept", "speculate/mtp_chain_drafter.cc",
          "  state.drafts.assign(drafts.begin(), drafts.end());\n",
          "  state.drafts.assign(drafts.begin(), drafts.end());\n"
          "  if (drafts.empty() && r.first_position >= r.prompt_length) return;\n",
          "speculate_test",
          "Drafters/DrafterStateTest.EqualsRecomputationAfterEveryStep/Chain3"),
    Break(20, "every draft but the last comes from module 0", "speculate/mtp_chain_drafter.cc",
          "model_.ForwardMtp(m, rows_.layout(), cache_, rows, rows);",
          "model_.ForwardMtp(0, rows_.layout(), cache_, rows, rows);",
          "engine_test", "SpeculationScenarioTest.LaterDraftsAreAcceptedAlmostAsOftenAsTheFirst"),
    Break(20, "a module hands on rows without its last norm", "model/mla_model.cc",
          "  kernels_.rms_norm(pool_, out, w.output_norm, eps, hidden.Rows(0, num_outputs));\n",
          "  for (int64_t r = 0; r < num_outputs; ++r) "
          "std::copy_n(out.row(r), width, hidden.row(r));\n",
          "model_test", "Forms/MtpGoldenTest.EveryModule/*"),
)


class CannotTell(Exception):
    """Why nothing can be said about the breaks."""


class DoesNotBuild(Exception):
    """The compiler's last words."""


def broken_text(b, root):
    """The text of the break's source with the mistake in it."""
    text = (root / "src/outrider" / b.source).read_text(encoding="utf-8")
    count = text.count(b.old)
    if count != 1:
        raise CannotTell(f"scenario {b.scenario} ({b.mistake}): the text to be replaced stands "
                         f"{count} times in src/outrider/{b.source}, not once:\n{b.old}")
    return text.replace(b.old, b.new)


def source_files(root):
    """Relative paths of what is copied, of those that `root` has."""
    for name in COPIED:
        path = root / name
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                yield file.relative_to(root)


def copy_sources(target):
    """Makes `target` equal to the checkout; leaves files alone that are so already."""
    wanted = list(source_files(ROOT))
    for gone in set(source_files(target)) - set(wanted):
        (target / gone).unlink()
    for file in wanted:
        copy = target / file
        if not copy.exists() or not filecmp.cmp(ROOT / file, copy, shallow=False):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / file, copy)


class Workplace:
    """A copy of the sources and its build."""

    def __init__(self, directory, jobs):
        self.sources = directory
        self.build = directory / "build" / "release"
        self.jobs = jobs

    def run(self, command):
        result = subprocess.run(command, text=True, errors="replace", stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT)
        if result.returncode != 0:
            raise DoesNotBuild(result.stdout[-3000:])

    def configure(self, programs):
        downloads = self.sources / "build" / "downloads"
        if not downloads.exists():  # what the checkout's own builds fetched, or will use
            (ROOT / "build" / "downloads").mkdir(parents=True, exist_ok=True)
            downloads.parent.mkdir(parents=True, exist_ok=True)
            downloads.symlink_to(ROOT / "build" / "downloads")
        rooms = ";".join(sorted({ROOM_OF[program] for program in programs}))
        self.run(["cmake", "-G", "Ninja", "-S", str(self.sources), "-B", str(self.build),
                  "-DCMAKE_BUILD_TYPE=Release", "-DOUTRIDER_BUILD_TESTS=ON",
                  f"-DOUTRIDER_TEST_ROOMS={rooms}"])

    def make(self, programs):
        self.run(["cmake", "--build", str(self.build), "-j", str(self.jobs), "--target", *programs])

    def test(self, b):
        """"passes", "fails" or "stopped"; and what the test program printed."""
        program = self.build / "tests" / ROOM_OF[b.program] / b.program
        try:
            result = subprocess.run(
                [str(program), f"--gtest_filter={b.tests}", "--gtest_fail_fast"], text=True,
                errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                timeout=TEST_SECONDS)
        except subprocess.TimeoutExpired:
            return "stopped", f"no end after {TEST_SECONDS} s"
        if "Running 0 tests" in result.stdout:
            raise CannotTell(f"{b.program} has no test {b.tests}")
        if result.returncode == 0:
            return "passes", result.stdout
        return ("fails" if "[  FAILED  ]" in result.stdout else "stopped"), result.stdout

    def with_break(self, b):
        """What test() says with the mistake built in."""
        source = self.sources / "src/outrider" / b.source
        sound = source.read_text(encoding="utf-8")
        source.write_text(broken_text(b, self.sources), encoding="utf-8")
        try:
            self.make([b.program])
            return self.test(b)
        finally:
            source.write_text(sound, encoding="utf-8")


def say(text):
    print(text, file=sys.stderr, flush=True)


def run_unbroken(workplace, breaks):
    programs = sorted({b.program for b in breaks})
    say(f"copying to {workplace.sources}, building {', '.join(programs)}")
    copy_sources(workplace.sources)
    try:
        workplace.configure(programs)
        workplace.make(programs)
    except DoesNotBuild as error:
        raise CannotTell(f"the sources do not build without any break:\n{error}") from None
    for b in {(b.program, b.tests): b for b in breaks}.values():
        verdict, output = workplace.test(b)
        if verdict != "passes":
            raise CannotTell(f"{b.tests} fails without any break:\n{output[-3000:]}")
        say(f"unbroken: {b.tests} passes")


def run_breaks(workplace, breaks, verbose):
    """Prints the table as it grows; returns the verdicts."""
    verdicts = []
    print("| | scenario | break | test | s | |\n|---|---|---|---|---|---|")
    for number, b in enumerate(breaks, 1):
        say(f"[{number}/{len(breaks)}] scenario {b.scenario}: {b.mistake}")
        start = time.monotonic()
        try:
            verdict, output = workplace.with_break(b)
        except DoesNotBuild as error:
            verdict, output = "DOES NOT COMPILE", str(error)
        if verdict == "passes":
            verdict = "STILL PASSES"
        seconds = time.monotonic() - start
        if verbose or verdict == "DOES NOT COMPILE":
            say(output[-3000:])
        say(f"    {verdict}, {seconds:.0f} s")
        print(f"| {b.scenario} | {SCENARIOS[b.scenario]} | {b.mistake} (`{b.source}`) "
              f"| `{b.program}` `{b.tests}` | {seconds:.0f} | {verdict} |", flush=True)
        verdicts.append(verdict)
    return verdicts


def parse_numbers(text):
    numbers = [int(part) for part in text.split(",")]
    unknown = [n for n in numbers if n not in SCENARIOS]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no scenario {unknown[0]}: they are 1 to "
                                         f"{max(SCENARIOS)}")
    return numbers


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=parse_numbers, metavar="N[,N]",
                        help="the breaks of these scenarios only")
    parser.add_argument("--list", action="store_true", help="print the breaks and end")
    parser.add_argument("--check", action="store_true",
                        help="see that every break fits the sources and end")
    parser.add_argument("--directory", type=pathlib.Path, default=ROOT / "build" / "breaks",
                        help="where the copy lives (default build/breaks)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="of the build")
    parser.add_argument("--verbose", action="store_true",
                        help="also print what each broken test printed last")
    arguments = parser.parse_args()
    breaks = [b for b in BREAKS if not arguments.only or b.scenario in arguments.only]
    if arguments.list:
        for b in breaks:
            print(f"{b.scenario:>2}. {SCENARIOS[b.scenario]}\n    break: {b.mistake} ({b.source})\n"
                  f"    test:  {b.program} {b.tests}")
        return 0
    try:
        for b in breaks:
            broken_text(b, ROOT)
        if arguments.check:
            print(f"{len(breaks)} breaks of {len({b.scenario for b in breaks})} scenarios fit")
            return 0
        workplace = Workplace(arguments.directory.resolve(), arguments.jobs)
        run_unbroken(workplace, breaks)
        verdicts = run_breaks(workplace, breaks, arguments.verbose)
    except CannotTell as error:
        say(f"break_scenarios: error: {error}")
        return 2
    return 0 if all(verdict in ("fails", "stopped") for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
