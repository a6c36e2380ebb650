"""Talks to a server as applications do: with the openai package.

    openai_client_test.py --base-url http://127.0.0.1:8000/v1      a server that runs already
    openai_client_test.py --start build/.../stub_server            starts the stub server itself

Checks what holds for every model: shapes, streaming, usage, errors. Needs only the openai package.
"""

import argparse
import json
import subprocess
import sys
import threading
import unittest

import openai

BASE_URL = ""
PROGRAM = ""  # that was started
IS_STUB = False  # it repeats the last message up to the first full stop
QUESTION = [
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": "What is 12 + 30?"},
]


class OpenAiClientTest(unittest.TestCase):
    def setUp(self):
        self.client = openai.OpenAI(base_url=BASE_URL, api_key="none", max_retries=0, timeout=60)
        self.model = self.client.models.list().data[0].id

    def tearDown(self):
        self.client.close()

    def chat(self, **fields):
        fields = {"model": self.model, "messages": QUESTION, "max_tokens": 24, "temperature": 0} | fields
        return self.client.chat.completions.create(**fields)

    def test_lists_models(self):
        models = self.client.models.list()
        self.assertEqual(models.object, "list")
        self.assertGreater(models.data[0].max_model_len, 1)
        self.assertEqual(self.client.models.retrieve(self.model).id, self.model)

    def test_chats(self):
        answer = self.chat()
        choice = answer.choices[0]
        self.assertEqual(answer.object, "chat.completion")
        self.assertEqual(choice.message.role, "assistant")
        self.assertTrue(choice.message.content)
        self.assertIn(choice.finish_reason, ("stop", "length"))
        usage = answer.usage
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
        self.assertLessEqual(usage.completion_tokens, 24)
        self.assertGreaterEqual(usage.prompt_tokens_details.cached_tokens, 0)

    def test_streams_the_same_text(self):
        whole = self.chat()
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
        self.assertEqual(reasons[-1], whole.choices[0].finish_reason)
        self.assertTrue(all(reason is None for reason in reasons[:-1]))
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual(len({c.id for c in chunks}), 1)

    def test_a_stream_may_be_left(self):
        stream = self.chat(stream=True, max_tokens=1000)
        next(iter(stream))
        stream.close()
        self.assertTrue(self.chat().choices)

    def test_takes_content_parts(self):
        parts = [{"type": "text", "text": QUESTION[1]["content"]}]
        answer = self.chat(messages=[QUESTION[0], {"role": "user", "content": parts}])
        self.assertEqual(answer.choices[0].message.content, self.chat().choices[0].message.content)

    def test_chat_logprobs(self):
        content = self.chat(logprobs=True, top_logprobs=3).choices[0].logprobs.content
        self.assertGreater(len(content), 0)
        for token in content:
            self.assertLessEqual(token.logprob, 0)
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertEqual(bytes(token.bytes).decode(errors="replace"), token.token)
            # Greedy: what was chosen is the likeliest.
            self.assertEqual(token.logprob, max(top.logprob for top in token.top_logprobs))

    def test_completes_text_and_token_ids(self):
        asked = {"model": self.model, "max_tokens": 8, "temperature": 0}
        ids = {"return_token_ids": True}
        one = self.client.completions.create(prompt="1 + 1 =", extra_body=ids, **asked)
        prompt_ids = one.choices[0].prompt_token_ids
        self.assertEqual(one.usage.prompt_tokens, len(prompt_ids))
        self.assertEqual(one.usage.completion_tokens, len(one.choices[0].token_ids))
        batch = self.client.completions.create(prompt=["1 + 1 =", "2 + 2 ="], **asked)
        self.assertEqual([choice.index for choice in batch.choices], [0, 1])
        self.assertEqual(batch.choices[0].text, one.choices[0].text)
        by_ids = self.client.completions.create(prompt=prompt_ids, **asked)
        self.assertEqual(by_ids.choices[0].text, one.choices[0].text)
        stream = self.client.completions.create(prompt=["1 + 1 ="], stream=True, **asked)
        self.assertEqual("".join(c.choices[0].text for c in stream), one.choices[0].text)

    def test_completion_logprobs(self):
        answer = self.client.completions.create(
            model=self.model, prompt="1 + 1 =", max_tokens=4, temperature=0, logprobs=2
        )
        logprobs = answer.choices[0].logprobs
        self.assertEqual(len(logprobs.tokens), answer.usage.completion_tokens)
        for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs):
            self.assertIn(token, top)
            self.assertEqual(logprob, max(top.values()))
        self.assertEqual(logprobs.text_offset[0], 0)

    def test_reports_speculation(self):
        answer = self.chat(extra_body={"per_request_spec_decode_metrics": "summary"})
        metrics = answer.metrics["speculative_decoding"]
        self.assertGreaterEqual(metrics["mean_acceptance_length"], 1)
        self.assertEqual(sum(metrics["acceptance_histogram"]), metrics["num_spec_steps"])

    def test_same_seed_same_text(self):
        texts = {self.chat(temperature=1, seed=5).choices[0].message.content for _ in range(3)}
        self.assertEqual(len(texts), 1)

    def test_gives_several_choices_with_penalties(self):
        answer = self.chat(n=2, presence_penalty=0.5, logit_bias={"7": -100}, seed=3)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1])

    def test_errors_are_mapped(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(temperature=3)
        self.assertEqual(caught.exception.param, "temperature")
        self.assertIn("from 0 to 2", caught.exception.message)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(extra_body={"temprature": 1})
        self.assertIn("did you mean", caught.exception.message)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(max_tokens=10**9)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.BadRequestError):
            self.chat(n=0)
        with self.assertRaises(openai.NotFoundError) as caught:
            self.chat(model="no-such-model")
        self.assertEqual(caught.exception.code, "model_not_found")


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "strict": True,  # the client's stream helper wants it
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        },
    }
]
MODEL_TEXT = (
    "<think>Where?</think>I look<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>."
)


