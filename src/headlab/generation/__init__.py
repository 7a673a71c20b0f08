"""Text under gates: any number of masks and prompts, written together."""

from headlab.generation.choosing import Choice
from headlab.generation.ending import Written
from headlab.generation.writing import Generated, generate

__all__ = ["Choice", "Generated", "Written", "generate"]
