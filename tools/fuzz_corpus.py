#!/usr/bin/env python3
"""The seeds of the fuzzers: one archive each, tests/fuzz/corpus/FUZZER.tar.gz.

    tools/fuzz_corpus.py unpack http_fuzz FOLDER    writes the seeds into FOLDER
    tools/fuzz_corpus.py pack http_fuzz FOLDER      makes the archive of FOLDER's files anew

To add a seed: unpack, put the file beside the others, pack. The same files give the same archive: names
in order, without times, owners or modes of their own. CMake unpacks them where fuzzers are built.
"""
import argparse
import gzip
import io
import pathlib
import tarfile

CORPUS = pathlib.Path(__file__).resolve().parent.parent / "tests/fuzz/corpus"


def archive_of(fuzzer):
    return CORPUS / f"{fuzzer}.tar.gz"


def read(archive):
    """{name: bytes} of an archive's seeds. Throws ValueError for what is no plain file in its first folder."""
    seeds = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            if not member.isfile() or "/" in member.name or member.name in seeds:
                raise ValueError(f"{archive}: {member.name} is no seed")
            seeds[member.name] = tar.extractfile(member).read()
    return seeds


def tar_of(files):
    """A tar file of {name: bytes}, the same for the same files."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(files):
            member = tarfile.TarInfo(name)
            member.size = len(files[name])
            tar.addfile(member, io.BytesIO(files[name]))
    return plain.getvalue()


def pack(seeds):
    """The archive of {name: bytes}, the same for the same seeds."""
    return gzip.compress(tar_of(seeds), compresslevel=9, mtime=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["pack", "unpack"])
    parser.add_argument("fuzzer", help="the fuzzer's name, such as http_fuzz")
    parser.add_argument("folder", type=pathlib.Path)
    arguments = parser.parse_args()
    archive = archive_of(arguments.fuzzer)
    if arguments.action == "unpack":
        if not archive.exists():
            parser.error(f"there is no {archive}")
        arguments.folder.mkdir(parents=True, exist_ok=True)
        for name, content in read(archive).items():
            (arguments.folder / name).write_bytes(content)
        return
    seeds = {file.name: file.read_bytes() for file in arguments.folder.iterdir() if file.is_file()}
    if not seeds:
        parser.error(f"{arguments.folder} holds no files")
    archive.write_bytes(pack(seeds))


if __name__ == "__main__":
    main()
