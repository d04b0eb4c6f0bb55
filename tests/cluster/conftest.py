"""Write outcomes and dates of this folder's tests into docs/cluster.json, for docs/compatibility.md."""

import json
from collections.abc import Generator
from datetime import UTC, datetime

import pytest

from tests.support.paths import ROOT

RESULTS = ROOT / "docs" / "cluster.json"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write down the outcome of a test at once: the next one may take minutes."""
    report = yield
    if report.when == "call":
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        today = datetime.now(UTC).date().isoformat()
        results[item.name] = {"outcome": report.outcome, "date": today, "seconds": round(report.duration)}
        RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=2) + "\n")
    return report
