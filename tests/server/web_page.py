"""What the tests of the web page share: a headless Chromium, driven by selenium, and the servers behind it.

The servers are the bundled model, for real drafts, and the stub engine, which repeats the question until
it is stopped, for what needs time or bad characters. Needs tests/requirements.txt, chromium and
chromedriver.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Keys
from selenium.webdriver.common.by import By

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODEL = os.path.join(ROOT, "models", "tiny-v3-mtp3")
QUESTION = "Noa is 28 years old. Elsa is 29 years older than Noa. How old will Elsa be in 23 years?"
LONG_QUESTION = (
    "Hugo packs 14 boxes with 6 candles in each. There are 9 candles left over. "
    "How many candles are there in total?"
)
KINDS = ["accepted", "corrected", "bonus", "plain"]
ARGUMENTS = None


class Server:
    """A server on a free port, for as long as the `with` block runs."""

    def __init__(self, command, port_pattern):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in self.process.stdout:
            found = re.search(port_pattern, line)
            if found:
                self.url = f"http://127.0.0.1:{found[1]}/"
                return
        raise RuntimeError(f"{command[0]} ended with status {self.process.wait()}")

    @classmethod
    def outrider(cls, *options):
        return cls.start("--spec-tokens", "3", *options)

    @classmethod
    def start(cls, *options):
        """The bundled model, with no options but these."""
        command = [ARGUMENTS.outrider, "serve", MODEL, "--port", "0", "--served-model-name", "tiny-v3-mtp3"]
        return cls([*command, *options], r"ready: .* on http://127\.0\.0\.1:(\d+)/")

    @classmethod
    def stub(cls, tokens_per_step=3, step_microseconds=40000):
        """25 steps a second, with reasoning between <think> and </think>."""
        command = [ARGUMENTS.stub, "0", str(tokens_per_step), str(step_microseconds), "1"]
        return cls(command, r"^(\d+)$")

    def metric(self, name):
        with urllib.request.urlopen(self.url + "metrics") as response:
            return float(re.search(rf"^{name}{{.*}} (\S+)$", response.read().decode(), re.MULTILINE)[1])

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            return json.load(response)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(10)
        self.process.stdout.close()


class Load:
    """Other clients' requests, as long as the `with` block runs."""

    def __init__(self, server, clients=7):
        self.ended = False
        self.threads = [threading.Thread(target=self.ask, args=(server, i)) for i in range(clients)]

    def ask(self, server, client):
        question = "Ada has 12 apples and gives 5 to a friend. How many apples are left?" + " " * client
        fields = {"messages": [{"role": "user", "content": question}], "temperature": 0.9}
        while not self.ended:
            server.post("v1/chat/completions", fields)
            time.sleep(0.1 * (client % 4))

    def __enter__(self):
        for thread in self.threads:
            thread.start()

    def __exit__(self, *_):
        self.ended = True
        for thread in self.threads:
            thread.join()


