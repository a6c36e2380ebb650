"""Answers two questions, and continues a text.

    python3 examples/quick_start.py [MODEL]
"""

import pathlib
import sys

from outrider import LLM, SamplingParams

BUNDLED = pathlib.Path(__file__).resolve().parent.parent / "models/tiny-v3-mtp3"


def main(model: str) -> None:
    with LLM(model) as llm:
        chats = [
            [{"role": "user", "content": "Ben has 31 stamps and gets 9 more. How many stamps does Ben have?"}],
            [{"role": "user", "content": "Mia packs 6 boxes with 7 pens in each. How many pens are there in total?"}],
        ]
        for answer in llm.chat(chats, SamplingParams(temperature=0, max_tokens=None)):
            print(answer.outputs[0].text)
        (story,) = llm.generate("On Monday, Ada", SamplingParams(seed=1, max_tokens=40))
        print(story.prompt, story.outputs[0].text, sep="")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(BUNDLED))
