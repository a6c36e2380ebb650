"""Lets a thread of a child process stand still, as one does that hangs.

Python standard library only, on Linux.
"""
import ctypes
import os
import signal
import time


class FrozenThread:
    """A thread of a child process that stands still while the context lasts: it is traced and told to
    stop. The thread that froze it is to end it; on leaving the process is killed, unless it has ended.
    Throws PermissionError where the system lets no process stop a thread of its child."""

    SEIZE, INTERRUPT, WALL = 0x4206, 0x4207, 0x40000000

    def __init__(self, thread):
        self.thread = thread
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        libc.ptrace.restype = ctypes.c_long
        for request in (self.SEIZE, self.INTERRUPT):
            if libc.ptrace(request, thread, None, None) != 0:
                raise PermissionError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        os.waitpid(thread, self.WALL)

    def take_end(self):
        """True: it has ended with its process, which nobody can wait for before."""
        try:
            return os.waitpid(self.thread, self.WALL | os.WNOHANG)[0] == self.thread
        except ChildProcessError:
            return True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        while not self.take_end():
            os.kill(self.thread, signal.SIGKILL)
            time.sleep(0.02)


def thread_named(pid, name):
    """The thread of that name of a process; throws LookupError where there is none."""
    tasks = f"/proc/{pid}/task"
    for task in os.listdir(tasks):
        with open(os.path.join(tasks, task, "comm"), encoding="ascii") as file:
            if file.read().strip() == name:
                return int(task)
    raise LookupError("no thread is named " + name)
