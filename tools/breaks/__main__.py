"""Breaks the product on purpose, one mistake at a time, and sees the tests fail.

    python3 tools/breaks                    all breaks that need no GPU
    python3 tools/breaks server             those of one list: speculation, server,
                                            steps_in_flight, windows, caches, eagle3,
                                            experts, formats, sparse, small, sharing, states,
                                            host_cache, plans, grpc, hopper
    python3 tools/breaks hopper --keep DIR  builds the broken programs only, for a machine with a GPU
    python3 tools/breaks --only 2,7,tls     those of these topics
    python3 tools/breaks --list             what would be broken, and which test must notice
    python3 tools/breaks --check            only whether every break still fits the sources

The lists are files beside this one (hopper.py and so on): for each topic, small mistakes of the
kind that its tests guard against. The sources are copied to build/breaks and built there (Release);
the tests must pass first. Then one mistake after the other is made in the copy, the one test
program built, and the test named must fail. The checkout itself is only read. A second run builds
what has changed.

Prints a Markdown table. A test "fails" by what it expects; "stopped" means that the product noticed
first, by an OUTRIDER_CHECK, crashed, or never came to an end. Ends with 0 when every test failed on
its break; 1 when one still passes or a break does not compile; 2 when nothing could be said: a test
fails without any break, a text to be replaced is gone.
"""
import argparse
import filecmp
import os
import pathlib
import shutil
import subprocess
import sys
import time

import caches
import eagle3
import experts
import formats
import hopper
import host_cache
import plans
import remote_calls
import server
import sharing
import small
import sparse
import speculation
import states
import steps_in_flight
import windows

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
COPIED = ("CMakeLists.txt", "bench", "cmake", "docs", "models", "src", "tests", "tools")
PLACE_OF = {  # of a test program, under tests/
    **dict.fromkeys(("choose_entries_test", "compress_entries_test", "compressed_attention_test",
                     "draw_test", "expert_matmul_test", "expert_router_test",
                     "gqa_attention_test", "head_rows_test", "hyper_rows_test", "index_keys_test", "kda_rows_test",
                     "index_scores_test", "listed_attention_test", "matmul_test", "mla_decode_test", "norm_rows_test",
                     "prompt_attention_test", "prompt_rows_test", "query_rows_test"), "kernels/cuda"),
    **dict.fromkeys(("compressed_cuda_ops_test", "cuda_ops_test", "cuda_sampler_test", "delta_cuda_ops_test", "hopper_gpu_test",
                     "peer_communicator_test", "sparse_cuda_ops_test"), "ops/cuda"),
    **dict.fromkeys(("families_test", "hybrid_test", "sparse_model_test"), "networks/cuda"),
    "sparse_choice_test": "networks",
    **dict.fromkeys(("plan_test", "running_state_test"), "engine"),
    **dict.fromkeys(("cuda_engine_test", "gpu_ranks_test", "out_of_memory_test", "v4_engine_test"), "engine/cuda"),
    "tokenizer_test": "text",
    **dict.fromkeys(("chat_command_test.py", "full_disk_test.sh", "port_in_use_test.py",
                     "serve_process_test.py", "trained_hybrid_test.py"), "cli"),
    **{f"{room}_test": room for room in ("attention", "base", "batch", "checkpoint", "cli", "draft", "engine", "execute",
                                         "generate",
                                         "grammar", "grpc", "kernels", "kv", "layers", "networks", "openai", "ops", "options",
                                         "output", "parallel", "sampling", "schedule", "server")}}
STANDS_ON = {"grpc": "server"}  # rooms whose tests use what another room's tests have
INTERPRETERS = {".sh": "bash", ".py": sys.executable}  # of tests that run the outrider program
TEST_SECONDS = 600  # a broken engine may never come to an end
LISTS = {"speculation": speculation, "server": server, "steps_in_flight": steps_in_flight,
         "windows": windows, "caches": caches, "eagle3": eagle3, "experts": experts, "formats": formats,
         "sparse": sparse, "small": small, "sharing": sharing, "states": states, "host_cache": host_cache,
         "plans": plans, "grpc": remote_calls, "hopper": hopper}
