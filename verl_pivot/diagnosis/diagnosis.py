"""Diagnosis: the outcome of one check of `verl-pivot doctor`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Result of one check."""

    name: str
    passed: bool
    detail: str
    remedy: str = ""
    """What to do where the check failed."""
