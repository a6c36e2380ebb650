"""Renders chat templates the way transformers does, for the C++ side (template_interpreter.h).

Only `render` is called from outside. Limits on time and memory are kept by the caller, below Python;
what is limited here is what a single operation may produce.
"""

import datetime
import functools
import json

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

MAX_INTEGER_BITS = 4096
MAX_MESSAGE = 500


class GenerationTag(jinja2.ext.Extension):
    """{% generation %} marks the assistant's tokens for training; rendering takes no notice of it."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("render_body")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def render_body(self, caller):
        return caller()


class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    # Arithmetic whose cost is not bounded by the size of its operands goes through call_binop.
    intercepted_binops = frozenset(["*", "**", "%"])

    def unsafe_undefined(self, obj, attribute):
        raise jinja2.exceptions.SecurityError(
            f"access to attribute {attribute!r} of {type(obj).__name__!r} is not allowed"
        )

    def call_binop(self, context, operator, left, right):
        if isinstance(left, int) and isinstance(right, int):
            bits = 0
            if operator == "*":
                bits = left.bit_length() + right.bit_length()
            elif operator == "**":
                bits = left.bit_length() * max(right, 0)
            if bits > MAX_INTEGER_BITS:
                raise OverflowError(f"integers are limited to {MAX_INTEGER_BITS} bits")
        return super().call_binop(context, operator, left, right)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def strftime_now(format):
    return datetime.datetime.now().strftime(format)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    # Jinja's own tojson escapes <, >, & and ' for HTML.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def make_environment():
    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    # Pages of Latin, and regular expressions with quadratic time: of no use in a prompt.
    del environment.globals["lipsum"]
    for name in ("urlize", "striptags"):
        del environment.filters[name]
    return environment


ENVIRONMENT = make_environment()


@functools.lru_cache(maxsize=16)
def compile_template(source):
    return ENVIRONMENT.from_string(source)


class BadRequest(Exception):
    """The request, not the template, is at fault."""


def cut_after_final_message(text, messages):
    """`text` up to the end of the last message's content, which the model is to continue."""
    if not messages:
        raise BadRequest("continue_final_message needs at least one message")
    content = messages[-1].get("content")
    if isinstance(content, list):
        texts = [part["text"] for part in content if isinstance(part, dict) and "text" in part]
        content = texts[-1] if texts else None
    if not isinstance(content, str):
        raise BadRequest("continue_final_message needs a last message with text content")
    start = text.rfind(content.strip())
    if start < 0:
        raise BadRequest(
            "continue_final_message: the template does not show the last message as it was given"
        )
    kept = content.lstrip()
    if text[start : start + len(kept)] != kept:  # the template strips contents
        kept = content.strip()
    return text[: start + len(kept)]


class Arguments(dict):
    """A tool call's arguments. Some templates want an object, others put JSON text into the prompt:
    for those the text stays as it was."""

    def __init__(self, value, text):
        super().__init__(value)
        self._json_text = text

    def __str__(self):
        return self._json_text

    def __add__(self, other):
        return self._json_text + other

    def __radd__(self, other):
        return other + self._json_text


def open_arguments(message):
    """Makes the arguments of a message's tool calls objects. Text that is none, as of a call that
    was cut off, becomes the one member "arguments" of one: so DeepSeek's own code has it."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        text = function.get("arguments") if isinstance(function, dict) else None
        if not isinstance(text, str):
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            value = {"arguments": text}
        function["arguments"] = Arguments(value, text)


class Function(dict):
    """A tool's function. A template that asks for a member that the client left out gets what that
    means: no parameters, nothing to say. Printed whole, it is as the client gave it."""

    DEFAULTS = {"description": "", "parameters": {"type": "object", "properties": {}}}

    def __missing__(self, name):
        return self.DEFAULTS[name]


def complete_functions(tools):
    for tool in tools:
        if isinstance(tool, dict) and isinstance(tool.get("function"), dict):
            members = {name: value for name, value in tool["function"].items() if value is not None or name not in ("description", "parameters")}
            tool["function"] = Function(members)


def parse(name, text, kind):
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadRequest(f"{name} is not valid JSON: {error}") from None
    if not isinstance(value, kind):
        raise BadRequest(f"{name} must be a JSON {'array' if kind is list else 'object'}")
    return value


def render_unchecked(source, variables, max_characters):
    special_tokens = parse("special_tokens", variables["special_tokens"], dict)
    messages = parse("messages", variables["messages"], list)
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise BadRequest(f"messages[{index}] must be an object")
        open_arguments(message)
    tools = parse("tools", variables["tools"], list) if variables["tools"] else None
    complete_functions(tools or [])
    extra = parse("chat_template_kwargs", variables["extra"], dict) if variables["extra"] else {}
    given = {
        "messages": messages,
        "tools": tools,
        "documents": None,
        "add_generation_prompt": variables["add_generation_prompt"],
    }
    if variables["kimi_tools"]:
        given.update(kimi_variables(source, tools))  # of kimi_tools.py, which stands before this
    for name in extra:
        if name in ("messages", "tools", "add_generation_prompt"):
            raise BadRequest(f"chat_template_kwargs must not set {name}, which has its own field")
    template = compile_template(source)
    context = template.new_context({**special_tokens, **given, **extra})
    pieces = []
    size = 0
    for piece in template.root_render_func(context):
        size += len(piece)
        if size > max_characters:
            raise OverflowError(f"the prompt is longer than {max_characters} characters")
        pieces.append(piece)
    text = "".join(pieces)
    if variables["continue_final_message"]:
        text = cut_after_final_message(text, messages)
    # JSON can spell half a surrogate pair, UTF-8 cannot.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def template_line(error):
    """The innermost line of a template in the error's traceback, or None."""
    line = None
    trace = error.__traceback__
    while trace is not None:
        template = trace.tb_frame.f_globals.get("__jinja_template__")
        if template is not None:
            line = template.get_corresponding_lineno(trace.tb_lineno)
        trace = trace.tb_next
    return line


def describe(error):
    """One line about an error in a template, without a traceback."""
    if isinstance(error, jinja2.exceptions.TemplateSyntaxError):
        return f"line {error.lineno}: {error.message}"
    if isinstance(error, RecursionError):
        message = "nested or recursing too deeply"
    elif isinstance(error, (jinja2.exceptions.TemplateError, OverflowError)):
        message = str(error)
    else:
        message = f"{type(error).__name__}: {error}"
    line = template_line(error)
    return f"line {line}: {message}" if line else message


def one_line(message):
    line = " ".join(message.split())
    return line if len(line) <= MAX_MESSAGE else line[:MAX_MESSAGE] + "..."


def render(source, variables, max_characters):
    """(outcome, text): "ok" with the prompt; "memory"; "request" or "template" with what is wrong.

    Without variables the template is compiled only, and the text is empty."""
    try:
        if variables is None:
            compile_template(source)
            return "ok", ""
        return "ok", render_unchecked(source, variables, max_characters)
    except BadRequest as error:
        return "request", one_line(str(error))
    except MemoryError:
        return "memory", ""
    except Exception as error:
        return "template", one_line(describe(error))
