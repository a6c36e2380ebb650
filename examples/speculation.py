"""What drafts do for speed, and that they change no token.

    python3 examples/speculation.py [MODEL]
"""

import pathlib
import sys
import time

from outrider import LLM, SamplingParams

BUNDLED = pathlib.Path(__file__).resolve().parent.parent / "models/tiny-v3-mtp3"
PROMPTS = [f"Ada has {n} apples and buys {2 * n} more. How many apples does Ada have now?" for n in range(3, 27)]


def main(model: str) -> None:
    chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    params = SamplingParams(temperature=0, max_tokens=None)
    tokens = []
    for drafts in (0, 1, 3):
        with LLM(model, speculative_config={"num_speculative_tokens": drafts}) as llm:
            start = time.perf_counter()
            answers = llm.chat(chats, params, use_tqdm=False)
            seconds = time.perf_counter() - start
            counts = llm.get_metrics()["speculation"]
        tokens.append([answer.outputs[0].token_ids for answer in answers])
        total = sum(map(len, tokens[-1]))
        print(
            f"{drafts} drafts a step: {total / seconds:7.0f} tokens/s,"
            f" {counts.mean_acceptance_length:.2f} tokens a verify step,"
            f" accepted by position {counts.accepted_per_position}"
        )
    assert tokens[0] == tokens[1] == tokens[2]
    print("the same tokens each time")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(BUNDLED))
