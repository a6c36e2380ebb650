"""Answers on the web page token by token: their steps and drafts, and the figures beside them.

    web_page_tokens_test.py --outrider build/release/outrider --stub build/release/tests/server/stub_server
"""

from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By

import web_page
from web_page import KINDS, QUESTION, PageTest, Server


class TokensTest(PageTest):
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
            self.assertIn("by batch size", self.draft_notes()[0])
            page.one(".drawer-head button").click()
            page.open(none)
            page.run("""localStorage.setItem("outrider.settings", '{"k":3}')""")  # of a server before it
            page.open(none)
            page.ask(QUESTION)
            self.assertIn("num_speculative_tokens is 0", page.wait(lambda: page.one(".draft-limits").text))
            notes = self.draft_notes()
            page.one(".drawer-head button").click()
            self.assertIn("k = 3 was chosen for another server", notes[0])
            self.assertIn("This server drafts nothing: num_speculative_tokens is 0.", notes[1])
        finally:
            few.stop()
            none.stop()

    def draft_notes(self):
        """Opens the settings, which slide in: a text is "" until it can be seen."""
        self.page.one("#open-settings").click()
        self.page.wait(lambda: self.page.one(".draft-note").text)
        return [note.text for note in self.page.all(".draft-note")]

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

    def test_every_answer_has_a_rate(self):
        page = self.page
        page.set("temperature", "0")
        for tokens in ("1", "4", "30"):
            page.set("max_tokens", tokens)
            footer = page.ask(QUESTION).find_element(By.TAG_NAME, "footer").text
            self.assertRegex(footer, rf"^{tokens} tokens · .* [\d,.]+ tokens/s · first after \d+ ms")
            page.one("#new-chat").click()

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


if __name__ == "__main__":
    web_page.main(__doc__)
