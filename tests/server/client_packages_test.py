#!/usr/bin/env python3
"""Talks to a server through the packages that applications use in the place of openai: openai-agents,
pydantic-ai, langchain, litellm, instructor and anthropic (tests/requirements_clients.txt).

    client_packages_test.py --stub build/.../stub_server --outrider build/.../outrider

The stub server repeats the last message up to the first full stop, so it says what a model that calls
tools would say. The bundled model knows no tools; a grammar makes it write what a format asks for.
"""

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import typing
import unittest

os.environ |= {"OPENAI_API_KEY": "none", "OPENAI_AGENTS_DISABLE_TRACING": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}

import agents  # noqa: E402
import anthropic  # noqa: E402
import instructor  # noqa: E402
import langchain_openai  # noqa: E402
import litellm  # noqa: E402
import openai  # noqa: E402
import pydantic  # noqa: E402
import pydantic_ai  # noqa: E402
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel  # noqa: E402
from pydantic_ai.providers.openai import OpenAIProvider  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import serve_process  # noqa: E402

STUB_URL = MODEL_URL = ""
MODEL = "tiny-v3-mtp3"
CALL = ("<think>Where?</think><tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
        "</tool_call>.")
WEATHER = {"name": "get_weather", "description": "The weather of a city",
           "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
QUESTION = "Ada has 12 apples and buys 7 more. How many apples does Ada have now?"


class Count(pydantic.BaseModel):
    apples: int = pydantic.Field(ge=0, le=99)


class OpenAiAgents(unittest.TestCase):
    """Its Responses model asks for encrypted reasoning and sends `store`, `metadata` and more."""

    def run_agent(self, model_class, **settings):
        asked = []

        @agents.function_tool
        def get_weather(city: str) -> str:
            """The weather of a city."""
            asked.append(city)
            return f"Rain in {city}."

        client = openai.AsyncOpenAI(base_url=STUB_URL, api_key="none", max_retries=0)
        agent = agents.Agent(name="weather", tools=[get_weather], model=model_class("stub", client),
                             model_settings=agents.ModelSettings(**settings))
        result = asyncio.run(agents.Runner.run(agent, CALL))
        self.assertEqual(asked, ["Paris"])
        self.assertIn("Rain in Paris", result.final_output)

    def test_responses(self):
        self.run_agent(agents.OpenAIResponsesModel)

    def test_responses_with_all_that_agents_send(self):
        self.run_agent(agents.OpenAIResponsesModel, store=False, truncation="auto", metadata={"run": "7"},
                       prompt_cache_retention="24h", parallel_tool_calls=True,
                       response_include=["reasoning.encrypted_content"])

    def test_chat_completions(self):
        self.run_agent(agents.OpenAIChatCompletionsModel, store=True, metadata={"run": "7"},
                       prompt_cache_retention="24h")


class PydanticAi(unittest.TestCase):
    def run_agent(self, model_class):
        provider = OpenAIProvider(base_url=STUB_URL, api_key="none")
        agent = pydantic_ai.Agent(model_class("stub", provider=provider))

        @agent.tool_plain
        def get_weather(city: str) -> str:
            """The weather of a city."""
            return f"Rain in {city}."

        self.assertIn("Rain in Paris", agent.run_sync(CALL).output)

    def test_chat(self):
        self.run_agent(OpenAIChatModel)

    def test_responses(self):
        self.run_agent(OpenAIResponsesModel)

    def test_native_output(self):
        model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=MODEL_URL, api_key="none"))
        agent = pydantic_ai.Agent(model, output_type=pydantic_ai.NativeOutput(Count))
        self.assertIsInstance(agent.run_sync(QUESTION, model_settings={"temperature": 0}).output, Count)


