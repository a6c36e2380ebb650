#!/usr/bin/env python3
"""Talks to a server through llama-index, by its client for servers with OpenAI's API.

    llama_index_test.py --stub build/.../stub_server

The stub server repeats the last message up to the first full stop.
"""

import argparse
import subprocess
import sys
import unittest

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

URL = ""
CALL = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>."


def client(**more):
    return OpenAILike(model="stub", api_base=URL, api_key="none", is_chat_model=True, context_window=4096,
                      max_retries=0, is_function_calling_model=True, **more)


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"Rain in {city}"


class LlamaIndex(unittest.TestCase):
    def test_chat(self):
        answer = client().chat([ChatMessage(role="system", content="Be brief"),
                                ChatMessage(role="user", content="Hello there. And more")])
        self.assertEqual(answer.message.content, "Hello there.")

    def test_streamed_chat(self):
        parts = list(client().stream_chat([ChatMessage(role="user", content="Hello there. And more")]))
        self.assertGreater(len(parts), 1)
        self.assertEqual(parts[-1].message.content, "Hello there.")

    def test_completion(self):
        self.assertEqual(client().complete("Hello there. And more").text, "Hello there.")

    def test_tools(self):
        tool = FunctionTool.from_defaults(get_weather)
        answer = client().predict_and_call([tool], user_msg=CALL)
        self.assertEqual(answer.response, "Rain in Paris")


def main():
    global URL
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stub", required=True)
    arguments = parser.parse_args()
    with subprocess.Popen([arguments.stub], stdout=subprocess.PIPE, text=True) as stub:
        URL = f"http://127.0.0.1:{stub.stdout.readline().strip()}/v1"
        result = unittest.main(argv=sys.argv[:1], exit=False, verbosity=2).result
        stub.terminate()
    sys.exit(0 if result.wasSuccessful() else 1)


if __name__ == "__main__":
    main()