class Page:
    """A browser on the page of a server."""

    def __init__(self, width=1280, height=860, scrollbars=False):
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        flags = ["headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"]
        for flag in flags if scrollbars else [*flags, "hide-scrollbars"]:
            options.add_argument(f"--{flag}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
        self.resize(width, height)
        self.prefer("light")

    def resize(self, width, height):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def open(self, server):
        self.driver.get(server.url)
        self.wait(lambda: self.one("#server-state").text or self.one("#key-dialog").is_displayed())

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                value = condition()
            except StaleElementReferenceException:
                value = None
            if value:
                return value
            time.sleep(0.02)
        raise AssertionError(f"nothing happened for {seconds} s: {self.one('body').text[:2000]}")

    def send(self, text):
        self.one("#message").send_keys(text + Keys.ENTER)

    def ask(self, text):
        """Returns the answer's article once it has ended."""
        count = len(self.all(".answer"))
        self.send(text)
        return self.wait_for_end(count)

    def wait_for_end(self, index):
        self.wait(lambda: len(self.all(".answer")) > index)
        answer = self.all(".answer")[index]
        self.wait(lambda: answer.get_attribute("data-state") in ("done", "stopped", "failed"))
        self.wait(lambda: self.one("#figures-of").text == answer.find_element(By.TAG_NAME, "h3").text)
        time.sleep(0.3)  # the figures are drawn a little later
        return answer

    def view(self, answer, name):
        answer.find_element(By.CSS_SELECTOR, f"[data-view={name}]").click()

    def chunks(self, answer):
        """The events of an answer as the raw view shows them."""
        self.view(answer, "raw")
        text = self.run("return arguments[0].querySelectorAll('.raw pre')[1].textContent", answer)
        self.view(answer, "tokens")
        return [json.loads(line[6:]) for line in text.split("\n\n")]

    def request(self, answer):
        self.view(answer, "raw")
        text = self.run("return arguments[0].querySelector('.raw pre').textContent", answer)
        self.view(answer, "tokens")
        return json.loads(text)

    def text(self, answer):
        """What the text view shows."""
        self.view(answer, "text")
        text = self.run("return arguments[0].querySelector('.text').innerText", answer)
        self.view(answer, "tokens")
        return text

    def markup(self, answer):
        """The elements of the text view, without attributes; `answer` has ended."""
        self.view(answer, "text")
        html = self.run("return arguments[0].querySelector('.text').innerHTML", answer)
        self.view(answer, "tokens")
        return re.sub(r"<(\w+)[^>]*>", r"<\1>", html)

    def markdown(self, text, chunk=None):
        """The elements that the page's own modules make of a text that comes `chunk` letters at a time."""
        return self.driver.execute_async_script("""
            const [text, chunk, done] = arguments;
            import("/page/markdown_view.js").then(({MarkdownView}) => {
              const element = document.createElement("div");
              element.className = "text";
              document.body.append(element);
              const view = new MarkdownView(element);
              for (let i = 0; i < text.length; i += chunk) {
                view.append(text.slice(i, i + chunk));
                view.draw();
              }
              element.remove();
              done(element.innerHTML);
            })""", text, chunk or len(text))

    def colour(self, selector, name="backgroundColor"):
        return self.run(f"return getComputedStyle(document.querySelector(arguments[0])).{name}", selector)

    def set(self, field, value):
        self.one("#open-settings").click()
        element = self.wait(lambda: self.one(f"#set-{field}"))
        element.clear()
        element.send_keys(value)
        self.one(".drawer-head button").click()

    def choose_drafts(self, k):
        self.one("#open-settings").click()
        self.wait(lambda: self.all(f"#settings input[name=k][value='{k}']"))
        self.one(f"#settings input[name=k][value='{k}'] + span").click()
        self.one(".drawer-head button").click()

    def hidden_pixels(self):
        """How much of the conversation's end is behind the composer or below it."""
        bottom_of = "document.getElementById('messages').getBoundingClientRect().bottom"
        return self.run(f"return {bottom_of} - document.getElementById('composer').getBoundingClientRect().top")

    def reaches_the_end(self):
        """Scrolls to the conversation's end, and whether it is in view then: the answer may have grown before the page
        was told of the scrolling, and a reader scrolls on."""
        self.run("scrollTo(0, document.documentElement.scrollHeight)")
        time.sleep(0.1)
        return self.hidden_pixels() < 2

    def scrollbars(self):
        """The elements that show a vertical scrollbar."""
        return self.run("""
            return [...document.querySelectorAll("*")].filter((element) => {
              const style = getComputedStyle(element);
              if (element.clientHeight === 0 || element.scrollHeight <= element.clientHeight) return false;
              if (element === document.documentElement) return style.overflowY !== "hidden";
              const borders = parseFloat(style.borderLeftWidth) + parseFloat(style.borderRightWidth);
              return /auto|scroll/.test(style.overflowY) && element.offsetWidth - element.clientWidth > borders;
            }).map((element) => element.id || element.tagName)""")

    def errors(self):
        """What the console holds that is no answer of status 4xx and no lost connection."""
        entries = self.driver.get_log("browser")
        return [e["message"] for e in entries if e["level"] == "SEVERE" and e["source"] != "network"]

    def screenshot(self, name):
        self.driver.save_screenshot(os.path.join(ARGUMENTS.screenshots, name))


class PageTest(unittest.TestCase):
    """Each test begins with an empty page of the bundled model, and leaves no error in the console."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server.outrider()
        cls.stub = Server.stub()
        cls.page = Page()

    @classmethod
    def tearDownClass(cls):
        cls.page.driver.quit()
        cls.server.stop()
        cls.stub.stop()

    def setUp(self):
        self.page.resize(1280, 860)
        self.page.prefer("light")
        self.page.open(self.server)
        self.page.run("localStorage.clear(); sessionStorage.clear()")
        self.page.open(self.server)

    def tearDown(self):
        self.assertEqual(self.page.errors(), [])


def main(description):
    """Runs the test cases of the program that was started."""
    global ARGUMENTS
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outrider", required=True, help="the program")
    parser.add_argument("--stub", required=True, help="tests/server/stub_server")
    parser.add_argument("--screenshots", help="folder for the pictures of the documentation")
    ARGUMENTS, rest = parser.parse_known_args()
    missing = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    if missing:
        parser.error(f"there is no {' and no '.join(missing)} on this machine")
    # Chromium leaves files in the temporary directory.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["TMPDIR"] = folder
        unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
