"""The masking study: the heads of a cognitive function taken away while the model answers."""

from headlab.studies import Study, later
from headlab.studies.masking.spec import MaskingSpec

STUDY = Study(
    name="masking",
    Spec=MaskingSpec,
    cells=MaskingSpec.cells,
    work=later("masking.cell", "work"),
    run_cell=later("masking.cell", "run_cell"),
    findings=later("masking.page", "findings"),
    warnings=later("masking.page", "warnings"),
    write_report=later("masking.page", "write_report"),
    compare=later("masking.page", "compare"),
    grade=later("masking.panels", "read_panels"),
    shows="Accuracy and text quality against masked heads",
)
