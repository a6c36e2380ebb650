"""Turns sentences into JSON objects of a schema, all in one batch.

    python3 examples/batch_json_schema.py [MODEL]
"""

import json
import pathlib
import sys

from outrider import LLM, SamplingParams, StructuredOutputsParams

BUNDLED = pathlib.Path(__file__).resolve().parent.parent / "models/tiny-v3-mtp3"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": {"enum": ["Oslo", "Lima", "Cairo", "Turin"]},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
SENTENCES = [
    "Elsa is 34 years old and works as a baker in Oslo.",
    "Tariq, a pilot of 51, lives in Lima.",
    "The violinist Vera is 28 and comes from Turin.",
]


def main(model: str) -> None:
    params = SamplingParams(
        temperature=0, max_tokens=120, structured_outputs=StructuredOutputsParams(json=SCHEMA)
    )
    with LLM(model) as llm:
        chats = [[{"role": "user", "content": f"Extract name, age and city: {s}"}] for s in SENTENCES]
        for answer in llm.chat(chats, params):
            print(json.loads(answer.outputs[0].text))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(BUNDLED))
