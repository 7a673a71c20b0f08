"""The fillers study: tokens that say nothing before a question, accuracy and attention."""

from headlab.studies import Study, later
from headlab.studies.fillers.spec import FillersSpec

STUDY = Study(
    name="fillers",
    Spec=FillersSpec,
    cells=FillersSpec.cells,
    work=later("fillers.cell", "work"),
    run_cell=later("fillers.cell", "run_cell"),
    findings=later("fillers.page", "findings"),
    warnings=later("fillers.page", "warnings"),
    write_report=later("fillers.page", "write_report"),
    compare=later("fillers.page", "compare"),
    sample=later("fillers.cell", "sample"),
    check=later("fillers.cell", "check"),
    grade=later("fillers.panels", "read_panels"),
    shows="Accuracy by condition, and average attention by position",
)
