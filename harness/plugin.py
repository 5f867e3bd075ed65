"""pytest fixtures over harness; no logic of its own. Importing it imports nothing that pytest has not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.settings import Settings

SETTINGS = pytest.StashKey["Settings"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("harness", "bounded waits and stacks (harness)")
    group.addoption(
        "--harness-hang-budget",
        dest="harness_hang_budget",
        default=None,
        metavar="SECONDS",
        help="how long a wait may take before it counts as hung (default 60, at least 10)",
    )


def pytest_configure(config: pytest.Config) -> None:
    import os

    from harness.settings import resolve_settings
    from pgshare.errors import SettingError
    from pgshare.settings import read_table

    try:
        table = read_table(config.rootpath, "harness")
        found = resolve_settings(flag=config.getoption("harness_hang_budget"), env=os.environ, table=table)
    except SettingError as exc:
        raise pytest.UsageError(f"harness: {exc}") from None
    config.stash[SETTINGS] = found


def pytest_report_header(config: pytest.Config) -> str | None:
    found: Settings = config.stash[SETTINGS]
    if not found.sources:
        return None
    return f"harness: hang budget {found.hang_budget * found.scale:g}s ({', '.join(found.sources)})"


@pytest.fixture(scope="session")
def wait_for(request: pytest.FixtureRequest) -> Callable[..., object]:
    """Return ``harness.wait_for`` with this run's hang budget: ``wait_for(probe, owner="what", budget=seconds)``."""
    import os
    from functools import partial

    from harness.probes import wait_for as found

    return partial(found, env=request.config.stash[SETTINGS].env(os.environ))


@pytest.fixture(scope="session")
def assert_never() -> Callable[..., None]:
    """Return ``harness.assert_never``: ``assert_never(probe, owner="what", within=seconds)``."""
    from harness.probes import assert_never as found

    return found