TOPICS = {topic: text for one in LISTS.values() for topic, text in one.TOPICS.items()}


class CannotTell(Exception):
    """Why nothing can be said about the breaks."""


class DoesNotBuild(Exception):
    """The compiler's last words."""


def broken_text(b, root):
    """The text of the break's source with the mistake in it."""
    text = (root / "src/outrider" / b.source).read_text(encoding="utf-8")
    count = text.count(b.old)
    if count != 1:
        raise CannotTell(f"{b.topic} ({b.mistake}): the text to be replaced stands "
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


def is_script(program):
    return pathlib.Path(program).suffix in INTERPRETERS


class Workplace:
    """A copy of the sources and its build."""

    def __init__(self, directory, jobs, cmake):
        self.sources = directory
        self.build = directory / "build" / "release"
        self.jobs = jobs
        self.cmake = cmake

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
        rooms = {PLACE_OF[program].split("/")[0] for program in programs}
        rooms = ";".join(sorted(rooms | {STANDS_ON[room] for room in rooms & STANDS_ON.keys()}))
        self.run(["cmake", "-G", "Ninja", "-S", str(self.sources), "-B", str(self.build),
                  "-DCMAKE_BUILD_TYPE=Release", "-DOUTRIDER_BUILD_TESTS=ON",
                  f"-DOUTRIDER_TEST_ROOMS={rooms}", *self.cmake])

    def make(self, programs):
        targets = {"outrider" if is_script(program) else program for program in programs}
        self.run(["cmake", "--build", str(self.build), "-j", str(self.jobs), "--target", *targets])

    def program(self, b):
        return self.build / "tests" / PLACE_OF[b.program] / b.program

    def test(self, b):
        """"passes", "fails" or "stopped"; and what the test program printed."""
        if is_script(b.program):
            script = self.sources / "tests" / PLACE_OF[b.program] / b.program
            command = [INTERPRETERS[script.suffix], str(script), str(self.build / "outrider")]
        else:
            command = [str(self.program(b)), f"--gtest_filter={b.tests}", "--gtest_fail_fast"]
        try:
            result = subprocess.run(
                command, text=True, errors="replace", stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=TEST_SECONDS)
        except subprocess.TimeoutExpired:
            return "stopped", f"no end after {TEST_SECONDS} s"
        if "Running 0 tests" in result.stdout:
            raise CannotTell(f"{b.program} has no test {b.tests}")
        if result.returncode == 0:
            return "passes", result.stdout
        failed = is_script(b.program) or "[  FAILED  ]" in result.stdout
        return ("fails" if failed else "stopped"), result.stdout

    def with_break(self, b, then=None):
        """What test() says with the mistake built in, or what then(b) does instead."""
        source = self.sources / "src/outrider" / b.source
        sound = source.read_text(encoding="utf-8")
        source.write_text(broken_text(b, self.sources), encoding="utf-8")
        try:
            self.make([b.program])
            return (then or self.test)(b)
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
    print("| | topic | break | test | s | |\n|---|---|---|---|---|---|")
    for number, b in enumerate(breaks, 1):
        say(f"[{number}/{len(breaks)}] {b.topic}: {b.mistake}")
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
        print(f"| {b.topic} | {TOPICS[b.topic]} | {b.mistake} (`{b.source}`) "
              f"| `{b.program}` `{b.tests}` | {seconds:.0f} | {verdict} |", flush=True)
        verdicts.append(verdict)
    return verdicts


def keep_breaks(workplace, breaks, directory):
    """Builds the broken programs and a script that runs them."""
    programs = sorted({b.program for b in breaks})
    copy_sources(workplace.sources)
    workplace.configure(programs)
    directory.mkdir(parents=True, exist_ok=True)
    script = ["#!/bin/sh", 'cd "$(dirname "$0")"']
    for number, b in enumerate(breaks, 1):
        name = f"{number}_{b.topic.replace(' ', '_')}_{b.program}"
        say(f"{b.topic}: {b.mistake}")
        workplace.with_break(b, lambda b, name=name: shutil.copy(workplace.program(b),
                                                                 directory / name))
        script.append(f"./{name} '--gtest_filter={b.tests}' --gtest_fail_fast > {name}.log 2>&1; "
                      f"case $? in 0) echo '{name}: STILL PASSES';; "
                      f"1) echo '{name}: fails';; *) echo '{name}: stopped';; esac")
    (directory / "run.sh").write_text("\n".join(script) + "\n", encoding="utf-8")


def parse_topics(text):
    topics = text.split(",")
    unknown = [topic for topic in topics if topic not in TOPICS]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no topic {unknown[0]}: they are "
                                         f"{', '.join(TOPICS)}")
    return topics


