"""The roles study: learned gates sort heads into facilitating, irrelevant and interfering ones."""

from headlab.studies import Study, later
from headlab.studies.roles.spec import RolesSpec

STUDY = Study(
    name="roles",
    Spec=RolesSpec,
    cells=RolesSpec.cells,
    work=later("roles.cell", "work"),
    run_cell=later("roles.cell", "run_cell"),
    findings=later("roles.page", "findings"),
    warnings=later("roles.page", "warnings"),
    write_report=later("roles.page", "write_report"),
    compare=later("roles.page", "compare"),
    shows="Δ log-prob of the target against heads ablated",
)
