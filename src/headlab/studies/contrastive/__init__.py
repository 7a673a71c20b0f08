"""The contrastive study: gates that keep one prompt format and forget the other, tested on a task
that the fit has not seen."""

from headlab.studies import Study, later, sample_examples
from headlab.studies.contrastive.spec import ContrastiveSpec

STUDY = Study(
    name="contrastive",
    Spec=ContrastiveSpec,
    cells=ContrastiveSpec.cells,
    work=later("contrastive.cell", "work"),
    run_cell=later("contrastive.cell", "run_cell"),
    findings=later("contrastive.page", "findings"),
    warnings=later("contrastive.page", "warnings"),
    write_report=later("contrastive.page", "write_report"),
    compare=later("contrastive.page", "compare"),
    sample=lambda cell, texts, n: sample_examples(cell, texts, n, f"{cell.task}-icl"),  # longer
    shows="Accuracy on the task left out, before and after",
)
