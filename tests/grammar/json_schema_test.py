#!/usr/bin/env python3
"""Random JSON schemas over every keyword of draft 2020-12, and answers drawn through their grammars.

An answer that breaks its schema, as the jsonschema package sees it, is a failure; so is one that is
no JSON. A schema may be refused. Keywords that documentation says are enforced must be among those
that were not refused, or the test would show nothing.

    json_schema_test.py --answers PROGRAM [--schemas N] [--seed N]
"""
import argparse
import collections
import json
import random
import subprocess
import sys

import jsonschema

NAMES = ["a", "b", "title", "default", "x y", "name"]
# The dialects of regular expressions agree on these.
PATTERNS = ["^a+$", "^[a-c]{2,4}$", r"^\d{3}-\d$", r"^\S+$", "^.{1,3}$", "b", "^(x|yz)*$", "a|^b$",
            r"^[^\s@]+@[a-z]$", "^.{0,200}$", r"\w+", r"(?=a)b", r"^é.\.$", r"^\u0041$", r"\\", "a^b"]
FORMATS = ["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri",
           "uri-reference", "uri-template", "uuid", "json-pointer", "relative-json-pointer",
           "regex", "int32"]
TYPES = ["object", "array", "string", "number", "integer", "boolean", "null"]
NUMBERS = [0, 1, 2, 3, 7, 10, -1, -5, 100, 0.5, 2.5, -0.25, 1e3, 12345, 5.0, 0.1, 1e10, -1e12]
ANNOTATIONS = {"title": "T", "description": "D", "default": 1, "examples": [1], "deprecated": True,
               "readOnly": True, "writeOnly": True, "$comment": "C", "contentEncoding": "base64",
               "contentMediaType": "text/plain", "contentSchema": {"type": "string"},
               "$anchor": "here", "x-unknown": {"not": {}}}
ENFORCED = ["type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "properties", "required",
            "additionalProperties", "patternProperties", "propertyNames", "minProperties",
            "maxProperties", "items", "prefixItems", "minItems", "maxItems", "minLength",
            "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum",
            "exclusiveMaximum", "multipleOf", "unevaluatedProperties", "unevaluatedItems"]


class Schemas:
    """Draws schemas."""

    def __init__(self, rng):
        self.rng = rng

    def value(self, depth=0):
        rng = self.rng
        kind = rng.randrange(8 if depth < 2 else 6)
        if kind == 6:
            return [self.value(depth + 1) for _ in range(rng.randrange(3))]
        if kind == 7:
            return {name: self.value(depth + 1) for name in rng.sample(NAMES, rng.randrange(3))}
        return [None, True, rng.choice(NUMBERS), rng.choice(["", "a", "b/c\"\\\n", "é"]),
                rng.choice(NAMES), rng.randrange(5)][kind]

    def pattern(self, depth=0):
        """A regular expression that matches whole strings: nested groups, choices, repetitions."""
        rng = self.rng
        kind = rng.randrange(8 if depth < 3 else 3)
        if kind < 3:
            return rng.choice(["a", "b", ":", r"\.", "[a-c]", "[^a-y]", r"\d", "é"])
        if kind < 5:
            return self.pattern(depth + 1) + self.pattern(depth + 1)
        inner = "|".join(self.pattern(depth + 1) for _ in range(rng.choice([1, 1, 2])))
        return f"({inner})" + rng.choice(["", "?", "?", "*", "+", "{0,2}", "{2}", "{1,3}", "{2,}"])

    def keyword(self, name, depth):
        rng = self.rng
        sub = lambda: self.schema(depth + 1)
        if name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            return rng.choice(NUMBERS)
        if name == "multipleOf":
            return rng.choice([1, 2, 3, 7, 0.5, 2.0, 2000])
        if name.startswith(("min", "max")):
            return rng.choice([0, 1, 1, 2, 2, 3, 5.0])
        if name == "pattern":
            return rng.choice(PATTERNS) if rng.random() < 0.5 else f"^({self.pattern()})$"
        if name == "format":
            return rng.choice(FORMATS)
        if name == "uniqueItems":
            return rng.random() < 0.7
        if name in ("properties", "dependentSchemas"):
            return {key: sub() for key in rng.sample(NAMES, rng.randrange(4))}
        if name == "patternProperties":
            return {rng.choice(PATTERNS): sub() for _ in range(rng.choice([1, 1, 1, 2]))}
        if name == "required":
            return rng.sample(NAMES, rng.choice([0, 1, 1, 2]))
        if name == "dependentRequired":
            return {rng.choice(NAMES): rng.sample(NAMES, 1)}
        if name in ("additionalProperties", "items", "unevaluatedProperties", "unevaluatedItems"):
            return rng.choice([True, False, False, sub(), sub()])
        if name == "propertyNames":
            return rng.choice([{"pattern": "^[a-c]{1,9}$"}, {"maxLength": 3}, {"enum": NAMES}, sub()])
        if name in ("prefixItems", "anyOf", "oneOf", "allOf"):
            return [sub() for _ in range(rng.choice([1, 2, 2, 3]))]
        if name == "enum":
            return [self.value() for _ in range(rng.randrange(1, 5))]
        if name == "const":
            return self.value()
        if name == "type":
            return rng.choice(TYPES) if rng.random() < 0.7 else rng.sample(TYPES, 2)
        if name == "$ref":
            return rng.choice(["#/$defs/one", "#/$defs/two", "#/$defs/one", "#", "#/$defs/a~1b"])
        return sub()

    GROUPS = {
        "object": ["properties", "properties", "required", "additionalProperties",
                   "patternProperties", "propertyNames", "minProperties", "maxProperties",
                   "dependentRequired", "dependentSchemas", "unevaluatedProperties"],
        "array": ["items", "items", "prefixItems", "minItems", "maxItems", "uniqueItems",
                  "contains", "minContains", "maxContains", "unevaluatedItems"],
        "string": ["minLength", "maxLength", "pattern", "format"],
        "number": ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"],
        "any": ["enum", "const", "anyOf", "oneOf", "allOf", "$ref", "not", "if", "then", "else",
                "type"],
    }

    def schema(self, depth=0):
        rng = self.rng
        if rng.random() < 0.05:
            return rng.random() < 0.7
        if depth > 2 or rng.random() < 0.15:
            return {"type": rng.choice(TYPES)}
        schema = {}
        group = rng.choice(["object", "object", "array", "string", "number", "any", "any"])
        if group != "any" and rng.random() < 0.85:
            schema["type"] = rng.choice(["number", "integer"]) if group == "number" else group
        for _ in range(rng.choice([1, 1, 2, 2, 3, 4])):
            if rng.random() < 0.1:
                group = rng.choice(list(self.GROUPS))
            name = rng.choice(self.GROUPS[group])
            schema[name] = self.keyword(name, depth)
        if rng.random() < 0.2:
            name = rng.choice(list(ANNOTATIONS))
            schema[name] = ANNOTATIONS[name]
        items = list(schema.items())
        rng.shuffle(items)
        return dict(items)

    def root(self):
        schema = self.schema()
        if isinstance(schema, bool):
            return schema
        return schema | {"$defs": {"one": self.schema(1), "two": self.schema(1),
                                   "a/b": {"type": "boolean"}}}