def misfits_of(breaks):
    """Why breaks do not fit the sources."""
    misfits = []
    for b in breaks:
        try:
            broken_text(b, ROOT)
        except CannotTell as error:
            misfits.append(str(error))
    return misfits


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="?", choices=LISTS, help="the breaks of this list only")
    parser.add_argument("--only", type=parse_topics, metavar="TOPIC[,TOPIC]",
                        help="the breaks of these topics only")
    parser.add_argument("--list", action="store_true", help="print the breaks and end")
    parser.add_argument("--check", action="store_true",
                        help="see that every break fits the sources and end")
    parser.add_argument("--directory", type=pathlib.Path, default=ROOT / "build" / "breaks",
                        help="where the copy lives (default build/breaks)")
    parser.add_argument("--keep", type=pathlib.Path, metavar="DIR",
                        help="build the broken programs and DIR/run.sh, run nothing")
    parser.add_argument("--cmake", action="append", default=[], metavar="FLAG",
                        help="a flag for the build, such as -DOUTRIDER_CUDNN_FRONTEND_INCLUDE=...")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="of the build")
    parser.add_argument("--verbose", action="store_true",
                        help="also print what each broken test printed last")
    arguments = parser.parse_args()
    lists = LISTS.values()
    if arguments.which:
        lists = [LISTS[arguments.which]]
    elif not arguments.list and not arguments.check:
        lists = [one for one in lists if one is not hopper]
    breaks = [b for one in lists for b in one.BREAKS
              if not arguments.only or b.topic in arguments.only]
    if arguments.list:
        for b in breaks:
            print(f"{b.topic}: {TOPICS[b.topic]}\n    break: {b.mistake} ({b.source})\n"
                  f"    test:  {b.program} {b.tests}")
        return 0
    try:
        if len(TOPICS) < sum(len(one.TOPICS) for one in LISTS.values()):
            raise CannotTell("two lists have a topic of one name")
        for b in breaks:
            if b.topic not in TOPICS:
                raise CannotTell(f"there is no topic {b.topic}")
            if b.program not in PLACE_OF and pathlib.Path(b.program).suffix not in INTERPRETERS:
                raise CannotTell(f"PLACE_OF does not have {b.program}")
        misfits = misfits_of(breaks)
        if misfits:
            raise CannotTell("\n".join(misfits))
        if arguments.check:
            print(f"{len(breaks)} breaks of {len({b.topic for b in breaks})} topics fit")
            return 0
        flags = [flag for one in lists for flag in getattr(one, "CMAKE", ())] + arguments.cmake
        workplace = Workplace(arguments.directory.resolve(), arguments.jobs, flags)
        if arguments.keep:
            keep_breaks(workplace, breaks, arguments.keep.resolve())
            return 0
        run_unbroken(workplace, breaks)
        verdicts = run_breaks(workplace, breaks, arguments.verbose)
    except CannotTell as error:
        say(f"breaks: error: {error}")
        return 2
    return 0 if all(verdict in ("fails", "stopped") for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
