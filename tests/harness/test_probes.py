from __future__ import annotations

import pytest

from harness import assert_never, wait_for
from pgshare.errors import NotReadyError


def test_the_first_true_result_is_returned_at_once():
    seen = iter([0, None, "there"])
    assert wait_for(lambda: next(seen), owner="the thing") == "there"


def test_the_end_of_the_budget_names_owner_and_last_result():
    with pytest.raises(NotReadyError, match=r"^the queue not ready after 0\.\d+s \(\d+ tries\); last seen: 3 left$"):
        wait_for(list, owner="the queue", budget=0.05, describe=lambda _: "3 left")


def test_an_error_of_the_probe_ends_the_wait():
    with pytest.raises(ZeroDivisionError):
        wait_for(lambda: 1 / 0, owner="x")


def test_a_negative_window_holds_or_fails():
    assert_never(lambda: False, owner="x", within=0.01)
    with pytest.raises(AssertionError, match="the bell happened after"):
        assert_never(lambda: True, owner="the bell", within=1)


TESTS = """
import pytest
from pgshare.errors import NotReadyError
def test_fixture(wait_for, assert_never):
    assert wait_for(lambda: 7, owner="seven") == 7
    assert_never(lambda: False, owner="no", within=0.01)
"""


def test_the_fixtures_work_and_the_budget_is_checked_before_any_test(project):
    project.write(test_a=TESTS)
    assert project.run("-W", "error", "--harness-hang-budget", "30").code == 0
    result = project.run("--harness-hang-budget", "3")
    assert result.code == 4
    assert "ERROR: harness: HARNESS_HANG_BUDGET must be a number of at least 10, got '3'; correct it or unset it" in result.out
