"""Checks of reward functions before a run is wasted on them."""

from gdpo.lint.command import Report, lint
from gdpo.lint.trial import Subject

__all__ = ["Report", "Subject", "lint"]
