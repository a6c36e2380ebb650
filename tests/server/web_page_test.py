"""Uses the web page as people do: what is where, settings, colours, keys, errors.

    web_page_test.py --outrider build/release/outrider --stub build/release/tests/server/stub_server
    web_page_test.py ... --screenshots docs/images     also takes the pictures of the documentation
"""

import json
import os
import re
import time

from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By

import web_page
from web_page import LONG_QUESTION, MODEL, QUESTION, Load, Page, PageTest, Server


class WebPageTest(PageTest):
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
            # The answer grows before the page is told of the scrolling.
            page.run("""addEventListener("scroll", (event) => event.stopImmediatePropagation(), {capture: true, once: true});
                        scrollBy(0, -300)""")
            place = page.run("return scrollY")
            page.wait(lambda: len(page.all(".answer .step")) >= 6)
            time.sleep(0.2)
            self.assertEqual(page.run("return scrollY"), place)
            page.wait(page.reaches_the_end)
            page.wait_for_end(0)
            page.wait(lambda: page.hidden_pixels() < 2)
        finally:
            stub.stop()

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
        if not web_page.ARGUMENTS.screenshots:
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


if __name__ == "__main__":
    web_page.main(__doc__)
