#!/usr/bin/env python3
"""Runs the engine in an emulated machine of two NUMA nodes, one processor each.

    apt-get install qemu-system-x86 cpio busybox-static
    (cd /tmp && apt-get download linux-image-6.1.0-50-cloud-amd64)   # or another of Debian's
    python3 tools/two_nodes.py /tmp/linux-image-*.deb

There the tests of processors, buffers and threads run, and `outrider generate` answers with the
bundled model, on one rank and on two. Checked are that every large mapping of one rank is spread over
both nodes in turn, and that of a rank of two on a node of its own, as much on each; how evenly pages
lie; that the second thread keeps to one processor; and that the text is that of this machine. Takes six
minutes on two processors. QEMU emulates the instructions (AVX2 at most), so times say nothing.

Ends with 0 when all of that holds, 1 when not, 2 when it could not be run.
"""
import argparse
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "models/tiny-v3-mtp3"
BUILD = ROOT / "build/release"
PROGRAMS = [BUILD / "outrider", BUILD / "tests/base/base_test"]
ASK = ["generate", "--prompt", "12+34=", "--max-tokens", "60", "--ignore-eos"]
MOST_UNEVEN = 0.1  # of a mapping's pages, that one node has more than half of them
LARGE_BYTES = 8 << 20  # of a mapping that is checked

INIT = r"""#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
echo; echo "nodes $(cat /sys/devices/system/node/online)"
cd /work
./base_test --gtest_filter='*Processors*:*Buffer*:*Thread*' 2>&1 | tail -n 3
# answer WORD [FLAG...]: with lines that begin with the word.
answer() {
word=$1
shift
./outrider ASK "$@" > /text 2> /errors &
pid=$!
> /maps; > /allowed
# The last look while it computed: with all threads, before it gives memory back.
while cat /proc/$pid/numa_maps > /now && [ -s /now ]; do
  grep -h Cpus_allowed_list /proc/$pid/task/*/status > /now_allowed
  [ "$(wc -l < /now_allowed)" -lt 2 ] && continue
  [ "$(wc -l < /now_allowed)" -lt "$(wc -l < /allowed)" ] && continue
  [ "$(grep -c interleave /now)" -lt "$(grep -c interleave /maps)" ] && continue
  mv /now /maps; mv /now_allowed /allowed
done 2> /dev/null
wait
sed "s/^/$word map /" /maps; sed "s/^/$word thread /" /allowed; sed "s/^/$word error /" /errors
echo "$word text $(md5sum < /text)"
}
answer one
answer two --tensor-parallel-size 2
poweroff -f
"""


class CannotRun(Exception):
    pass


def run(command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options)


def make_root(root):
    """What the machine boots into: the programs, their libraries, the model."""
    for folder in ("bin", "proc", "sys", "dev", "tmp", "work"):
        (root / folder).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin")
    shutil.copytree(MODEL, root / "model")
    for program in PROGRAMS:
        run(["strip", "-o", str(root / "work" / program.name), str(program)])
        for library in re.findall(r"(/\S+) \(0x", run(["ldd", str(program)]).stdout):
            target = root / library.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)
    init = root / "init"
    init.write_text(INIT.replace("ASK", " ".join([ASK[0], "/model", *(f"'{a}'" for a in ASK[1:])])))
    init.chmod(0o755)


def boot(kernel_package, folder):
    """The lines that the machine prints."""
    root = folder / "root"
    make_root(root)
    run(["dpkg-deb", "-x", kernel_package, str(folder / "kernel")])
    kernel = next((folder / "kernel/boot").glob("vmlinuz-*"))
    image = folder / "initrd"
    with open(image, "wb") as out:
        names = subprocess.run(["find", "."], cwd=root, check=True, capture_output=True).stdout
        subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=root, input=names, stdout=out,
                       check=True)
    command = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-m", "6G",
               "-smp", "2,sockets=2,cores=1", "-kernel", str(kernel), "-initrd", str(image),
               "-append", "console=ttyS0 quiet panic=-1", "-nographic", "-no-reboot", "-net", "none"]
    for node in (0, 1):
        command += ["-object", f"memory-backend-ram,id=m{node},size=3G",
                    "-numa", f"node,nodeid={node},cpus={node},memdev=m{node}"]
    return run(command, timeout=720).stdout.replace("\r", "").splitlines()


