"""A process that runs math-verify on one pair a line. Run as a program, never imported.

In: {"gold", "prediction", "seconds"} as JSON. Out: "ready", then {"right", "parsed"} for each.
It imports nothing of Headlab, so that it starts fast; what never ends is ended from outside.
"""

import contextlib
import faulthandler
import json
import logging
import os
import sys

_MEMORY = 4 * 2**30  # bytes of address space; a tower of powers asks for more than there is


def _main() -> None:
    with os.fdopen(os.dup(1), "w") as replies, open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)  # what a library prints is no reply
        with contextlib.suppress(ImportError, ValueError, OSError):
            import resource

            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        logging.disable(logging.CRITICAL)
        from math_verify import parse, verify

        print("ready", file=replies, flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            # Should the parent be gone, nobody else ends what never ends.
            faulthandler.dump_traceback_later(asked["seconds"] + 10, exit=True, file=nowhere)
            gold = parse(asked["gold"], parsing_timeout=None)
            found = parse(asked["prediction"], parsing_timeout=None)
            right = bool(verify(gold, found, timeout_seconds=None))
            faulthandler.cancel_dump_traceback_later()
            said = {"right": right, "parsed": bool(found)}
            print(json.dumps(said), file=replies, flush=True)


if __name__ == "__main__":
    _main()
