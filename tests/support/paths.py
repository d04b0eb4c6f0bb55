"""Paths of the project, and of data beside it that are not part of it."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""Root folder of the checkout."""
SHARED_DATA = ROOT.parent / "shared" / "data"
"""Real trajectories and rows beside the checkout; tests that need them are skipped without them."""
