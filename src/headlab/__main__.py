"""The way in: `headlab` and `python -m headlab`."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from headlab.cli import app

        for stream in (sys.stdout, sys.stderr):
            # A terminal that cannot show a token should show its code, not a failure.
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        app()
    except KeyboardInterrupt:  # before the commands can say it themselves
        sys.exit(130)


if __name__ == "__main__":
    main()