def keywords(schema, found):
    """Adds the names in keyword positions, roughly: members named as properties count too."""
    if isinstance(schema, dict):
        for name, value in schema.items():
            if name != "$defs":
                found.add(name)
                keywords(value, found)
    elif isinstance(schema, list):
        for value in schema:
            keywords(value, found)
    return found


def without_formats_beside_patterns(schema):
    """Where there is a pattern, the format is an annotation."""
    if isinstance(schema, dict):
        drop = isinstance(schema.get("pattern"), str)
        return {name: without_formats_beside_patterns(value) for name, value in schema.items()
                if not (drop and name == "format")}
    if isinstance(schema, list):
        return [without_formats_beside_patterns(value) for value in schema]
    return schema


def check(schema, answer, checker):
    """What is wrong with an answer, or nothing."""
    try:
        value = json.loads(answer)
    except ValueError as error:
        return f"is no JSON: {error}"
    try:
        error = jsonschema.exceptions.best_match(checker(schema).iter_errors(value))
    except (RecursionError, OverflowError):  # infinite numbers, for the package
        return None
    return error and error.message


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--answers", required=True)
    parser.add_argument("--schemas", type=int, default=1500)
    parser.add_argument("--per-schema", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    draw = Schemas(random.Random(arguments.seed))
    schemas = []
    while len(schemas) < arguments.schemas:
        schema = draw.root()
        try:
            jsonschema.Draft202012Validator.check_schema(schema)
        except jsonschema.SchemaError:
            continue
        schemas.append(schema)
    process = subprocess.run([arguments.answers, str(arguments.per_schema), str(arguments.seed)],
                             input="".join(json.dumps(schema) + "\n" for schema in schemas),
                             capture_output=True, text=True, check=True)
    results = [json.loads(line) for line in process.stdout.splitlines()]
    if len(results) != len(schemas):
        sys.exit(f"{len(results)} results of {len(schemas)} schemas: {process.stderr[-500:]}")

    # Formats are annotations for the package, but not for us.
    formats = jsonschema.FormatChecker(["date", "email", "ipv4", "ipv6", "uuid"])
    checker = lambda schema: jsonschema.Draft202012Validator(
        without_formats_beside_patterns(schema), format_checker=formats)
    accepted, answered = collections.Counter(), collections.Counter()
    num_answers = num_failed = 0
    for schema, result in zip(schemas, results):
        if "error" in result:
            if "\n" in result["error"] or not result["error"].startswith(("#", '"$ref"s go')):
                num_failed += 1
                print("Refused with a message that names no place:", result["error"])
            continue
        for name in keywords(schema, set()):
            accepted[name] += 1
            answered[name] += bool(result["answers"])
        for answer in result["answers"]:
            num_answers += 1
            wrong = check(schema, answer, checker)
            if wrong:
                num_failed += 1
                if num_failed <= 20:
                    print(f"SCHEMA {json.dumps(schema)}\nANSWER {answer}\nWRONG  {wrong}\n")
    num_accepted = sum("error" not in result for result in results)
    print(f"{len(schemas)} schemas, {num_accepted} accepted, {num_answers} answers, "
          f"{num_failed} failed")
    missing = [name for name in ENFORCED if not answered[name]]
    if missing:
        print("No schema with these was accepted and answered:", ", ".join(missing))
    if num_answers < arguments.schemas / 4:
        print("Too few answers")
    sys.exit(bool(num_failed or missing or num_answers < arguments.schemas / 4))


if __name__ == "__main__":
    main()
