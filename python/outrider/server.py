"""The HTTP API, served from this process: for tests and notebooks."""

from __future__ import annotations

import atexit
import os
import weakref
from types import TracebackType
from typing import Any

from outrider import _core, _logging
from outrider._options import option_texts

_running: weakref.WeakSet[RunningServer] = weakref.WeakSet()


class RunningServer:
    """A server that takes requests until it is left or closed."""

    def __init__(self, server: _core.Server, host: str, scheme: str) -> None:
        self._server: _core.Server | None = server
        self._owner = os.getpid()
        self.port = server.port
        self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"
        _running.add(self)

    @property
    def base_url(self) -> str:
        """What clients of OpenAI's API take."""
        return f"{self.url}/v1"

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Refuses what is new, lets what runs finish for shutdown_timeout, and ends."""
        if self._server is not None and os.getpid() == self._owner:
            self._server.stop()
            self._server = None
            _logging.drain()


def serve(
    model: str | os.PathLike[str], *, host: str = "127.0.0.1", port: int = 0, **options: Any
) -> RunningServer:
    """Serves a model's HTTP API from threads of this process, until the result is closed.

        with outrider.serve("models/tiny-v3-mtp3") as server:
            client = openai.OpenAI(base_url=server.base_url, api_key="-")

    Keyword arguments are the options of `outrider serve`; port 0 is any free one.
    """
    texts = option_texts(
        "serve", {"model": model, "host": host, "port": port, **options}, with_server=True
    )
    try:
        server = _core.Server(texts, lambda done, total: None)
    finally:
        _logging.drain()
    return RunningServer(server, host, "https" if options.get("ssl_certfile") else "http")


def _close_all() -> None:
    for server in list(_running):
        server.close()


atexit.register(_close_all)
