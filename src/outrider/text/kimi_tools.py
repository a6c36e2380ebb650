"""Tools as the Python code of Kimi's tokenizers hands them to a chat template: with the members of
objects sorted by name, and for templates that want it (K2.5 and later) as TypeScript.

Part of the program of chat_template.py, which calls `kimi_variables`.
"""

import json

KIMI_INDENT = "  "
KIMI_NAMES_OF_TYPES = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
    "object": "{}",
    "array": "Array<any>",
}
KIMI_LIMITS = {
    "string": ("maxLength", "minLength", "pattern"),
    "number": ("maximum", "minimum"),
    "integer": ("maximum", "minimum"),
}
KIMI_VALUES_OF_ENUMS = {
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
}


class UndeclarableSchema(Exception):
    """A schema that has no spelling as a type."""


def kimi_sorted(value):
    if isinstance(value, dict):
        return {name: kimi_sorted(member) for name, member in sorted(value.items())}
    if isinstance(value, list):
        return [kimi_sorted(element) for element in value]
    return value


def kimi_comment(text, indent):
    return "\n".join(f"{indent}// {line}" if line else "" for line in text.split("\n"))


class KimiType:
    """A schema that was read: what is said about it, and its type in TypeScript by indentation."""

    def __init__(self, schema, write, limits=()):
        self.description = schema.get("description", "")
        self.limits = sorted((name, schema[name]) for name in limits if name in schema)
        self.write = write

    def comments(self, indent):
        lines = ""
        if self.description:
            lines += kimi_comment(self.description, indent) + "\n"
        if self.limits:
            lines += indent + "// " + ", ".join(f"{name}: {value}" for name, value in self.limits) + "\n"
        return lines


class KimiFunction:
    """One function: reads the schema of its parameters, and declares it."""

    def __init__(self, function):
        self.function = function
        self.definitions = {}
        self.refers_to_itself = False

    def declare(self):
        # The root is read before anything is written: a reference to it makes it an interface.
        fields = []
        root = self.read_object(self.function.get("parameters") or {}, fields)
        refers_to_itself = self.refers_to_itself
        interfaces = []
        if refers_to_itself:
            lines = ",\n".join(self.field(*field, KIMI_INDENT) for field in fields)
            body = f"\n{lines}\n" if lines else ""
            interfaces.append(f"interface parameters {{{body}}}")
        for name, schema in list(self.definitions.items()):
            text = self.read(schema).write("")
            description = schema.get("description", "")
            comment = kimi_comment(description, "") + "\n" if description else ""
            interfaces.append(f"{comment}interface {name} {text}")
        parameters = "parameters" if refers_to_itself else root.write("")
        description = self.function.get("description")
        parts = [
            "\n".join(interfaces),
            kimi_comment(description, "") if description else "",
            f"type {self.function.get('name', 'function')} = (_: {parameters}) => any;",
        ]
        return "\n".join(part for part in parts if part)

    def read(self, schema):
        if isinstance(schema, bool):
            return KimiType({}, lambda indent: "any" if schema else "null")
        if not isinstance(schema, dict):
            raise UndeclarableSchema
        if "$ref" in schema:
            return self.read_reference(schema)
        if "anyOf" in schema:
            choices = [self.read(choice) for choice in schema["anyOf"]]
            return KimiType(schema, lambda indent: " | ".join(choice.write(indent) for choice in choices))
        if "enum" in schema:
            return self.read_enum(schema)
        if "type" not in schema:
            if schema:
                raise UndeclarableSchema
            return KimiType({}, lambda indent: "any")
        kind = schema["type"]
        if isinstance(kind, list):
            names = " | ".join(KIMI_NAMES_OF_TYPES[one] for one in kind)
            return KimiType(schema, lambda indent: names)
        if kind == "object":
            return self.read_object(schema, [])
        if kind == "array":
            return self.read_array(schema)
        return KimiType(schema, lambda indent: "number" if kind == "integer" else kind, KIMI_LIMITS.get(kind, ()))

    def read_reference(self, schema):
        target = schema["$ref"]
        if target == "#":
            self.refers_to_itself = True
            return KimiType(schema, lambda indent: "parameters")
        name = target.split("/")[-1]
        if not target.startswith("#/$defs/") or not isinstance(self.definitions.get(name), dict):
            raise UndeclarableSchema
        return KimiType(schema, lambda indent: name)

    def read_enum(self, schema):
        values = schema["enum"]
        if "type" in schema:
            kind = schema["type"]
            if isinstance(kind, list):
                if len(kind) > 2 or (len(kind) == 2 and "null" not in kind):
                    raise UndeclarableSchema
                kind = next((one for one in kind if one != "null"), kind[-1])
            expected = KIMI_VALUES_OF_ENUMS.get(kind, object)
            if any(value is not None and not isinstance(value, expected) for value in values):
                raise UndeclarableSchema
        text = " | ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in values)
        return KimiType(schema, lambda indent: text)

    def read_array(self, schema):
        item = self.read(schema["items"]) if schema.get("items") else self.read(True)

        def write(indent):
            inner = indent + KIMI_INDENT
            comments = item.comments(inner)
            if not comments:
                return f"Array<{item.write(indent)}>"
            return f"Array<\n{comments}{inner}{item.write(inner)}\n{indent}>"

        return KimiType(schema, write, ("minItems", "maxItems"))

    def read_object(self, schema, fields):
        """Appends the object's (name, type, is_required, default) to `fields`."""
        self.definitions.update(schema.get("$defs") or {})
        others = schema.get("additionalProperties")
        if isinstance(others, dict):
            others = self.read(others)
        required = schema.get("required", []) if "properties" in schema else []
        for name, field in schema.get("properties", {}).items():
            default = field.get("default") if isinstance(field, dict) else None
            fields.append((name, self.read(field), name in required, default))

        def write(indent):
            inner = indent + KIMI_INDENT
            in_order = sorted(fields, key=lambda field: (not field[2], field[0]))
            lines = [self.field(*field, inner) for field in in_order]
            if others is not None:
                if isinstance(others, bool):
                    text = "any" if others else "never"
                elif isinstance(others, KimiType):
                    text = others.write(inner)
                else:
                    raise UndeclarableSchema
                lines.append(f"{inner}[k: string]: {text}")
            return "{\n" + ",\n".join(lines) + f"\n{indent}}}" if lines else "{}"

        return KimiType(schema, write)

    def field(self, name, type, is_required, default, indent):
        comments = type.comments(indent)
        if default is not None:
            is_number = isinstance(default, (int, float))  # or true, or false
            text = repr(default) if is_number else json.dumps(default, ensure_ascii=False)
            comments += f"{indent}// Default: {text}\n"
        return f"{comments}{indent}{name}{'' if is_required else '?'}: {type.write(indent)}"


def kimi_declarations(tools):
    functions = []
    for tool in tools:
        if tool.get("type") == "function" and tool.get("function", {}):
            functions.append(KimiFunction(tool["function"]).declare())
    if not functions:
        return ""
    return "# Tools\n\n## functions\nnamespace functions {\n" + "\n".join(functions) + "\n}\n"


def kimi_variables(source, tools):
    """Variables for a template with the text `source`, in the place of `tools` or beside it."""
    tools = kimi_sorted(tools)
    if "tools_ts_str" not in source:
        return {"tools": tools}
    variables = {"tools": tools, "thinking": True, "preserve_thinking": False}
    if tools:
        try:
            variables["tools_ts_str"] = kimi_declarations(tools)
        except MemoryError:
            raise
        except Exception:
            pass  # the template then shows the tools as JSON, as with Kimi's own code
    return variables
