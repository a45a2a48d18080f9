"""An interpreter that does nothing but load the modules on its standard input and wait for SIGTERM.

What its end takes is the interpreter's own teardown, which no service can avoid.
"""

import contextlib
import importlib
import json
import os
import signal
import sys
import time


def leave(*_: object) -> None:
    sys.exit(0)


def main() -> None:
    signal.signal(signal.SIGTERM, leave)
    for name in json.load(sys.stdin):
        # Not everything in `sys.modules` can be imported by its name, such as what a package made up.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    os.write(1, (json.dumps({"event": "up", "cpu": time.process_time(), "modules": []}) + "\n").encode())
    signal.pause()


if __name__ == "__main__":
    main()
