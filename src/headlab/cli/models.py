"""headlab models"""

from __future__ import annotations

from dataclasses import asdict

from headlab.aliases import known_models
from headlab.cli.app import app, out
from headlab.cli.options import AsJson, Quiet
from headlab.cli.printing import new_table, print_json, print_table


@app.command(epilog="Example: headlab models --json")
def models(as_json: AsJson = False, quiet: Quiet = False) -> None:
    """List the aliases and what is loadable here without a download."""
    known = known_models()
    if as_json:
        print_json([asdict(model) for model in known])
        return
    if quiet:
        for model in known:
            if model.here:
                print(model.name)
        return
    table = new_table("model", "hub id", "where")
    for model in known:
        table.add_row(model.name, model.hub_id, model.where)
    print_table(table)
    out.print(
        "Any other hub id, a folder with config.json and safetensors, or a .gguf file: by name."
    )
