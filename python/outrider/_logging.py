"""The library's log as records of Python's logger "outrider"."""

from __future__ import annotations

import atexit
import logging
import os
import threading

from outrider import _core

logger = logging.getLogger("outrider")

_stopping = threading.Event()
_draining = threading.Lock()


def drain(seconds: float = 0.0) -> None:
    """Hands on what the library has logged; waits for a line, at most `seconds`."""
    _core.set_log_level(logger.getEffectiveLevel())
    lines = _core.take_log(seconds)
    for level, file, line, message in lines:
        if logger.isEnabledFor(level):
            record = logger.makeRecord(
                logger.name, level, file or "outrider", line, "%s", (message,), None
            )
            logger.handle(record)


def _run() -> None:
    while not _stopping.is_set():
        drain(0.5)


def _stop() -> None:
    # A thread that waits in the library while the interpreter ends would be torn down there.
    _stopping.set()
    _core.wake_log_reader()
    if _thread is not None:
        _thread.join()
    drain()


def _after_fork() -> None:
    # The thread stayed with the parent.
    global _thread
    _thread = None


_thread: threading.Thread | None = None


def start() -> None:
    """Starts the thread that hands lines on, once a process."""
    global _thread
    if _thread is None:
        _thread = threading.Thread(target=_run, name="outrider log", daemon=True)
        _thread.start()


_core.set_log_level(logger.getEffectiveLevel())
os.register_at_fork(after_in_child=_after_fork)
atexit.register(_stop)
