"""The settings of harness: flag > variable > ``[tool.harness]`` > default, and where each value came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pgshare.deadline import HANG_BUDGET, RACE_FLOOR, at_least, timeout_scale
from pgshare.errors import SettingError
from pgshare.settings import hint

if TYPE_CHECKING:
    from collections.abc import Mapping

FLAG, VARIABLE, KEY = "--harness-hang-budget", "HARNESS_HANG_BUDGET", "hang_budget"
SCALE = "HARNESS_TIMEOUT_SCALE"


class Settings(NamedTuple):
    """What the user asked for: ``hang_budget`` in seconds, unscaled; ``sources`` names what was set, as it was written."""

    hang_budget: float = HANG_BUDGET
    scale: float = 1.0
    sources: tuple[str, ...] = ()

    def env(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the environment as it would say the same."""
        return {**env, VARIABLE: repr(self.hang_budget)}


def resolve_settings(*, flag: str | None, env: Mapping[str, str], table: Mapping[str, object]) -> Settings:
    """Return the settings of flag, environment and ``[tool.harness]``, in this order. Touches nothing.

    A blank variable is unset. Raises SettingError naming the setting as it was written.
    """
    for key in table:
        if key != KEY:
            raise SettingError(f"[tool.harness] has an unknown key {key!r}{hint(key, [KEY])}")
    given = ((FLAG, flag), (VARIABLE, env.get(VARIABLE, "").strip() or None), (f"[tool.harness] {KEY}", table.get(KEY)))
    found = next(((name, raw) for name, raw in given if raw is not None), None)
    budget = HANG_BUDGET if found is None else at_least(found[1], RACE_FLOOR, name=found[0])
    scale = timeout_scale(env)
    sources = ((found[0],) if found is not None else ()) + ((SCALE,) if scale != 1.0 else ())
    return Settings(hang_budget=budget, scale=scale, sources=sources)
