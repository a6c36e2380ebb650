"""Talks to a server as applications do: with the openai package.

    openai_client_test.py --base-url http://127.0.0.1:8000/v1      a server that runs already
    openai_client_test.py --start build/.../stub_server            starts the stub server itself
    openai_client_test.py --outrider build/.../outrider            serves the bundled model

Checks what holds for every model: shapes, streaming, usage, errors; with the stub what a model that
calls tools would say; with the bundled model structured output, keys and stopping. One case per
thing a client does makes it long. Needs the openai package.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import typing
import unittest

import openai
import pydantic

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import serve_process  # noqa: E402

BASE_URL = ""
API_KEY = "none"
MOST_REQUESTS = 4  # of the bundled model's server, for a key at a time
PROGRAM = ""  # that was started
IS_STUB = False  # it repeats the last message up to the first full stop
IS_BUNDLED_MODEL = False
QUESTION = [
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": "What is 12 + 30?"},
]


class OpenAiClientTest(unittest.TestCase):
    def setUp(self):
        self.client = openai.OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0, timeout=60)
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
            self.chat(temperature=-1)
        self.assertEqual(caught.exception.param, "temperature")
        self.assertIn("at least 0", caught.exception.message)
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


def without_inherited_tests(test_class):
    """What it inherits from is run once, as itself."""
    for name in dir(OpenAiClientTest):
        if name.startswith("test_") and name not in test_class.__dict__:
            setattr(test_class, name, None)
    return test_class


@without_inherited_tests
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


class Basket(pydantic.BaseModel):
    """What the model is made to say: enough kinds of values, none of them endless."""

    fruit: typing.Literal["apple", "pear"]
    count: int = pydantic.Field(ge=1, le=20)
    full: bool
    sizes: list[typing.Literal["small", "large"]] = pydantic.Field(min_length=1, max_length=3)


@without_inherited_tests
class BundledModelTest(OpenAiClientTest):
    """Structured output, which needs a model with a tokenizer; and what a key may do."""

    def setUp(self):
        if not IS_BUNDLED_MODEL:
            self.skipTest("needs the bundled model")
        super().setUp()

    def test_parses_an_answer(self):
        asked = {"model": self.model, "messages": QUESTION, "max_tokens": 200, "temperature": 1}
        for seed in range(5):
            answer = self.client.chat.completions.parse(**asked, seed=seed, response_format=Basket)
            self.assertIsInstance(answer.choices[0].message.parsed, Basket)
            self.assertEqual(answer.choices[0].finish_reason, "stop")
            with self.client.chat.completions.stream(**asked, seed=seed, response_format=Basket) as stream:
                for _ in stream:
                    pass
                final = stream.get_final_completion()
            self.assertEqual(final.choices[0].message.parsed, answer.choices[0].message.parsed)

    def test_parses_a_response(self):
        response = self.client.responses.parse(
            model=self.model, input=QUESTION[1]["content"], max_output_tokens=200, text_format=Basket
        )
        self.assertIsInstance(response.output_parsed, Basket)

    def test_json_object(self):
        answer = self.chat(response_format={"type": "json_object"}, max_tokens=400, stop="}", temperature=1, seed=2)
        self.assertTrue(answer.choices[0].message.content.startswith("{"))

    def test_vllms_kinds(self):
        def ask(**kind):
            return self.chat(extra_body={"structured_outputs": kind}).choices[0].message.content

        self.assertRegex(ask(regex="[a-c]{3}-[0-9]{2}"), "^[a-c]{3}-[0-9]{2}$")
        self.assertIn(ask(choice=["plum", "quince"]), ("plum", "quince"))
        self.assertIn(ask(grammar='root ::= "yes" | "no" "!"'), ("yes", "no!"))

    def test_a_schema_that_cannot_be_is_named(self):
        schema = {"name": "x", "schema": {"type": "what"}}
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(response_format={"type": "json_schema", "json_schema": schema})
        self.assertEqual(caught.exception.param, "response_format.json_schema.schema")

    def test_a_wrong_key(self):
        with self.assertRaises(openai.AuthenticationError) as caught:
            self.client.with_options(api_key="guess").models.list()
        self.assertEqual(caught.exception.code, "invalid_api_key")

    def test_a_key_has_a_limit(self):
        long = {"max_tokens": 1000, "extra_body": {"ignore_eos": True}}
        with contextlib.ExitStack() as streams:
            for _ in range(MOST_REQUESTS):
                next(iter(streams.enter_context(self.chat(stream=True, **long))))
            with self.assertRaises(openai.RateLimitError) as caught:
                self.chat()
            self.assertEqual(caught.exception.response.headers["Retry-After"], "1")
        # A client that waits as it is told to gets its answer.
        self.assertTrue(self.client.with_options(max_retries=3).models.list().data)
        patient = self.client.with_options(max_retries=5).chat.completions
        self.assertTrue(patient.create(model=self.model, messages=QUESTION, max_tokens=4).choices)


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


def serve_bundled_model(*flags):
    model = ROOT / "models" / "tiny-v3-mtp3"
    return serve_process.Server(PROGRAM, model, ["--api-key", API_KEY, *flags])


class StopTest(unittest.TestCase):
    """SIGTERM: what is new is refused, what runs may finish, and what takes too long is told so."""

    def setUp(self):
        if not IS_BUNDLED_MODEL:
            self.skipTest("needs the bundled model")

    @contextlib.contextmanager
    def stopping(self, *flags):
        """A server that has got SIGTERM, a client, and a stream of 3000 tokens that has begun."""
        with serve_bundled_model(*flags) as server:
            base_url = "http://{}:{}/v1".format(*server.address)
            with openai.OpenAI(base_url=base_url, api_key=API_KEY, max_retries=0, timeout=120) as client:
                model = client.models.list().data[0].id
                asked = {"model": model, "messages": QUESTION, "extra_body": {"ignore_eos": True}}
                usage = {"include_usage": True}
                stream = iter(client.chat.completions.create(**asked, max_tokens=3000, stream=True, stream_options=usage))
                next(stream)
                os.kill(server.pid, signal.SIGTERM)
                yield lambda: client.chat.completions.create(**asked, max_tokens=1), stream
            server.wait_for_end(60)
        self.assertEqual(server.ending(), "")

    def test_finishes_what_runs(self):
        with self.stopping("--shutdown-timeout", "200") as (ask, stream):
            with self.assertRaises(openai.InternalServerError) as caught:
                while True:  # the signal takes a moment
                    ask()
            self.assertEqual(caught.exception.status_code, 503)
            self.assertEqual(caught.exception.response.headers["Retry-After"], "1")
            self.assertEqual(list(stream)[-1].usage.completion_tokens, 3000)

    def test_tells_whom_it_cuts_off(self):
        with self.stopping("--shutdown-timeout", "0.2") as (_, stream):
            with self.assertRaises(openai.APIError) as caught:
                list(stream)
            self.assertEqual(caught.exception.code, "shutting_down")


def main():
    global API_KEY, BASE_URL, IS_BUNDLED_MODEL, IS_STUB, PROGRAM
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--base-url", help="the API of a running server, with /v1")
    where.add_argument("--start", metavar="PROGRAM", help="a server that prints its port when started")
    where.add_argument("--outrider", metavar="PROGRAM", help="outrider, to serve the bundled model")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as running:
        if arguments.start:
            PROGRAM = arguments.start
            IS_STUB = "stub" in PROGRAM
            server = running.enter_context(subprocess.Popen([PROGRAM], stdout=subprocess.PIPE, text=True))
            running.callback(server.terminate)
            BASE_URL = f"http://127.0.0.1:{server.stdout.readline().strip()}/v1"
        elif arguments.outrider:
            IS_BUNDLED_MODEL, API_KEY, PROGRAM = True, "secret", arguments.outrider
            limit = ["--max-num-reqs-per-key", str(MOST_REQUESTS)]
            server = running.enter_context(serve_bundled_model(*limit))
            BASE_URL = "http://{}:{}/v1".format(*server.address)
        else:
            BASE_URL = arguments.base_url
        result = unittest.main(argv=sys.argv[:1], exit=False, verbosity=2).result
    sys.exit(0 if result.wasSuccessful() else 1)


if __name__ == "__main__":
    main()
