"""Grading: how right a text is, by named scores."""

from headlab.grading.graded import Column, Graded, grade
from headlab.grading.registry import GRADERS, Grader, find_graders

__all__ = ["GRADERS", "Column", "Graded", "Grader", "find_graders", "grade"]