class LangChain(unittest.TestCase):
    def chat(self, base_url, model, **options):
        return langchain_openai.ChatOpenAI(base_url=base_url, api_key="none", model=model, max_retries=0, **options)

    def test_tools(self):
        for responses in False, True:
            with self.subTest(use_responses_api=responses):
                bound = self.chat(STUB_URL, "stub", use_responses_api=responses).bind_tools([
                    {"type": "function", "function": WEATHER}])
                call = bound.invoke(CALL).tool_calls[0]
                self.assertEqual((call["name"], call["args"]), ("get_weather", {"city": "Paris"}))

    def test_encrypted_reasoning(self):
        chat = self.chat(STUB_URL, "stub", use_responses_api=True, store=False, truncation="auto",
                         include=["reasoning.encrypted_content"])
        self.assertEqual(chat.invoke("Hello there. Bye").text, "Hello there.")

    def test_structured_output(self):
        chat = self.chat(MODEL_URL, MODEL, temperature=0)
        self.assertIsInstance(chat.with_structured_output(Count, method="json_schema").invoke(QUESTION), Count)

    def test_stream(self):
        pieces = list(self.chat(STUB_URL, "stub", stream_usage=True).stream("Hello there. Bye"))
        self.assertEqual("".join(piece.text for piece in pieces), "Hello there.")
        self.assertGreater(sum(piece.usage_metadata["output_tokens"] for piece in pieces if piece.usage_metadata), 0)


class LiteLlm(unittest.TestCase):
    STUB = {"model": "openai/stub", "api_key": "none"}

    def test_chat_with_tools(self):
        answer = litellm.completion(**self.STUB, api_base=STUB_URL, messages=[{"role": "user", "content": CALL}],
                                    tools=[{"type": "function", "function": WEATHER}])
        call = answer.choices[0].message.tool_calls[0].function
        self.assertEqual((call.name, json.loads(call.arguments)), ("get_weather", {"city": "Paris"}))
        self.assertEqual(answer.choices[0].message.reasoning_content, "Where?")

    def test_responses_with_encrypted_reasoning(self):
        answer = litellm.responses(**self.STUB, api_base=STUB_URL, input="Hello there. Bye", store=False,
                                   include=["reasoning.encrypted_content"], truncation="auto", metadata={"run": "7"})
        self.assertIn("Hello there", answer.model_dump_json())

    def test_bridge_from_chat_to_responses(self):
        answer = litellm.completion(model="openai/responses/stub", api_key="none", api_base=STUB_URL,
                                    messages=[{"role": "user", "content": "Hello there. Bye"}])
        self.assertEqual(answer.choices[0].message.content, "Hello there.")

    def test_structured_output(self):
        answer = litellm.completion(model=f"openai/{MODEL}", api_key="none", api_base=MODEL_URL, temperature=0,
                                    messages=[{"role": "user", "content": QUESTION}], response_format=Count)
        self.assertIsInstance(Count.model_validate_json(answer.choices[0].message.content), Count)


