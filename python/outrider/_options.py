"""Keyword arguments as the option table takes them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from outrider import _core


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return json.dumps(value)
    raise TypeError(
        f"{name} must be a str, a number, a bool, a path, a list of these or a dict, "
        f"not {type(value).__name__}"
    )


def option_texts(
    function: str, options: Mapping[str, Any], *, with_server: bool
) -> list[tuple[str, list[str]]]:
    """The options that are not None, as texts. TypeError for one that nobody knows."""
    known = set(_core.keyword_names(with_server))
    texts: list[tuple[str, list[str]]] = []
    for name, value in options.items():
        if name not in known:
            hint = _core.suggest_keyword(name, with_server)
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")
        if value is None:
            continue
        if isinstance(value, (list, tuple)):
            texts.append((name, [_text(name, element) for element in value]))
        else:
            texts.append((name, [_text(name, value)]))
    return texts
