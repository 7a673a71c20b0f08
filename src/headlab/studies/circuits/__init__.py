"""The circuits study: explained effect against heads kept, for any list of models and tasks."""

from headlab.studies import Study, later
from headlab.studies.circuits.spec import CircuitsSpec

STUDY = Study(
    name="circuits",
    Spec=CircuitsSpec,
    cells=CircuitsSpec.cells,
    work=later("circuits.cell", "work"),
    run_cell=later("circuits.cell", "run_cell"),
    findings=later("circuits.words", "findings"),
    warnings=later("circuits.words", "warnings"),
    write_report=later("circuits.page", "write_report"),
    compare=later("circuits.comparing", "compare"),
    shows="Explained effect against heads kept",
)