def large_mappings(lines, word):
    """(line, pages on node 0, pages on node 1) of each."""
    large = []
    for line in lines:
        pages = dict(re.findall(r"\b(anon|N0|N1)=(\d+)", line))
        if line.startswith(f"{word} map ") and int(pages.get("anon", 0)) * 4096 >= LARGE_BYTES:
            large.append((line, int(pages.get("N0", 0)), int(pages.get("N1", 0))))
            print(f"  {word}: {large[-1][1]} and {large[-1][2]} pages: {line.split()[3]}")
    return large


def uneven(first, second):
    return abs(first - second) / (2 * (first + second)) > MOST_UNEVEN


def check_spread(lines):
    """What does not hold of one rank."""
    wrong = []
    large = large_mappings(lines, "one")
    if not large:
        wrong.append("there is no large mapping")
    for line, first, second in large:
        if "interleave:0-1" not in line:
            wrong.append(f"not spread: {line}")
        if uneven(first, second):
            wrong.append(f"{first} pages on one node, {second} on the other")
    return wrong


def check_ranks(lines):
    """What does not hold of two ranks."""
    wrong = []
    own = [(line, first, second) for line, first, second in large_mappings(lines, "two")
           if re.search(r"interleave:[01]\b(?!-)", line)]
    for line, first, second in own:
        node = int(re.search(r"interleave:([01])", line)[1])
        if (first, second)[1 - node] > 0:
            wrong.append(f"a rank's pages on another's node: {line}")
    if not own or uneven(sum(first for _, first, _ in own), sum(second for _, _, second in own)):
        wrong.append("no node for each rank's memory")
    return wrong


def check(lines):
    """What does not hold."""
    wrong = []
    if "nodes 0-1" not in lines:
        wrong.append("the machine has no two nodes")
    if not any("PASSED" in line for line in lines) or any("FAILED" in line for line in lines):
        wrong.append("the tests did not pass")
    wrong += check_spread(lines) + check_ranks(lines)
    here = subprocess.run([str(PROGRAMS[0]), ASK[0], str(MODEL), *ASK[1:]], check=True,
                          capture_output=True).stdout
    for word in ("one", "two"):
        bound = [line.split()[-1] for line in lines if line.startswith(f"{word} thread ")]
        print(f"  {word}: threads may run on processors {', '.join(bound)}")
        if not any(processors in ("0", "1") for processors in bound):
            wrong.append(f"{word}: no thread is bound to a processor")
        if f"{word} text {hashlib.md5(here).hexdigest()}  -" not in lines:
            wrong.append(f"{word}: the text is not this machine's")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernel_package", metavar="KERNEL.deb")
    kernel_package = parser.parse_args().kernel_package
    try:
        for program in ("qemu-system-x86_64", "cpio", "dpkg-deb", "strip"):
            if shutil.which(program) is None:
                raise CannotRun(f"{program} is not installed")
        for path in (*PROGRAMS, pathlib.Path("/bin/busybox"), pathlib.Path(kernel_package)):
            if not path.exists():
                raise CannotRun(f"{path} is missing")
        with tempfile.TemporaryDirectory() as folder:
            lines = boot(kernel_package, pathlib.Path(folder))
    except CannotRun as error:
        print(f"two_nodes: {error}", file=sys.stderr)
        sys.exit(2)
    except (subprocess.SubprocessError, StopIteration) as error:
        print(f"two_nodes: could not boot: {error}", file=sys.stderr)
        sys.exit(2)
    wrong = check(lines)
    for what in wrong:
        print(f"two_nodes: {what}", file=sys.stderr)
    if wrong:
        print("\n".join(lines[-40:]), file=sys.stderr)
        sys.exit(1)
    print("all as it should be")


if __name__ == "__main__":
    main()
