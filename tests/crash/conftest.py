"""Whatever a crash test finds wrong is told with its case, its folder and what every process said."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.crash.harness import Theatre


@pytest.fixture(autouse=True)
def _theatres() -> Iterator[None]:
    """No process outlives its test."""
    Theatre.made.clear()
    yield
    for theatre in Theatre.made:
        theatre.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: pytest.TestReport = yield  # type: ignore[assignment]
    if report.failed:
        # Of a crowd, those that something happened to come first.
        telling = sorted(Theatre.made, key=lambda theatre: not any(ended.code for ended in theatre.ended))
        report.sections.extend(("crash test", theatre.told()) for theatre in telling[:3])
    return report  # type: ignore[return-value]
