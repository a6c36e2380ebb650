"""chat_command_test.py OUTRIDER: conversations through a pipe, and Ctrl-C within an answer; with a model and with a server."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL = str(ROOT / "models" / "tiny-v3-mtp3")
OUTRIDER = ""
APPLES = ("Ada has 12 apples. At the market, Ada buys 7 more apples and then gives 5 to a friend. "
          "How many apples does Ada have now?")
AGES = "Noa is 28 years old. Elsa is 29 years older than Noa. How old will Elsa be in 23 years?"


def chat(text: str, *options: str, model: str = MODEL) -> subprocess.CompletedProcess:
    return subprocess.run([OUTRIDER, "chat", model, "--temperature", "0", *options], input=text, capture_output=True,
                          text=True, timeout=120, check=False)


class ChatCommandTest(unittest.TestCase):
    def test_answers_with_figures(self):
        run = chat(APPLES + "\n", "--spec-tokens", "3")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertTrue(run.stdout.endswith("#### 14\n"), run.stdout)
        self.assertRegex(run.stderr, r"tokens/s; first token after .* acceptance length [34]\.\d\d")
        self.assertNotIn(">", run.stdout)  # no prompts in a pipe

    def test_turns_stay_in_the_conversation(self):
        run = chat(f"{APPLES}\n{AGES}\n/reset\n{AGES}\n/stats\n", "--spec-tokens", "3")
        self.assertEqual(run.returncode, 0, run.stderr)
        prompts = [int(line.split()[0]) for line in run.stderr.splitlines() if "prompt tokens" in line]
        self.assertEqual(len(prompts), 3, run.stderr)
        first, second, alone = prompts
        self.assertGreater(second, first + alone)  # with the first answer
        self.assertIn("#### 80", run.stdout)
        self.assertRegex(run.stdout, r"3 answers, \d+ tokens in .*acceptance length \d\.\d\d; 2 messages")

    def test_a_turn_is_what_generate_says(self):
        asked = subprocess.run([OUTRIDER, "generate", MODEL, "--temperature", "0", "--chat", AGES],
                               capture_output=True, text=True, timeout=120, check=True)
        self.assertEqual(chat(AGES).stdout, asked.stdout)  # the last line needs no end

    def test_commands(self):
        run = chat("/help\n/set max_tokens 3\n" + APPLES + "\n/system Be brief.\n" + APPLES + "\n/quit\n" + AGES + "\n")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("/reset", run.stdout)
        self.assertIn("max-tokens is 3\n", run.stdout)
        prompts = [line.split() for line in run.stderr.splitlines() if "prompt tokens" in line]
        self.assertEqual([line[3] for line in prompts], ["3", "3"])  # nothing after /quit
        self.assertGreater(int(prompts[1][0]), int(prompts[0][0]))   # the system message, and no first turn

    def test_bad_commands_are_told_and_change_nothing(self):
        run = chat("/sett x 1\n/set temprature 1\n/set temperature\n/set temperature warm\n/set device cuda\n/set\n"
                   + AGES + "\n")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("unknown command /sett; did you mean /set?; /help lists them", run.stdout)
        self.assertIn("did you mean temperature?", run.stdout)
        self.assertIn("/set temperature needs a value", run.stdout)
        self.assertIn("/set temperature: 'warm' is", run.stdout)
        self.assertIn("/set device: not one of temperature, ", run.stdout)
        self.assertIn("#### 80", run.stdout)

    def test_a_question_that_cannot_be_asked_is_forgotten(self):
        run = chat("apple " * 5000 + "\n" + AGES + "\n")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertRegex(run.stderr, r"error: .*context of 4096 holds prompts of at most 4095")
        self.assertIn("#### 80", run.stdout)

    def test_lines_are_joined_and_blank_ones_passed_over(self):
        cut = AGES.replace(" Elsa", "\\\nElsa", 1)
        run = chat("\n  \n" + cut + "\n/stats\n")
        self.assertIn("1 answer, ", run.stdout)

    def test_a_model_without_a_template_is_refused_at_start(self):
        with tempfile.TemporaryDirectory() as directory:
            for file in pathlib.Path(MODEL).iterdir():
                if file.name not in ("tokenizer_config.json", "chat_template.jinja"):
                    os.symlink(file, pathlib.Path(directory, file.name))
            run = chat(AGES + "\n", model=directory)
        self.assertEqual(run.returncode, 2, run.stderr)
        self.assertIn("chat template", run.stderr)
        self.assertEqual(run.stdout, "")

    def test_an_interrupt_ends_the_answer_and_not_the_program(self):
        run = subprocess.Popen([OUTRIDER, "chat", MODEL, "--temperature", "0", "--spec-tokens", "0"],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        run.stdin.write(b'/set min-tokens 3900\n' + APPLES.encode() + b"\n")
        run.stdin.flush()
        text = b""
        while text.count(b"####") < 1:
            text += os.read(run.stdout.fileno(), 4096)
        run.send_signal(signal.SIGINT)
        figures = run.stderr.readline()
        self.assertIn(b"prompt tokens", figures)
        self.assertLess(int(figures.split()[3]), 3900)
        run.stdin.write(b"/set min-tokens 0\n/reset\n" + AGES.encode() + b"\n")
        out, err = run.communicate(timeout=120)
        self.assertEqual(run.returncode, 0, err)
        self.assertIn(b"#### 80", out)

    def test_two_interrupts_at_the_prompt_leave(self):
        run = subprocess.Popen([OUTRIDER, "chat", MODEL], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
        run.stdin.write(b"/stats\n")
        run.stdin.flush()
        self.assertIn(b"0 answers", run.stdout.readline())
        for _ in range(2):
            time.sleep(0.3)
            self.assertIsNone(run.poll())
            run.send_signal(signal.SIGINT)
        status = run.wait(timeout=20)  # its input stays open until then
        run.communicate()
        self.assertEqual(status, 130)


class ChatWithServerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = subprocess.Popen([OUTRIDER, "serve", MODEL, "--port", "0", "--spec-tokens", "3", "--api-key", "tiger",
                                       "--served-model-name", "tiny"], stderr=subprocess.PIPE, text=True)
        cls.log = []
        for line in cls.server.stderr:
            cls.log.append(line)
            found = re.search(r"ready: .* on (http://127\.0\.0\.1:\d+)/", line)
            if found:
                cls.url = found[1]
                break
        else:
            raise AssertionError("".join(cls.log))

    @classmethod
    def tearDownClass(cls):
        cls.server.send_signal(signal.SIGTERM)
        cls.server.communicate(timeout=30)

    def chat(self, text: str, *options: str, url=None, key="tiger"):
        command = [OUTRIDER, "chat", "--url", url or self.url, "--api-key", key, "--temperature", "0", *options]
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)

    def test_answers_are_those_of_a_loaded_model(self):
        text = f"{APPLES}\n{AGES}\n/stats\n"
        local = chat(text, "--spec-tokens", "3")
        for url in (self.url, self.url + "/", self.url + "/v1"):
            remote = self.chat(text, url=url)
            self.assertEqual(remote.returncode, 0, remote.stderr)
            seconds = re.compile(r"in [\d.]+ s")
            self.assertEqual(seconds.sub("", remote.stdout), seconds.sub("", local.stdout))
            figures = [re.sub(r"in [\d.]+ s, [\d.]+ tokens/s; first token after \d+ ms", "", line)
                       for line in remote.stderr.splitlines()]
            self.assertEqual(figures, [re.sub(r"in [\d.]+ s, [\d.]+ tokens/s; first token after \d+ ms", "", line)
                                       for line in local.stderr.splitlines()])
            self.assertIn("acceptance length", remote.stderr)

    def test_the_model_may_be_named(self):
        self.assertIn("#### 80", self.chat(AGES + "\n", "tiny").stdout)
        run = self.chat(AGES + "\n", "another")
        self.assertRegex(run.stderr, r"error: the server answered 404: .*another")

    def test_sampling_values_are_sent(self):
        run = self.chat(f"/set max-tokens 3\n{AGES}\n")
        self.assertIn("; 3 tokens in", run.stderr)

    def test_refusals_are_said_and_the_question_is_forgotten(self):
        run = self.chat("apple " * 5000 + "\n" + AGES + "\n")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertRegex(run.stderr, r"error: the server answered 400: .*4096")
        self.assertIn("#### 80", run.stdout)
        self.assertIn("error: the server answered 401", self.chat(AGES + "\n", key="lion").stderr)

    def test_who_does_not_answer_ends_a_script(self):
        run = self.chat(AGES + "\n" + AGES + "\n", url="http://127.0.0.1:1")
        self.assertEqual(run.returncode, 2, run.stderr)
        self.assertEqual(run.stderr.count("http://127.0.0.1:1: Connection refused"), 1)

    def test_what_makes_no_sense_is_refused(self):
        for options, why in ((["--spec-tokens", "3"], "--spec-tokens: has no effect with --url"),
                             (["--url", "ftp://host"], "--url: 'ftp://host' is no address of a server"),
                             (["--api-key", "a\nb"], "--api-key: a key is one line")):
            run = self.chat(AGES + "\n", *options)
            self.assertEqual(run.returncode, 2, run.stderr)
            self.assertIn(why, run.stderr)
            self.assertEqual(run.stdout, "")
        run = chat(AGES + "\n", "--api-key", "tiger")
        self.assertEqual(run.returncode, 2, run.stderr)
        self.assertIn("--api-key: has no effect without --url", run.stderr)

    def test_an_interrupt_ends_the_answer_and_not_the_program(self):
        run = subprocess.Popen([OUTRIDER, "chat", "--url", self.url, "--api-key", "tiger", "--temperature", "0"],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        run.stdin.write(b"/set min-tokens 3900\n" + APPLES.encode() + b"\n")
        run.stdin.flush()
        text = b""
        while text.count(b"####") < 1:
            text += os.read(run.stdout.fileno(), 4096)
        run.send_signal(signal.SIGINT)
        figures = run.stderr.readline()
        self.assertIn(b"prompt tokens", figures)
        self.assertLess(int(figures.split()[3]), 3900)
        self.assertGreater(int(figures.split()[3]), 0)
        run.stdin.write(b"/set min-tokens 0\n/reset\n" + AGES.encode() + b"\n")
        out, err = run.communicate(timeout=120)
        self.assertEqual(run.returncode, 0, err)
        self.assertIn(b"#### 80", out)


if __name__ == "__main__":
    OUTRIDER = sys.argv.pop(1)
    unittest.main()
