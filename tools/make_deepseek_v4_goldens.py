#!/usr/bin/env python3
"""Writes deepseek_v4_prompts.json of tests/text/golden (tools/text_cases.py): conversations, and the
prompts that DeepSeek-V4's published encoder makes of them.

Run by hand, with the directory "encoding" of a DeepSeek-V4 checkpoint (the committed file was made
with the one that the first releases have):
    tools/make_deepseek_v4_goldens.py encoding FOLDER/deepseek_v4_prompts.json [RANDOM_CASES]
"""

import copy
import json
import pathlib
import random
import sys

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "The weather at a place.",
        "parameters": {"type": "object", "required": ["place"], "properties": {
            "place": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 1e16},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"}}}}},
    {"type": "function", "strict": True, "function": {
        "name": "搜索", "description": "Searches.\n\"Quoted\" \\ and </tags>\t\u007f\u2028",
        "parameters": {"type": "object", "additionalProperties": False, "properties": {
            "queries": {"type": "array", "items": {"type": "string"}}, "limit": {"default": -0.5}}}}},
]


def call(id, name, arguments):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def documented():
    """In the shape of the examples that the encoder's documentation and its tests have."""
    system = {"role": "system", "content": "You are a helpful assistant."}
    sum_question = {"role": "user", "content": "What is 2+2?"}
    with_tools = [
        {**system, "tools": TOOLS},
        {"role": "user", "content": "How is the weather in Kyoto and in Bergen?"},
        {"role": "assistant", "content": "", "reasoning_content": "Two places: two calls.",
         "tool_calls": [call("a", "get_weather", '{"place": "Kyoto", "days": 2}'),
                        call("b", "get_weather", '{"place": "Bergen", "unit": "celsius"}')]},
        {"role": "tool", "tool_call_id": "b", "content": '{"rain": true}'},
        {"role": "tool", "tool_call_id": "a", "content": '{"rain": false}'},
        {"role": "assistant", "content": "Dry in Kyoto, rain in Bergen.", "reasoning_content": "Both came."},
    ]
    multi_turn = [
        system, {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi!", "reasoning_content": "A greeting."},
        {"role": "user", "content": "The capital of Peru?"},
        {"role": "assistant", "content": "Lima.", "reasoning_content": "It is Lima."},
    ]
    search = [
        {"role": "system", "content": "该助手帮助用户。"},
        {"role": "latest_reminder", "content": "2026-11-25,星期三,App,中文"},
        {"role": "developer", "content": "什么是地热？\n\nCite as 【1†L2】.", "tools": TOOLS,
         "response_format": {"type": "object", "properties": {"answer": {"type": "string"}}}},
        {"role": "assistant", "content": "", "reasoning_content": "先搜索。",
         "tool_calls": [call("", "搜索", '{"queries": ["地热", "\\u6e29\\u6cc9"], "limit": 3.50}')]},
        {"role": "tool", "content": "[0]"},
        {"role": "assistant", "content": "地球的热。", "reasoning_content": "够了。", "tool_calls": []},
    ]
    task = [
        {"role": "system", "content": "You help."},
        {"role": "latest_reminder", "content": "2026-11-25"},
        {"role": "user", "content": "Hot springs?"}, {"role": "assistant", "content": "Many."},
        {"role": "user", "content": "Which are famous?", "task": "action"},
        {"role": "assistant", "content": "Search"},
    ]
    for messages in [[system, sum_question], [sum_question], with_tools, with_tools[:2], with_tools[:5],
                     multi_turn, multi_turn[:4], search, search[:3], search[:5], task, task[:5]]:
        for mode in ["thinking", "chat"]:
            yield messages, mode, True, None
    yield multi_turn, "thinking", False, None
    yield multi_turn[:4], "thinking", True, "max"
    yield multi_turn[:4], "chat", True, "max"
    for name in ["query", "authority", "domain", "read_url"]:
        yield [{**sum_question, "task": name}], "chat", True, None
    yield [*multi_turn[:4], {**multi_turn[4], "task": "title"}], "chat", True, None
    yield [*multi_turn[:4], {**multi_turn[4], "task": "title"}, {"role": "assistant", "content": "Peru"}], \
        "thinking", True, None


WORDS = ["", "a", "今天", " two words ", "line\nline", "<think>", "{braces}", "\"q\"", "\\", "🙂", "e\u0301"]
VALUES = ['"text"', '"it\'s \\"q\\" \\n"', "1", "-0", "1.0", "1e3", "1E-7", "123456789012345678901234567890", "0.1",
          "1e16", "123456789.125", "-2.5e-5", "true", "null", "[]", "[1,  2]", "{}", '{"x":{"y":[null,"z"]}}', '"\\u4eca"',
          '""', "1e22", "9007199254740993.0", "0.0001", "0.00001", "100000.0", "5e-324", "1.7976931348623157e308"]


def draw(rng):
    def text():
        return "".join(rng.choices(WORDS, k=rng.randint(0, 3)))

    def arguments():
        kind = rng.random()
        if kind < 0.1:
            return rng.choice(["", "not json", "{\"open\": ", "{'a': 1}"])
        members = [f'"{rng.choice("abcd")}"{rng.choice(["", " "])}: {rng.choice(VALUES)}'
                   for _ in range(rng.randint(0, 4))]
        return rng.choice(["", " "]) + "{" + rng.choice([",", ", ", " ,\n"]).join(members) + "}"

    messages = []
    if rng.random() < 0.7:
        messages.append({"role": "system", "content": text()})
        if rng.random() < 0.3:
            messages[0]["tools"] = rng.sample(TOOLS, rng.randint(0, 2))
        if rng.random() < 0.1:
            messages[0]["response_format"] = {"type": "json_object", "x": [1.5, None, "é"]}
    ids = []
    for _ in range(rng.randint(1, 8)):
        role = rng.choices(["user", "assistant", "tool", "latest_reminder", "developer", "system"],
                           [6, 5, 4, 1, 1, 0.5])[0]
        message = {"role": role, "content": text()}
        if role == "developer":
            message["content"] += "dev"
        if role == "user" and rng.random() < 0.1:
            message["task"] = rng.choice(["action", "query", "authority", "domain", "read_url"])
        if role == "tool":
            message["tool_call_id"] = rng.choice(ids or ["x"])
            if rng.random() < 0.2:
                message["content"] = [{"type": "text", "text": text()}, {"type": "image"}]
        if role == "assistant":
            if rng.random() < 0.7:
                message["reasoning_content"] = text()
            if rng.random() < 0.5:
                ids = [f"c{rng.randint(0, 5)}" for _ in range(rng.randint(0, 3))]
                message["tool_calls"] = [call(id, rng.choice(["get_weather", "搜索"]), arguments()) for id in ids]
            if rng.random() < 0.1:
                message["wo_eos"] = True
        messages.append(message)
    return messages, rng.choice(["thinking", "thinking", "chat"]), rng.random() < 0.8, rng.choice([None, None, "max", "high"])


def main():
    sys.path.insert(0, sys.argv[1])
    from encoding_dsv4 import encode_messages

    rng = random.Random(20261125)
    drawn = [*documented(), *(draw(rng) for _ in range(int(sys.argv[3]) if len(sys.argv) > 3 else 90))]
    cases = []
    for messages, mode, drop, effort in drawn:
        prompt = encode_messages(copy.deepcopy(messages), thinking_mode=mode, drop_thinking=drop,
                                 reasoning_effort=effort)
        arguments = {"thinking": mode == "thinking", "drop_thinking": drop}
        if effort:
            arguments["reasoning_effort"] = effort
        # As text: the spelling of numbers counts.
        cases.append({"messages": json.dumps(messages, ensure_ascii=False), "arguments": json.dumps(arguments),
                      "ends_with_question": messages[-1]["role"] in ("user", "developer", "tool"), "prompt": prompt})
    pathlib.Path(sys.argv[2]).write_text(
        json.dumps(cases, ensure_ascii=False, separators=(",", ":")).replace("},{\"messages\"", "},\n{\"messages\"") + "\n",
        encoding="utf-8")
    print(f"{len(cases)} prompts")


if __name__ == "__main__":
    main()
