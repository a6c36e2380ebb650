"""Prints two answers while they are written, and gives a third one up.

    python3 examples/streaming.py [MODEL]
"""

import asyncio
import pathlib
import sys

from outrider import AsyncLLM, SamplingParams

BUNDLED = pathlib.Path(__file__).resolve().parent.parent / "models/tiny-v3-mtp3"


async def print_answer(llm: AsyncLLM, name: str, prompt: str) -> None:
    shown = 0
    async for answer in llm.generate(prompt, SamplingParams(temperature=0, max_tokens=30)):
        text = answer.outputs[0].text
        print(f"{name}: {text[shown:]!r}")
        shown = len(text)


async def main(model: str) -> None:
    async with AsyncLLM(model) as llm:
        await asyncio.gather(
            print_answer(llm, "Ada", "Ada has 12 apples."), print_answer(llm, "Ben", "Ben packs 3 boxes")
        )
        endless = llm.generate("Cleo", SamplingParams(max_tokens=1000, ignore_eos=True))
        try:
            await asyncio.wait_for(anext(endless), timeout=60)
        finally:
            await endless.aclose()
        print("the third was given up")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else str(BUNDLED)))
