"""headlab check"""

from __future__ import annotations

from typing import Any

from rich.markup import escape

from headlab.cli.app import app, err
from headlab.cli.options import AsJson, ModelName, Quiet, load_model, loads_a_model, status
from headlab.cli.printing import print_check, print_json, print_model


@app.command(epilog="Example: headlab check smollm2")
@loads_a_model
def check(
    model: ModelName,
    loading: dict[str, Any],
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Prove on the loaded model that a gate on a head means what it says."""
    loaded = load_model(model, loading, quiet or as_json, check=False)
    with status("checking", quiet or as_json):
        from headlab.proofs import check as run_check

        result = run_check(loaded)
    if as_json:
        print_json({**loaded.describe(), **result.as_dict()})
    elif quiet:
        print("passed" if result.passed else "failed")
    else:
        print_model(loaded)
        for note in loaded.notes:
            err.print(f"[yellow]note:[/] {escape(note)}")
        print_check(result)
    result.require()
