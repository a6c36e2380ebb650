"""Every fuzzer has an archive of seeds that unpacks, is not empty, and is what tools/fuzz_corpus.py makes.

    fuzz_corpus_test.py SOURCE_DIRECTORY CMAKE
"""
import gzip
import pathlib
import re
import subprocess
import sys
import tempfile


def errors_in(source, cmake):
    sys.path.insert(0, str(source / "tools"))
    import fuzz_corpus

    fuzzers = re.findall(r"^outrider_fuzzer\((\w+)", (source / "tests/fuzz/CMakeLists.txt").read_text(), re.MULTILINE)
    if len(fuzzers) < 8:
        yield f"tests/fuzz/CMakeLists.txt names {len(fuzzers)} fuzzers only"
    stray = {file.name for file in fuzz_corpus.CORPUS.iterdir()} - {f"{fuzzer}.tar.gz" for fuzzer in fuzzers}
    if stray:
        yield f"tests/fuzz/corpus holds what is no fuzzer's archive: {', '.join(sorted(stray))}"
    for fuzzer in fuzzers:
        archive = fuzz_corpus.archive_of(fuzzer)
        if not archive.exists():
            yield f"{archive} is missing"
            continue
        seeds = fuzz_corpus.read(archive)
        if not seeds:
            yield f"{archive} holds no seeds"
        # The compressed bytes are those of one version of zlib; what they hold must be the same.
        if gzip.decompress(archive.read_bytes()) != gzip.decompress(fuzz_corpus.pack(seeds)):
            yield f"{archive} is not as tools/fuzz_corpus.py packs it"
        if archive.read_bytes()[4:8] != bytes(4):
            yield f"{archive} holds the time at which it was made"
        # As the build does.
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([cmake, "-E", "tar", "xf", archive], cwd=folder, check=True)
            unpacked = {file.name: file.read_bytes() for file in pathlib.Path(folder).iterdir()}
        if unpacked != seeds:
            yield f"{archive}: CMake unpacks {len(unpacked)} of {len(seeds)} seeds"


def main():
    errors = list(errors_in(pathlib.Path(sys.argv[1]), sys.argv[2]))
    print("\n".join(errors))
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
