"""The command `outrider`: the same program as that of a plain build, in this interpreter."""

from __future__ import annotations

import signal
import sys

from outrider import _core


def main() -> int:
    # The program handles its signals; Python's handler of Ctrl-C would only note them.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _core.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
