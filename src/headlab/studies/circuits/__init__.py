"""The circuits study: explained effect against heads kept, for any list of models and tasks."""

from headlab.studies import Study
from headlab.studies.circuits.cell import run_cell, work
from headlab.studies.circuits.comparing import compare
from headlab.studies.circuits.page import findings, write_report
from headlab.studies.circuits.spec import CircuitsSpec

STUDY = Study(
    name="circuits",
    Spec=CircuitsSpec,
    cells=CircuitsSpec.cells,
    work=work,
    run_cell=run_cell,
    findings=findings,
    write_report=write_report,
    compare=compare,
)
