"""Chat templates for the C++ side (core/host_interpreter.cc), in this process's interpreter.

The sandbox and the limits on what one operation may produce are those of the program's own
interpreter (_chat_template.py). The time is limited here; the memory is not, as it is this process's
own.
"""

from __future__ import annotations

import sys
import time
from types import FrameType
from typing import Any

_LINES_PER_CHECK = 16


class _OutOfTime(BaseException):
    """Not an Exception, so that no handler on the way takes it for a template's own."""


def run(
    source: str, variables: dict[str, Any] | None, max_characters: int, seconds: float
) -> tuple[str, str]:
    """What came of a rendering, and its text: see `render` in _chat_template.py; or "time"."""
    from outrider import _chat_template  # jinja2 is imported when the first template is used

    deadline = time.thread_time() + seconds
    lines = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        lines += 1
        if lines % _LINES_PER_CHECK == 0 and time.thread_time() > deadline:
            raise _OutOfTime
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        outcome: tuple[str, str] = _chat_template.render(source, variables, max_characters)
        return outcome
    except _OutOfTime:
        return "time", ""
    finally:
        sys.settrace(before)
