"""Answers on the web page as text: Markdown, reasoning, and what a model may write against the page.

    web_page_text_test.py --outrider build/release/outrider --stub build/release/tests/server/stub_server
"""

import re

import web_page
from web_page import PageTest


class TextTest(PageTest):
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


if __name__ == "__main__":
    web_page.main(__doc__)
