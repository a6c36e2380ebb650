"""Completes command lines in zsh and fish with the scripts of `outrider completion`; bash has completion_test.cc.

    completion_shells_test.py OUTRIDER

A shell that is not installed is passed over.
"""

import os
import pathlib
import pty
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

OUTRIDER = ""
# A line, and what it becomes when it is completed; fish is asked for the word.
LINES = {
    "outrider ser": "serve",
    "outrider completion f": "fish",
    "outrider bench thr": "throughput",
    "outrider serve --kv-offload-m": "--kv-offload-memory-bytes",
    "outrider serve m --enable-return-r": "--enable-return-routed-experts",
    "outrider serve m --dtype fl": "float32",
    "outrider serve m --load-format d": "dummy",
}
SETTLED = "outrider_is_ready"


def script_of(shell):
    return subprocess.run([OUTRIDER, "completion", shell], check=True, capture_output=True, text=True).stdout


class Zsh:
    """An interactive zsh, which finds the script in fpath or reads it. ^X w writes the line as it stands to a file
    and clears it."""

    def __init__(self, folder, reads):
        self.out = folder / "lines"
        script = folder / ("script" if reads else "_outrider")
        script.write_text(script_of("zsh"))
        (folder / ".zshrc").write_text(
            f"fpath=({folder} $fpath)\nautoload -Uz compinit\ncompinit -u -D\n"
            + (f"source {script}\n" if reads else "") + f"keep() {{ print -r -- $BUFFER >>{self.out}; BUFFER= }}\nzle -N keep\nbindkey '^Xw' keep\n")
        self._process, self._terminal = pty.fork()
        if self._process == 0:
            os.execvpe("zsh", ["zsh", "-i"], {**os.environ, "ZDOTDIR": str(folder), "TERM": "dumb"})
        os.set_blocking(self._terminal, False)
        while self.complete(SETTLED) != SETTLED:  # it starts
            pass

    def complete(self, line):
        """The line after a tab."""
        count = self._lines()
        self._type(line + "\t")
        time.sleep(0.1)  # completion reads what is typed meanwhile as its own
        self._type("\x18w")
        for _ in range(400):
            self._read()
            if self._lines() != count:
                return self.out.read_text().splitlines()[-1].rstrip()
            time.sleep(0.02)
        return None

    def close(self):
        os.close(self._terminal)
        os.waitpid(self._process, 0)

    def _lines(self):
        return len(self.out.read_text().splitlines()) if self.out.exists() else 0

    def _type(self, text):
        os.write(self._terminal, text.encode())

    def _read(self):
        try:
            while os.read(self._terminal, 4096):
                pass
        except BlockingIOError:
            pass


class CompletionTest(unittest.TestCase):
    @unittest.skipUnless(shutil.which("fish"), "there is no fish")
    def test_fish(self):
        script = script_of("fish")
        for line, word in LINES.items():
            asked = subprocess.run(["fish", "--no-config", "-c", f"{script}\ncomplete -C '{line}'"],
                                   check=True, capture_output=True, text=True)
            offered = [found.split("\t")[0] for found in asked.stdout.splitlines()]
            self.assertEqual(offered, [word], line)

    @unittest.skipUnless(shutil.which("zsh"), "there is no zsh")
    def test_zsh(self):
        for reads in (False, True):
            with self.subTest(reads=reads), tempfile.TemporaryDirectory() as folder:
                zsh = Zsh(pathlib.Path(folder), reads)
                try:
                    for line, word in LINES.items():
                        completed = zsh.complete(line)
                        self.assertEqual(completed.rstrip("="), f"{line.rpartition(' ')[0]} {word}")
                    self.assertEqual(zsh.complete("outrider serve m --nothing-of-"), "outrider serve m --nothing-of-")
                finally:
                    zsh.close()


if __name__ == "__main__":
    OUTRIDER = sys.argv[1]
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
