"""pytest fixtures over harness; no logic of its own. Importing it imports nothing that pytest has not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


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
    from pgshare.deadline import hang_budget
    from pgshare.errors import SettingError

    try:
        hang_budget(_environment(config))
    except SettingError as exc:
        raise pytest.UsageError(f"harness: {exc}") from None


def _environment(config: pytest.Config) -> dict[str, str]:
    """Return the environment with the option in it: flag > variable."""
    import os

    flag = config.getoption("harness_hang_budget")
    return {**os.environ, **({"HARNESS_HANG_BUDGET": flag} if flag is not None else {})}


@pytest.fixture(scope="session")
def wait_for(request: pytest.FixtureRequest) -> Callable[..., object]:
    """Return ``harness.wait_for`` with this run's hang budget: ``wait_for(probe, owner="what", budget=seconds)``."""
    from functools import partial

    from harness.probes import wait_for as found

    return partial(found, env=_environment(request.config))


@pytest.fixture(scope="session")
def assert_never() -> Callable[..., None]:
    """Return ``harness.assert_never``: ``assert_never(probe, owner="what", within=seconds)``."""
    from harness.probes import assert_never as found

    return found
