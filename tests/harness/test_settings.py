from __future__ import annotations

import pytest

from harness.settings import Settings, resolve_settings
from pgshare.deadline import hang_budget
from pgshare.errors import SettingError


@pytest.mark.parametrize(
    ("flag", "env", "table", "expected"),
    [
        (None, {}, {}, Settings()),
        (None, {}, {"hang_budget": 20}, Settings(20, 1, ("[tool.harness] hang_budget",))),
        (None, {"HARNESS_HANG_BUDGET": "30"}, {"hang_budget": 20}, Settings(30, 1, ("HARNESS_HANG_BUDGET",))),
        ("40", {"HARNESS_HANG_BUDGET": "30"}, {"hang_budget": 20}, Settings(40, 1, ("--harness-hang-budget",))),
        (None, {"HARNESS_TIMEOUT_SCALE": "2.5"}, {}, Settings(60, 2.5, ("HARNESS_TIMEOUT_SCALE",))),
        (None, {"HARNESS_TIMEOUT_SCALE": "1", "HARNESS_HANG_BUDGET": " "}, {}, Settings()),
    ],
)
def test_flag_beats_variable_beats_file(flag, env, table, expected):
    found = resolve_settings(flag=flag, env=env, table=table)
    assert found == expected
    assert hang_budget(found.env(env)) == found.hang_budget * found.scale


@pytest.mark.parametrize("raw", [3, "3", True, [], "soon", float("nan"), float("inf")])
def test_an_unusable_value_is_named_as_it_was_written(raw):
    with pytest.raises(SettingError, match=r"^\[tool\.harness\] hang_budget must be a number of at least 10, got "):
        resolve_settings(flag=None, env={}, table={"hang_budget": raw})


def test_a_wrong_value_that_a_stronger_one_hides_is_not_looked_at():
    assert resolve_settings(flag="20", env={"HARNESS_HANG_BUDGET": "soon"}, table={}).hang_budget == 20
