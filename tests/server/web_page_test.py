"""Uses the web page as people do: in a headless Chromium, driven by selenium.

    web_page_test.py --outrider build/release/outrider --stub build/release/tests/server/stub_server
    web_page_test.py ... --screenshots docs/images     also takes the pictures of the documentation

Two servers stand behind it: the bundled model, for real drafts, and the stub engine, which repeats
the question until it is stopped, for what needs time or bad characters. Needs tests/requirements.txt,
chromium and chromedriver. One case per thing a person does makes it long.
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
from selenium.webdriver import ActionChains, Keys
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


class WebPageTest(unittest.TestCase):
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

    def test_streams_an_answer(self):
        page = self.page
        page.set("temperature", "0")
        answer = page.ask(QUESTION)
        self.assertEqual(answer.get_attribute("data-state"), "done")
        fields = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
        expected = self.server.post("v1/chat/completions", fields)
        content = expected["choices"][0]["message"]["content"]
        self.assertRegex(content, r"\n#### \d+$")
        # As Markdown the last line is a heading; the tokens are those of the answer to the letter.
        lines, number = content.split("\n#### ")
        self.assertEqual(page.text(answer).split("\n\n"), [lines, number])
        self.assertTrue(page.markup(answer).endswith(f"<h6>{number}</h6>"))
        shown = page.run("return arguments[0].querySelector('.tokens').textContent", answer)
        self.assertTrue(shown.startswith(content), shown)
        tokens = expected["usage"]["completion_tokens"]
        self.assertEqual(len(answer.find_elements(By.CSS_SELECTOR, ".token")), tokens)
        self.assertIn(f"{tokens} tokens", answer.find_element(By.TAG_NAME, "footer").text)
        chunks = page.chunks(answer)
        self.assertGreater(len(chunks), 5)
        request = page.request(answer)
        self.assertEqual(request["messages"], fields["messages"])
        self.assertEqual(request["temperature"], 0)
        # The next question carries the conversation.
        second = page.ask("And in 30 years?")
        roles = [message["role"] for message in page.request(second)["messages"]]
        self.assertEqual(roles, ["user", "assistant", "user"])

    def test_colours_equal_the_reported_metrics(self):
        page = self.page
        page.set("seed", "5")
        answer = page.ask(QUESTION)
        chunks = page.chunks(answer)
        metrics = chunks[-1]["metrics"]["speculative_decoding"]
        steps = [s for c in chunks if c["choices"] for s in c["choices"][0].get("speculative_steps", [])]
        shown = {kind: len(answer.find_elements(By.CSS_SELECTOR, f".token.{kind}")) for kind in KINDS}
        self.assertEqual(sum(shown.values()), chunks[-1]["usage"]["completion_tokens"])
        listed = {row.get_attribute("data-kind"): int(row.get_attribute("data-count")) for row in page.all(".kinds li")}
        unused = listed.pop("unused", 0)
        self.assertEqual(listed, {kind: count for kind, count in shown.items() if count})
        self.assertEqual(shown["accepted"] + unused, metrics["num_accepted_draft_tokens"])
        histogram = [int(bar.get_attribute("data-count")) for bar in page.all(".histogram li")]
        self.assertEqual(histogram, metrics["acceptance_histogram"])
        positions = [int(row.get_attribute("data-accepted")) for row in page.all(".positions li")]
        self.assertEqual(sum(positions), metrics["num_accepted_draft_tokens"])
        self.assertEqual(page.one(".figure strong").text, f"{metrics['mean_acceptance_length']:.2f}")
        # Each bracket holds what its step gave, and its last token's colour says why.
        brackets = answer.find_elements(By.CSS_SELECTOR, ".step")
        self.assertEqual(len(brackets), len(steps))
        self.assertEqual(metrics["per_step_drafted"], [len(s["drafts"]) for s in steps if s["drafts"]])
        self.assertEqual(metrics["per_step_accepted"], [s["num_accepted"] for s in steps if s["drafts"]])
        corrections = 0
        for bracket, step in zip(brackets, steps):
            kinds = [t.get_attribute("class").split()[1] for t in bracket.find_elements(By.CSS_SELECTOR, ".token")]
            accepted, drafted = step["num_accepted"], len(step["drafts"])
            last = "plain" if drafted == 0 else "bonus" if accepted == drafted else "corrected"
            self.assertEqual(kinds, (["accepted"] * accepted + [last])[: len(step["tokens"])])
            corrections += "corrected" in kinds
        self.assertEqual(corrections, shown["corrected"])
        colours = {kind: page.colour(f".answer .token.{kind}") for kind in KINDS if shown[kind]}
        self.assertEqual(len(set(colours.values())), len(colours))

    def test_rejected_drafts_show_struck_through(self):
        page = self.page
        page.set("temperature", "1.2")
        page.set("seed", "3")
        answer = page.ask(QUESTION)
        chunks = page.chunks(answer)
        steps = [s for c in chunks if c["choices"] for s in c["choices"][0].get("speculative_steps", [])]
        number = next(i for i, s in enumerate(steps) if s["num_accepted"] < len(s["drafts"]))
        step = steps[number]
        popover = page.one("#step-popover")
        self.assertFalse(popover.is_displayed())
        bracket = answer.find_elements(By.CSS_SELECTOR, ".step")[number]
        page.run("arguments[0].scrollIntoView({block: 'center'})", bracket)
        ActionChains(page.driver).move_to_element(bracket.find_element(By.CSS_SELECTOR, ".token")).perform()
        page.wait(popover.is_displayed)
        self.assertIn(f"Step {number + 1} ", popover.text)
        rejected = popover.find_elements(By.CSS_SELECTOR, ".chip.rejected")
        self.assertEqual(
            [chip.get_attribute("title") for chip in rejected],
            [f"token {draft['id']}" for draft in step["drafts"][step["num_accepted"] :]],
        )
        self.assertIn("line-through", page.colour(".popover .rejected", "textDecorationLine"))
        ActionChains(page.driver).move_to_element(page.one("h1")).perform()
        page.wait(lambda: not popover.is_displayed())

    def test_popover_leaves_the_lines_beside_its_step_free(self):
        page = self.page
        page.set("temperature", "0")
        answer = page.ask(QUESTION)  # "####" begins a line of its own
        popover = page.one("#step-popover")
        brackets = answer.find_elements(By.CSS_SELECTOR, ".step")
        for bracket, is_above in (brackets[0], True), (brackets[-1], False):
            ActionChains(page.driver).move_to_element(bracket.find_element(By.CSS_SELECTOR, ".token")).perform()
            page.wait(popover.is_displayed)
            top, height = (page.run(f"return arguments[0].getBoundingClientRect().{name}", popover) for name in ("top", "height"))
            place = page.run("return arguments[0].getClientRects()[0].top", bracket)
            self.assertEqual(top + height <= place, is_above)
            self.assertEqual(top > place, not is_above)
            ActionChains(page.driver).move_to_element(page.one("h1")).perform()
            page.wait(lambda: not popover.is_displayed())

    def test_steps_by_keyboard(self):
        page = self.page
        answer = page.ask(QUESTION)
        page.run("arguments[0].querySelector('.step').focus()", answer)
        popover = page.one("#step-popover")
        self.assertIn("Step 1 ", popover.text)
        page.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT + Keys.ARROW_RIGHT)
        self.assertIn("Step 3 ", popover.text)
        self.assertEqual(page.run("return document.activeElement.dataset.step"), "3")
        self.assertEqual(page.run("return document.querySelectorAll('.step[tabindex=\"0\"]').length"), 1)
        page.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
        self.assertFalse(popover.is_displayed())

    def test_drafts_change_nothing_but_colours(self):
        page = self.page
        page.set("seed", "7")
        text = page.text(page.ask(QUESTION))
        self.assertTrue(page.all(".token.accepted"))
        page.one("#new-chat").click()
        page.choose_drafts(0)
        plain = page.ask(QUESTION)
        self.assertEqual(page.request(plain)["speculation"], {"num_speculative_tokens": 0})
        kinds = {t.get_attribute("class") for t in plain.find_elements(By.CSS_SELECTOR, ".token")}
        self.assertEqual(kinds, {"token plain"})
        self.assertEqual(page.text(plain), text)

    def test_stop(self):
        page = self.page
        page.open(self.stub)
        page.send("an endless answer")
        page.wait(lambda: len(page.all(".answer .step")) > 3)
        self.assertEqual(page.one(".answer").get_attribute("data-state"), "streaming")
        self.assertEqual(self.stub.metric("vllm:num_requests_running"), 1)
        page.one("#stop").click()
        answer = page.wait_for_end(0)
        self.assertEqual(answer.get_attribute("data-state"), "stopped")
        page.wait(lambda: self.stub.metric("vllm:num_requests_running") == 0)
        self.assertTrue(page.one("#send").is_displayed())
        # Escape does the same, and what came stays in the conversation.
        page.send("another")
        page.wait(lambda: len(page.all(".answer:last-child .step")) > 1)
        page.one("#message").send_keys(Keys.ESCAPE)
        second = page.wait_for_end(1)
        self.assertEqual(second.get_attribute("data-state"), "stopped")
        roles = [message["role"] for message in page.request(second)["messages"]]
        self.assertEqual(roles, ["user", "assistant", "user"])

    def test_answers_are_markdown(self):
        page = self.page
        written = (
            "# Title\n\nSome **bold**, *italic* and `code *x*`,\nand 2*3*4 with snake_case_name.\n\n"
            "- one\n  - inside\n- two\n\n3. third\n4. fourth\n\n"
            "```python\ndef f(x):\n\treturn x < 1  # *no*\n```\n"
            "| a | b |\n|---|--:|\n| `1` | 2 |\n\n> quoted\n\n---\n"
            "[the page](https://example.org/a?b=c \"t\"), <https://example.org>, see https://example.org/d."
        )
        expected = (
            "<h4>Title</h4><p>Some <strong>bold</strong>, <em>italic</em> and <code>code *x*</code>,<br>"
            "and 2*3*4 with snake_case_name.</p><ul><li>one<ul><li>inside</li></ul></li><li>two</li></ul>"
            "<ol><li>third</li><li>fourth</li></ol>"
            "<pre><code>def f(x):\n\treturn x &lt; 1  # *no*</code></pre>"
            "<div><table><thead><tr><th>a</th><th>b</th></tr></thead>"
            "<tbody><tr><td><code>1</code></td><td>2</td></tr></tbody></table></div>"
            "<blockquote><p>quoted</p></blockquote><hr>"
            "<p><a>the page</a>, <a>https://example.org</a>, see <a>https://example.org/d</a>.</p>"
        )
        html = page.markdown(written)
        self.assertEqual(re.sub(r"<(\w+)[^>]*>", r"<\1>", html), expected)
        self.assertIn('href="https://example.org/a?b=c"', html)
        self.assertEqual(html.count('rel="noopener noreferrer nofollow"'), 3)
        self.assertIn('<ol start="3">', html)
        self.assertIn('data-language="python"', html)
        self.assertIn('<td class="right">2</td>', html)
        # However the text comes, the elements are the same in the end; also where a line begins like a
        # block that it is not.
        feigned = "one\n#hashtag\n\ntwo\n>\nthree | four\n---|---x\n\n1. a\n\n- b\n``` x`y\n"
        for text in (written, feigned):
            for chunk in (1, 2, 7, 50):
                self.assertEqual(page.markdown(text, chunk), page.markdown(text), (text, chunk))

    def test_whole_blocks_stay_while_an_answer_grows(self):
        kept = self.page.driver.execute_async_script("""
            const done = arguments[0];
            import("/page/markdown_view.js").then(({MarkdownView}) => {
              const element = document.createElement("div");
              const view = new MarkdownView(element);
              view.append("first\\n\\nsecond\\n\\nthird\\n\\n");
              view.draw();
              const [first] = element.children;
              for (const part of ["four", "th\\n", "\\nfifth"]) { view.append(part); view.draw(); }
              done([first === element.children[0], element.children.length]);
            })""")
        self.assertEqual(kept, [True, 5])

    def test_hostile_markdown(self):
        page = self.page
        hostile = [
            "<script>hacked=1</script><img src=x onerror=hacked=1><a href='javascript:hacked=1'>a</a>",
            "[a](javascript:hacked=1) [b](JaVaScRiPt:hacked=1) [c](java\nscript:hacked=1) ![d](data:text/html,x)",
            "[e](vbscript:x) [f](file:///etc/passwd) [g](blob:x) [h](//evil.example/x) [i](/admin) <javascript:hacked=1>",
            "[j](\x01javascript:hacked=1) [k](java\tscript:hacked=1) [l](&#106;avascript:hacked=1)",
            '[m](https://example.org/"onmouseover="hacked=1) [n](https://example.org/<script>)',
            "```\"><script>hacked=1</script>\n<script>hacked=1</script>\n```",
            "| <img src=x onerror=hacked=1> |\n|---|\n| <svg onload=hacked=1> |",
        ]
        for text in hostile:
            html = page.markdown(text)
            tags = {"p", "br", "a", "pre", "code", "div", "table", "thead", "tbody", "tr", "th", "td"}
            self.assertLessEqual(set(re.findall(r"<(\w+)", html)), tags, text)
            for address in re.findall(r'href="([^"]*)"', html):
                self.assertRegex(address, r"^(https?://|mailto:)", text)
            self.assertNotRegex(re.sub(r'"[^"]*"', "", html), r"<[^>]* on\w+=", text)
        self.assertEqual(page.run("return typeof hacked"), "undefined")
        # A relative address or an unsafe scheme is shown as it was written.
        self.assertEqual(page.markdown("[a](javascript:b)"), "<p>[a](javascript:b)</p>")
        self.assertEqual(page.markdown("[a](/b)"), "<p>[a](/b)</p>")

    def test_hostile_markdown_takes_no_long(self):
        page = self.page
        many = 60000
        texts = {
            "quotes": ">" * many, "lists": "- " * many + "x", "stars": "*a " * many, "brackets": "[" * many,
            "links": "[a](" * many, "images": "![" * many, "marks": "**_[" * many, "angles": "<a:" * many,
            "ticks": " ".join("`" * i for i in range(1, 300)), "pipes": ("|-" * 200 + "\n") * 300,
            "indents": "\n".join(" " * i + "- a" for i in range(600)), "spaces": "# " + " " * many + "x",
            "numbers": "1. " * many, "fences": "```\n" * many, "escapes": "\\" * many,
        }
        for name, text in texts.items():
            depth, seconds, length = page.driver.execute_async_script("""
                const [text, done] = arguments;
                import("/page/markdown_view.js").then(({MarkdownView}) => {
                  const element = document.createElement("div");
                  const view = new MarkdownView(element);
                  const start = performance.now();
                  view.append(text);
                  view.draw();
                  const seconds = (performance.now() - start) / 1000;
                  const walker = document.createTreeWalker(element, NodeFilter.SHOW_ELEMENT);
                  let depth = 0;
                  while (walker.nextNode()) {
                    let here = 0;
                    for (let node = walker.currentNode; node !== element; node = node.parentNode) here++;
                    depth = Math.max(depth, here);
                  }
                  done([depth, seconds, element.textContent.length]);
                })""", text)
            self.assertLess(depth, 80, name)
            self.assertLess(seconds, 5, name)

    def test_questions_suit_the_model(self):
        page = self.page
        with open(os.path.join(MODEL, "example_questions.json")) as file:
            questions = json.load(file)
        offered = page.wait(lambda: [b.text for b in page.all("#prompts button")])
        self.assertEqual(offered, questions)
        page.open(self.stub)  # a model that says nothing of itself
        general = page.wait(lambda: [b.text for b in page.all("#prompts button")])
        self.assertEqual(len(general), 3)
        self.assertFalse(set(general) & set(questions))
        page.open(self.server)
        page.wait(lambda: page.all("#prompts button"))[0].click()
        self.assertEqual(page.one(".question").text, questions[0])
        page.wait_for_end(0)

    def test_why_there_are_fewer_drafts(self):
        page = self.page
        page.set("temperature", "0")
        page.set("max_tokens", "14")
        answer = page.ask(QUESTION)
        told = self.limits(answer)
        self.assertIn("length", told)
        self.assertEqual(self.shown_limits(), told)
        self.assertEqual(page.one(".limits").find_element(By.XPATH, "../h3").text, "Fewer than k = 3 drafts")
        # What was chosen is what there was: only the end is told.
        page.choose_drafts(1)
        page.ask(QUESTION)
        self.assertLessEqual(set(self.shown_limits()), {"prompt", "length"})
        page.choose_drafts(0)
        page.ask(QUESTION)
        self.assertIn("the settings ask for k = 0", page.one(".draft-limits").text)

    def test_why_a_server_drafts_fewer(self):
        page = self.page
        ranges = '{"num_speculative_tokens": 3, "num_speculative_tokens_per_batch_size": [[1, 100, 2]]}'
        few = Server.start("--speculative-config", ranges)
        none = Server.start("--spec-tokens", "0")
        try:
            page.open(few)
            page.set("temperature", "0")
            answer = page.ask(QUESTION)
            told = self.limits(answer)
            self.assertGreater(told["schedule"], 5)
            self.assertEqual(self.shown_limits(), told)
            self.assertIn("by batch size", page.one("[data-limit=schedule]").text)
            page.one("#open-settings").click()
            self.assertIn("by batch size", page.one(".draft-note").text)
            page.one(".drawer-head button").click()
            page.open(none)
            page.run("""localStorage.setItem("outrider.settings", '{"k":3}')""")  # of a server before it
            page.open(none)
            page.ask(QUESTION)
            self.assertIn("num_speculative_tokens is 0", page.wait(lambda: page.one(".draft-limits").text))
            page.one("#open-settings").click()
            notes = [note.text for note in page.all(".draft-note")]
            page.one(".drawer-head button").click()
            self.assertIn("k = 3 was chosen for another server", notes[0])
            self.assertIn("This server drafts nothing: num_speculative_tokens is 0.", notes[1])
        finally:
            few.stop()
            none.stop()

    def limits(self, answer):
        """Steps with fewer drafts than k by what limited them, as the stream told."""
        counts = {}
        for chunk in self.page.chunks(answer):
            for step in chunk["choices"][0].get("speculative_steps", []) if chunk["choices"] else []:
                if "draft_limit" in step:
                    counts[step["draft_limit"]] = counts.get(step["draft_limit"], 0) + 1
        return counts

    def shown_limits(self):
        rows = self.page.all(".limits li")
        return {row.get_attribute("data-limit"): int(row.get_attribute("data-count")) for row in rows}

    def test_bars_cover_nothing_that_is_scrolled_to(self):
        page = self.page
        for width, height in ((1280, 560), (360, 560)):
            page.resize(width, height)
            page.open(self.server)
            for _ in range(3):
                page.ask(QUESTION)
            below = "Math.max(0, ...[...document.querySelectorAll('.bar, .live')]" \
                    ".filter((e) => getComputedStyle(e).position === 'sticky')" \
                    ".map((e) => e.getBoundingClientRect().bottom))"
            above = "document.getElementById('composer').getBoundingClientRect().top"
            for block in ("start", "end", "nearest"):
                for index in (1, 2):
                    page.run(f"scrollTo(0, {10000 if block == 'nearest' else 0})")
                    place = page.run(f"""
                        const question = document.querySelectorAll(".question")[arguments[0]];
                        question.scrollIntoView({{block: arguments[1]}});
                        const {{top, bottom}} = question.getBoundingClientRect();
                        return [top - {below}, {above} - bottom]""", index, block)
                    self.assertGreaterEqual(min(place), 0, (width, block, index))
            # The keyboard scrolls, too: from step to step, and from button to button.
            page.run("scrollTo(0, 0); document.querySelectorAll('.answer')[0].querySelector('.switch button').focus()")
            for _ in range(18):
                page.driver.switch_to.active_element.send_keys(Keys.TAB)
                place = page.run(f"""
                    const at = document.activeElement;
                    if (!at.closest(".messages")) return null;
                    const {{top, bottom}} = at.getClientRects()[0];
                    return [top - {below}, {above} - bottom]""")
                if place:
                    self.assertGreaterEqual(min(place), 0, width)
            page.one("#message").send_keys((Keys.SHIFT + Keys.ENTER + Keys.SHIFT) * 6)  # the composer grows
            page.wait(lambda: page.run("return getComputedStyle(document.documentElement).getPropertyValue('--composer')")
                      == f"{page.one('#composer').size['height']}px")

    def test_follows_large_updates_until_the_reader_scrolls(self):
        page = self.page
        stub = Server.stub(tokens_per_step=300, step_microseconds=400000)
        try:
            page.open(stub)
            page.resize(360, 740)
            page.set("max_tokens", "2400")
            page.send("an answer that grows by many lines at once ")
            for steps in range(2, 5):
                page.wait(lambda: len(page.all(".answer .step")) >= steps)
                page.wait(lambda: page.hidden_pixels() < 2)
            page.run("scrollBy(0, -300)")
            place = page.run("return scrollY")
            page.wait(lambda: len(page.all(".answer .step")) >= 6)
            time.sleep(0.2)
            self.assertEqual(page.run("return scrollY"), place)
            page.wait(page.reaches_the_end)
            page.wait_for_end(0)
            page.wait(lambda: page.hidden_pixels() < 2)
        finally:
            stub.stop()

    def test_every_answer_has_a_rate(self):
        page = self.page
        page.set("temperature", "0")
        for tokens in ("1", "4", "30"):
            page.set("max_tokens", tokens)
            footer = page.ask(QUESTION).find_element(By.TAG_NAME, "footer").text
            self.assertRegex(footer, rf"^{tokens} tokens · .* [\d,.]+ tokens/s · first after \d+ ms")
            page.one("#new-chat").click()

    def test_settings_that_cannot_be_used_are_not_dropped(self):
        page = self.page
        page.one("#open-settings").click()
        drawer = page.one("#settings")
        top_p = page.one("#set-top_p")
        top_p.send_keys("2")
        self.assertRegex(page.one("#set-top_p-help").text, r"\b1\b")
        leave = [
            lambda: top_p.send_keys(Keys.ESCAPE),
            lambda: page.one(".drawer-head button").click(),
            lambda: ActionChains(page.driver).move_by_offset(20, 400).click().perform(),
        ]
        for way in leave:
            way()
            time.sleep(0.2)
            self.assertTrue(drawer.is_displayed())
            self.assertEqual(top_p.get_property("value"), "2")
        top_p.clear()
        top_p.send_keys("0.72")  # between two places of the slider
        self.assertEqual(page.one("#set-top_p-help").text, "likeliest tokens up to this share")
        page.one(".drawer-head button").click()
        self.assertFalse(drawer.is_displayed())
        page.set("temperature", "2.5")  # beyond the slider
        request = page.request(page.ask(QUESTION))
        self.assertEqual((request["top_p"], request["temperature"]), (0.72, 2.5))

    def test_one_scrollbar(self):
        page = Page(1280, 560, scrollbars=True)
        try:
            page.open(self.server)
            page.ask(QUESTION)
            page.ask(QUESTION)
            self.assertEqual(page.scrollbars(), ["HTML"])
            panel = page.one("#figures")
            page.run("arguments[0].scrollTo(0, 10000)", panel)
            self.assertGreater(page.run("return arguments[0].scrollTop", panel), 0)
            page.one("#open-settings").click()
            self.assertEqual(page.scrollbars(), ["settings"])
        finally:
            page.driver.quit()

    def test_model_output_stays_text(self):
        page = self.page
        page.open(self.stub)
        page.set("max_tokens", "90")
        nasty = "<img src=x onerror=hacked=1><script>hacked=1</script> &amp; €"
        answer = page.ask(nasty)
        self.assertTrue(page.text(answer).startswith("<img src=x onerror"))
        self.assertEqual(page.all("#messages img, #messages script"), [])
        self.assertEqual(page.run("return typeof hacked"), "undefined")
        # The euro sign comes as three tokens of one byte each.
        shown = page.run("return arguments[0].querySelector('.tokens').textContent", answer)
        self.assertIn("&amp; €", shown)
        self.assertNotIn("\ufffd", shown)

    def test_reasoning_folds(self):
        page = self.page
        page.open(self.stub)
        # It may be over before this test looks.
        page.run("""new MutationObserver(() => {
                      const open = document.querySelector('.reasoning[open]');
                      if (open && open.textContent.includes('12')) window.sawThinking = true;
                    }).observe(document.body, {subtree: true, childList: true, attributes: true,
                                               characterData: true})""")
        page.send("<think>First 12, then 7 more</think>So it is 19.")
        answer = page.wait_for_end(0)
        reasoning = page.one(".reasoning")
        self.assertTrue(reasoning.is_displayed())
        self.assertIs(page.run("return window.sawThinking"), True)
        shown = page.run("return arguments[0].querySelector('.reasoning-text').textContent", answer)
        self.assertEqual(shown, "First 12, then 7 more")
        self.assertEqual(page.text(answer), "So it is 19.")
        self.assertIsNone(reasoning.get_attribute("open"))  # folded once the answer began
        # The tokens are all there, those of the markers too.
        tokens = page.run("return arguments[0].querySelector('.tokens').textContent", answer)
        self.assertIn("<think>First 12", tokens)

    def test_live_strip(self):
        page = self.page
        self.assertEqual(page.one(".readout.drafts dd").text, "–")
        page.ask(QUESTION)
        page.wait(lambda: page.one(".readout.drafts dd").text == "3")
        self.assertRegex(page.one(".readout.time dd").text, r"^[\d.]+ ms$")
        page.wait(lambda: page.one(".readout.requests dd").text == "0")
        painted = """
            const canvas = document.getElementById("live-canvas");
            const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            const colours = new Set();
            for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255) colours.add(data.slice(i, i + 3).join());
            return colours.size"""
        page.wait(lambda: page.run(painted) >= 5)  # decode, accepted, prompt, time, the line
        canvas = page.one("#live-canvas")
        ActionChains(page.driver).move_to_element_with_offset(canvas, canvas.size["width"] // 2 - 8, 0).perform()
        self.assertRegex(page.one("#live-reading").text, r"step \d+: 1 decode, \d verify, 0 prompt rows in")

    def test_dark_and_light(self):
        page = self.page

        def brightness():
            return sum(int(part) for part in re.findall(r"\d+", page.colour("body"))[:3])

        self.assertGreater(brightness(), 600)
        page.prefer("dark")
        self.assertLess(brightness(), 150)
        page.one("#theme").click()  # light, whatever the system says
        self.assertGreater(brightness(), 600)
        page.open(self.server)
        self.assertGreater(brightness(), 600)
        page.one("#theme").click()
        page.prefer("light")
        self.assertLess(brightness(), 150)
        self.assertEqual(page.one("#theme").get_attribute("aria-label"), "Colours: dark")

    def test_narrow_window(self):
        page = self.page
        page.resize(360, 740)
        page.set("temperature", "0.9")
        page.set("seed", "4")
        page.ask(QUESTION)
        self.assertEqual(page.run("return document.documentElement.scrollWidth"), 360)
        self.assertTrue(page.one("#send").is_displayed())
        self.assertLess(page.one("#composer").rect["y"] + page.one("#composer").rect["height"], 741 + page.run("return scrollY"))
        self.assertTrue(page.one(".figures .histogram").is_displayed())

    def test_refused_requests_say_why(self):
        page = self.page
        page.set("max_tokens", "100000")
        answer = page.ask(QUESTION)
        self.assertEqual(answer.get_attribute("data-state"), "failed")
        note = answer.find_element(By.CSS_SELECTOR, ".note").text
        self.assertIn("100000 do not fit", note)
        self.assertIn("context_length_exceeded", note)
        page.set("max_tokens", "20")
        page.wait(lambda: answer.find_element(By.XPATH, ".//button[text()='Try again']")).click()
        answer = page.wait_for_end(0)
        self.assertEqual(answer.get_attribute("data-state"), "done")
        self.assertIn("20 tokens", answer.find_element(By.TAG_NAME, "footer").text)

    def test_api_key(self):
        server = Server.outrider("--api-key", "tiger")
        page = self.page
        try:
            page.open(server)
            page.wait(page.one("#key-dialog").is_displayed)
            page.one("#key").send_keys("lion" + Keys.ENTER)
            page.wait(lambda: "refused" in page.one("#key-note").text and page.one("#key-dialog").is_displayed())
            page.one("#key").send_keys("tiger" + Keys.ENTER)
            page.wait(lambda: page.one("#server-state").text == "Connected")
            self.assertEqual(page.ask(QUESTION).get_attribute("data-state"), "done")
            self.assertNotIn("tiger", page.run("return JSON.stringify(localStorage)"))
            self.assertIn("tiger", page.run("return JSON.stringify(sessionStorage)"))
            page.wait(lambda: page.one("#model").text == "tiny-v3-mtp3")
        finally:
            server.stop()
        page.wait(lambda: page.one("#server-state").text == "No answer from the server")


    def test_pictures_of_the_documentation(self):
        if not ARGUMENTS.screenshots:
            self.skipTest("takes pictures with --screenshots FOLDER only")
        page = self.page
        page.resize(1280, 800)
        page.set("temperature", "1.1")
        page.set("seed", "11")
        with Load(self.server):
            time.sleep(4)
            answer = page.ask(QUESTION)
            bracket = answer.find_elements(By.CSS_SELECTOR, ".step.has-rejected")[0]
            ActionChains(page.driver).move_to_element(bracket.find_element(By.CSS_SELECTOR, ".token")).perform()
            page.wait(page.one("#step-popover").is_displayed)
            page.screenshot("web-page.png")
            page.prefer("dark")
            page.set("seed", "3")
            answer = page.ask(LONG_QUESTION)
            page.one("h1").click()
            page.screenshot("web-page-dark.png")
            page.prefer("light")
            page.one("#new-chat").click()
            page.resize(360, 740)
            page.ask(QUESTION)
            page.run("scrollTo(0, 0)")
            page.screenshot("web-page-narrow.png")


def main():
    global ARGUMENTS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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


if __name__ == "__main__":
    main()
