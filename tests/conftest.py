"""What every test shares: a skip says why, and is a failure where SKYLEASE_NO_SKIPS is set (in CI)."""

import os
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How many examples a property gets where its test does not say: HYPOTHESIS_PROFILE=thorough for a night.
settings.register_profile("quick", max_examples=40, deadline=None)
settings.register_profile(
    "thorough", max_examples=3000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip into a failure in CI, unless the test is marked `optional`."""
    report = yield
    strict = os.environ.get("SKYLEASE_NO_SKIPS") == "1"
    if (
        report.skipped
        and strict
        and not hasattr(report, "wasxfail")
        and not item.get_closest_marker("optional")
    ):
        report.outcome = "failed"
        report.longrepr = f"skipped, but this run must skip nothing: {report.longrepr}"
    return report
