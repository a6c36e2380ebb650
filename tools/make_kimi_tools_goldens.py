#!/usr/bin/env python3
"""Writes kimi_tools.json of tests/text/golden (tools/text_cases.py): tools, and what the code of
Kimi-K2.5's tokenizer declares them as.

Run by hand, with a directory that has the tool_declaration_ts.py of a Kimi-K2.5 checkpoint:
    tools/make_kimi_tools_goldens.py DIRECTORY FOLDER/kimi_tools.json [RANDOM_CASES]
"""

import json
import pathlib
import random
import sys

TEXTS = ["", "A place.", "two\nlines", "a\n\nb", "今天", '"q"']
VALUES = [1, 2.5, 1e30, True, False, None, "x", "今", [1, "a"], {"a": None}, -0.0, 0]
LIMITS = ["maxLength", "minLength", "pattern", "maximum", "minimum", "minItems", "maxItems", "format", "default"]
TYPES = ["string", "number", "integer", "boolean", "null", "object", "object", "array", "array", "any"]
NAMES_OF_ENUMS = ["string", "number", "integer", "boolean", "object", ["string", "null"], ["null"],
                  ["null", "integer"], ["string", "integer"], ["a", "b", "c"]]

WRITTEN = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "The weather at a place.\nIn any unit.",
        "parameters": {"type": "object", "required": ["place"], "properties": {
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
            "place": {"type": "string", "description": "A city", "minLength": 1},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "hours": {"type": "array", "items": {"type": "integer", "description": "0 to 23"}},
            "near": {"anyOf": [{"type": "object", "properties": {"km": {"type": "number"}}}, {"type": "null"}]}}}}},
    {"type": "function", "function": {
        "name": "tree", "parameters": {"type": "object", "$defs": {"leaf": {
            "type": "object", "description": "An end", "properties": {"value": {"type": ["string", "null"]}}}},
            "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#/$defs/leaf"}},
            "additionalProperties": False}}},
    {"type": "function", "function": {"name": "now", "description": ""}},
]


def draw_schema(rng, depth):
    schema = {"description": rng.choice(TEXTS)} if rng.random() < 0.3 else {}
    kind = rng.random()
    if kind < 0.03:
        return rng.choice([True, False, {}, {"description": "x"}, None, [], 3])
    if kind < 0.08:
        return {**schema, "$ref": rng.choice(["#", "#/$defs/D", "#/$defs/E", "#/x"])}
    if kind < 0.16 and depth < 4:
        return {**schema, "anyOf": [draw_schema(rng, depth + 1) for _ in range(rng.randint(0, 3))]}
    if kind < 0.24:
        schema["enum"] = [rng.choice(["a", "b\"", 1, 2.5, True, None]) for _ in range(rng.randint(0, 3))]
        if rng.random() < 0.5:
            schema["type"] = rng.choice(NAMES_OF_ENUMS)
        return schema
    if kind < 0.30:
        return {**schema, "type": rng.choices([*TYPES, "odd"], k=rng.randint(0, 3))}
    schema["type"] = rng.choice(TYPES)
    for name in LIMITS:
        if rng.random() < 0.12:
            schema[name] = rng.choice(VALUES)
    if schema["type"] == "object" and depth < 5:
        if rng.random() < 0.9:
            schema["properties"] = {rng.choice("abcdef"): draw_schema(rng, depth + 1)
                                    for _ in range(rng.randint(0, 4))}
            if rng.random() < 0.6:
                schema["required"] = rng.sample("abcdef", rng.randint(0, 3))
        if rng.random() < 0.3:
            schema["additionalProperties"] = (rng.choice([True, False, None, 7]) if rng.random() < 0.5
                                              else draw_schema(rng, depth + 1))
        if rng.random() < 0.2:
            schema["$defs"] = {name: draw_schema(rng, depth + 1) for name in rng.sample("DE", rng.randint(0, 2))}
    if schema["type"] == "array" and depth < 5 and rng.random() < 0.8:
        schema["items"] = draw_schema(rng, depth + 1)
    return schema


def draw_tool(rng):
    function = {"name": rng.choice(["f", "搜"])}
    if rng.random() < 0.6:
        function["description"] = rng.choice([*TEXTS, None])
    if rng.random() < 0.95:
        parameters = draw_schema(rng, 0)
        if rng.random() < 0.8:
            parameters = {"type": "object", "properties": {"p": parameters, "o": draw_schema(rng, 1)}}
            parameters["$defs"] = {"D": draw_schema(rng, 2), "E": {"type": "object"}}
        function["parameters"] = parameters
    return rng.choice([{"type": "function", "function": function}] * 9 +
                      [{"type": "_plugin", "function": function}, {"type": "function"}])


def sorted_members(value):
    if isinstance(value, dict):
        return {name: sorted_members(member) for name, member in sorted(value.items())}
    return [sorted_members(element) for element in value] if isinstance(value, list) else value


def main():
    sys.path.insert(0, sys.argv[1])
    from tool_declaration_ts import encode_tools_to_typescript_style

    rng = random.Random(20261125)
    cases = []
    random_cases = int(sys.argv[3]) if len(sys.argv) > 3 else 60
    for tools in [[tool] for tool in WRITTEN] + [WRITTEN] + [[draw_tool(rng)] for _ in range(random_cases)]:
        tools = json.loads(json.dumps(tools))
        try:
            text = encode_tools_to_typescript_style(sorted_members(tools))
        except Exception:
            text = None  # its template then shows JSON
        cases.append({"tools": json.dumps(tools, ensure_ascii=False), "declarations": text})
    pathlib.Path(sys.argv[2]).write_text(
        "[" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "]\n", encoding="utf-8")
    print(f"{len(cases)} cases, {sum(case['declarations'] is None for case in cases)} without declarations")


if __name__ == "__main__":
    main()
