"""The command line: one file a command, each reads options, calls the library, prints."""

from headlab.cli import ablate, check, demo, models  # noqa: F401  (each adds its command)
from headlab.cli.app import app as app
