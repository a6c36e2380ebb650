"""Asks which of several answers the model finds likeliest, and shows that a score is exactly the
log-probability of generation.

    python3 examples/scoring.py [MODEL]
"""

import pathlib
import sys

from outrider import LLM, SamplingParams

BUNDLED = pathlib.Path(__file__).resolve().parent.parent / "models/tiny-v3-mtp3"


def main(model: str) -> None:
    with LLM(model) as llm:
        question = [{"role": "user", "content": "Leo has 20 books and gives 6 to a friend. How many books are left?"}]
        (answer,) = llm.chat(question, SamplingParams(temperature=0, max_tokens=None, logprobs=0))
        prompt = llm.get_tokenizer().apply_chat_template(question)
        text = answer.outputs[0].text
        candidates = [text, text.replace("14", "15"), "I do not know."]
        scores = llm.score([prompt] * len(candidates), candidates)
        for candidate, score in zip(candidates, scores):
            print(f"{score.outputs[0].cumulative_logprob:10.4f}  {candidate!r}")
        (again,) = llm.score([prompt], [answer.outputs[0].token_ids])
        assert again.outputs[0].logprobs == answer.outputs[0].logprobs
        print("equal to generation, bit for bit")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(BUNDLED))