class Anthropic(unittest.TestCase):
    """/v1/messages."""

    TOOL = {"name": "get_weather", "description": "The weather of a city", "input_schema": WEATHER["parameters"]}

    def client(self, base_url=None):
        return anthropic.Anthropic(base_url=(base_url or STUB_URL).removesuffix("/v1"), api_key="none", max_retries=0)

    def ask(self, text, **fields):
        return {"model": "stub", "max_tokens": 500, "messages": [{"role": "user", "content": text}], **fields}

    def check_call(self, message):
        self.assertEqual([block.type for block in message.content], ["thinking", "tool_use", "text"])
        self.assertEqual(message.content[0].thinking, "Where?")
        self.assertEqual((message.content[1].name, message.content[1].input), ("get_weather", {"city": "Paris"}))
        self.assertEqual(message.stop_reason, "tool_use")

    def test_message(self):
        answer = self.client().messages.create(**self.ask(
            "Hello there. Bye", system="Be kind", stop_sequences=["END"], metadata={"user_id": "7"},
            extra_body={"temperature": 0.5}, thinking={"type": "enabled", "budget_tokens": 1024}))
        self.assertEqual(answer.content[0].text, "Hello there.")
        self.assertEqual((answer.stop_reason, answer.usage.output_tokens), ("end_turn", 12))
        self.assertEqual(answer.usage.cache_read_input_tokens, 1)

    def test_call(self):
        self.check_call(self.client().messages.create(**self.ask(CALL, tools=[self.TOOL])))

    def test_streamed_call(self):
        with self.client().messages.stream(**self.ask(CALL, tools=[self.TOOL])) as stream:
            kinds = {event.type for event in stream}
            self.check_call(stream.get_final_message())
        self.assertLessEqual({"message_start", "thinking", "input_json", "content_block_stop", "message_stop"}, kinds)

    def test_loop_of_tool_calls(self):
        asked = []

        @anthropic.beta_tool
        def get_weather(city: str) -> str:
            """The weather of a city."""
            asked.append(city)
            return f"Rain in {city}." if len(asked) > 2 else CALL

        for stream in False, True:
            asked.clear()
            with self.subTest(stream=stream):
                runner = self.client().beta.messages.tool_runner(**self.ask(CALL), tools=[get_weather], stream=stream)
                last = runner.until_done()
                self.assertEqual(asked, ["Paris"] * 3)
                self.assertEqual(last.content[0].text, "Rain in Paris.")

    def test_count(self):
        fields = self.ask("Hello", tools=[self.TOOL])
        del fields["max_tokens"]
        self.assertEqual(self.client().messages.count_tokens(**fields).input_tokens, 6)

    def test_errors(self):
        client = self.client()
        with self.assertRaises(anthropic.NotFoundError) as caught:
            client.messages.create(**self.ask("Hello", model="other"))
        self.assertEqual(caught.exception.body["error"]["type"], "not_found_error")
        self.assertTrue(caught.exception.request_id)
        with self.assertRaises(anthropic.BadRequestError) as caught:
            client.messages.create(**self.ask("Hello", tools=[{"type": "bash_20250124", "name": "bash"}]))
        self.assertIn("bash_20250124", caught.exception.message)

    def test_json_by_a_model(self):
        schema = {"type": "object", "properties": {"apples": {"type": "integer", "minimum": 0, "maximum": 99}},
                  "required": ["apples"], "additionalProperties": False}
        answer = self.client(MODEL_URL).messages.create(**self.ask(
            QUESTION, model=MODEL, extra_body={"temperature": 0},
            output_config={"format": {"type": "json_schema", "schema": schema}}))
        self.assertIn("apples", json.loads(answer.content[0].text))


class Instructor(unittest.TestCase):
    """With the modes by which a grammar makes the model write the object."""

    def count(self, mode):
        client = instructor.from_openai(openai.OpenAI(base_url=MODEL_URL, api_key="none", max_retries=0), mode=mode)
        return client.chat.completions.create(model=MODEL, response_model=Count, max_retries=0, temperature=0,
                                              messages=[{"role": "user", "content": QUESTION}])

    def test_json_schema(self):
        self.assertIsInstance(self.count(instructor.Mode.JSON_SCHEMA), Count)

    def test_parallel_tools(self):
        """The stub calls what it is told to call."""
        client = instructor.from_openai(openai.OpenAI(base_url=STUB_URL, api_key="none", max_retries=0),
                                        mode=instructor.Mode.PARALLEL_TOOLS)
        call = "<tool_call>Count\n<arg_key>apples</arg_key>\n<arg_value>19</arg_value>\n</tool_call>."
        found = client.chat.completions.create(model="stub", response_model=typing.Iterable[Count], max_retries=0,
                                               messages=[{"role": "user", "content": call}])
        self.assertEqual([count.apples for count in found], [19])


def main():
    global MODEL_URL, STUB_URL
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stub", required=True)
    parser.add_argument("--outrider", required=True)
    arguments = parser.parse_args()
    with contextlib.ExitStack() as running:
        stub = running.enter_context(subprocess.Popen([arguments.stub], stdout=subprocess.PIPE, text=True))
        running.callback(stub.terminate)
        STUB_URL = f"http://127.0.0.1:{stub.stdout.readline().strip()}/v1"
        server = running.enter_context(serve_process.Server(
            arguments.outrider, ROOT / "models" / MODEL, ["--served-model-name", MODEL]))
        MODEL_URL = "http://{}:{}/v1".format(*server.address)
        result = unittest.main(argv=sys.argv[:1], exit=False, verbosity=2).result
    sys.exit(0 if result.wasSuccessful() else 1)


if __name__ == "__main__":
    main()
