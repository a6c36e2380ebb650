"""The engine's tokenizer and chat template."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from outrider import _core
from outrider.sampling_params import to_json


class Tokenizer:
    """What LLM.get_tokenizer() gives. Usable while its engine is."""

    def __init__(self, engine: _core.Engine) -> None:
        self._engine = engine
        self._info: dict[str, Any] = json.loads(engine.tokenizer_info())
        self.token_text = functools.lru_cache(maxsize=65536)(self._token_text)

    @property
    def vocab_size(self) -> int:
        return int(self._info["vocab_size"])

    def __len__(self) -> int:
        return self.vocab_size

    @property
    def special_tokens(self) -> dict[str, str]:
        """ "bos_token", "eos_token", ... and their texts."""
        return {name: text for name, text in self._info.items() if name.endswith("_token")}

    @property
    def eos_token(self) -> str | None:
        return self.special_tokens.get("eos_token")

    @property
    def bos_token(self) -> str | None:
        return self.special_tokens.get("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        return self._id_of(self.eos_token)

    @property
    def bos_token_id(self) -> int | None:
        return self._id_of(self.bos_token)

    @property
    def chat_template(self) -> str | None:
        return self._info.get("chat_template")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """With what the tokenizer puts around a text (BOS), or without."""
        return self._engine.encode(text, add_special_tokens)

    def decode(self, token_ids: int | Iterable[int], skip_special_tokens: bool = False) -> str:
        """Bytes that are no UTF-8 become U+FFFD."""
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        return self._engine.decode(ids, skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """What a token stands for: possibly a part of a character."""
        return self._engine.token_bytes(token_id)

    def _id_of(self, text: str | None) -> int | None:
        ids = self.encode(text, add_special_tokens=False) if text else []
        return ids[0] if len(ids) == 1 else None

    def _token_text(self, token_id: int) -> str:
        return self._engine.token_bytes(token_id).decode("utf-8", "replace")

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **chat_template_kwargs: Any,
    ) -> Any:
        """The prompt of a conversation: its token ids, or its text."""
        text, ids = self._engine.render_chat(
            to_json(
                chat_fields(
                    messages,
                    tools,
                    add_generation_prompt,
                    continue_final_message,
                    chat_template_kwargs,
                )
            )
        )
        return ids if tokenize else text


def chat_fields(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    add_generation_prompt: bool,
    continue_final_message: bool,
    chat_template_kwargs: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The fields of a body of /v1/chat/completions that make its prompt."""
    body: dict[str, Any] = {
        "messages": list(messages),
        "add_generation_prompt": add_generation_prompt,
        "continue_final_message": continue_final_message,
    }
    if tools:
        body["tools"] = list(tools)
    if chat_template_kwargs:
        body["chat_template_kwargs"] = dict(chat_template_kwargs)
    return body
