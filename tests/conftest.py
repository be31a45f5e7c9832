"""What every test shares: a skip says why, and is a failure where SKYLEASE_NO_SKIPS is set (in CI); and who
runs first.
"""

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

# Begun first, so that no worker is left with one of them when the others have nothing to do.
LONG = (
    "test_kills",
    "test_campaigns",
    "test_cluster",
    "test_simulate",
    "test_interrupts",
    "test_pool_killed",
    "test_life",
    "test_hosts",
    "test_abuse",
    "test_intrusion",
    "test_ledger_killed",
    "test_sleep_killed",
    "test_traces",
    "test_slots",
    "test_sharing",
    "test_furnishing",
    "test_exec",
    "test_sandboxes",
    "test_snapshots",
    "test_sharing_killed",
    "test_durable",
    "test_sleep",
    "test_docker",
    "test_docker_engine",
    "test_tap_killed",
    "test_parking",
    "test_repair",
    "test_campaign",
    "test_packages",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long ones first (--dist loadfile --no-loadscope-reorder)."""
    places = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONG)))


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
