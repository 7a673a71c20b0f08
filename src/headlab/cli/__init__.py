"""The command line: one file a command, each reads options, calls the library, prints."""

from headlab.cli import (  # noqa: F401  (each adds its command)
    ablate,
    activations,
    attention,
    check,
    comet,
    convert,
    curve,
    demo,
    fillers,
    generate,
    grade,
    models,
    rank,
    run,
    run_fillers,
    run_fits,
    run_masking,
    runs,
    sparsify,
    tasks,
)
from headlab.cli.app import app as app