class ToolsTest(OpenAiClientTest):
    """What a client makes of a model's reasoning and calls; the stub says what such a model would."""

    def setUp(self):
        if not IS_STUB:
            self.skipTest("needs the stub server, which says what it is told to")
        super().setUp()

    def ask(self, **fields):
        messages = [{"role": "user", "content": MODEL_TEXT}]
        return self.chat(messages=messages, tools=TOOLS, max_tokens=1000, **fields)

    def test_message(self):
        choice = self.ask().choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        self.assertEqual(choice.message.reasoning, "Where?")
        self.assertEqual(choice.message.reasoning_content, "Where?")
        call = choice.message.tool_calls[0]
        self.assertEqual(call.function.name, "get_weather")
        self.assertEqual(json.loads(call.function.arguments), {"city": "Paris", "days": 3})

    def test_stream(self):
        with self.client.chat.completions.stream(
            model=self.model, messages=[{"role": "user", "content": MODEL_TEXT}], tools=TOOLS, max_tokens=1000
        ) as stream:
            for _ in stream:
                pass
            message = stream.get_final_completion().choices[0].message
        whole = self.ask().choices[0].message
        self.assertEqual(message.content, whole.content)
        self.assertEqual(message.tool_calls[0].function.name, "get_weather")
        self.assertEqual(message.tool_calls[0].function.arguments, whole.tool_calls[0].function.arguments)

    def test_calls_go_back_into_the_conversation(self):
        message = self.ask().choices[0].message
        call_id = message.tool_calls[0].id
        answer = self.chat(
            messages=[
                {"role": "user", "content": "Weather?"},
                message.model_dump(exclude_none=True),
                {"role": "tool", "tool_call_id": call_id, "content": "sunny."},
            ],
            tools=TOOLS,
        )
        self.assertEqual(answer.choices[0].message.content, "sunny.")

    def test_responses(self):
        tools = [{"type": "function", **TOOLS[0]["function"], "strict": False}]
        response = self.client.responses.create(model=self.model, input=MODEL_TEXT, tools=tools)
        self.assertEqual([item.type for item in response.output], ["reasoning", "message", "function_call", "message"])
        call = response.output[2]
        self.assertEqual(json.loads(call.arguments), {"city": "Paris", "days": 3})
        self.assertEqual(response.output_text, "I look.")
        self.assertGreater(response.usage.output_tokens_details.reasoning_tokens, 0)
        # What came out goes in again.
        again = self.client.responses.create(
            model=self.model,
            input=[
                {"role": "user", "content": "Weather?"},
                *[item.model_dump(exclude_none=True) for item in response.output],
                {"type": "function_call_output", "call_id": call.call_id, "output": "sunny."},
            ],
            tools=tools,
        )
        self.assertEqual(again.output_text, "sunny.")

    def test_response_stream(self):
        tools = [{"type": "function", **TOOLS[0]["function"], "strict": False}]
        with self.client.responses.stream(model=self.model, input=MODEL_TEXT, tools=tools) as stream:
            types = [event.type for event in stream]
            final = stream.get_final_response()
        self.assertEqual(types[0], "response.created")
        self.assertEqual(types[-1], "response.completed")
        self.assertIn("response.function_call_arguments.delta", types)
        self.assertEqual(final.output_text, "I look.")


# What ToolsTest inherits from is run once, as itself.
for _name in [name for name in dir(OpenAiClientTest) if name.startswith("test_")]:
    if _name not in ToolsTest.__dict__:
        setattr(ToolsTest, _name, None)


class RetriesTest(unittest.TestCase):
    """A full server says 503 and Retry-After: the client asks again, until there is room."""

    def test_retries(self):
        if not IS_STUB:
            self.skipTest("needs a stub server that takes one request at a time")
        with subprocess.Popen([PROGRAM, "0", "1", "5000", "1", "1"], stdout=subprocess.PIPE, text=True) as server:
            base_url = f"http://127.0.0.1:{server.stdout.readline().strip()}/v1"
            asked = {"model": "stub", "messages": QUESTION, "max_tokens": 4}
            with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
                stream = client.chat.completions.create(**asked | {"max_tokens": 2000}, stream=True)
                next(iter(stream))
                with self.assertRaises(openai.InternalServerError) as caught:
                    client.chat.completions.create(**asked)
                self.assertEqual(caught.exception.status_code, 503)
                self.assertEqual(caught.exception.response.headers["Retry-After"], "1")
                threading.Timer(0.5, stream.close).start()
                answer = client.with_options(max_retries=3).chat.completions.create(**asked)
                self.assertTrue(answer.choices)
            server.terminate()


def main():
    global BASE_URL, IS_STUB, PROGRAM
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--base-url", help="the API of a running server, with /v1")
    where.add_argument("--start", metavar="PROGRAM", help="a server that prints its port when started")
    arguments = parser.parse_args()
    server = None
    if arguments.start:
        server = subprocess.Popen([arguments.start], stdout=subprocess.PIPE, text=True)
        PROGRAM = arguments.start
        IS_STUB = "stub" in PROGRAM
        BASE_URL = f"http://127.0.0.1:{server.stdout.readline().strip()}/v1"
    else:
        BASE_URL = arguments.base_url
    try:
        result = unittest.main(argv=sys.argv[:1], exit=False, verbosity=2).result
    finally:
        if server:
            server.terminate()
            server.wait()
    sys.exit(0 if result.wasSuccessful() else 1)


if __name__ == "__main__":
    main()
