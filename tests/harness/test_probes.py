from __future__ import annotations

import pytest

from harness import assert_never, wait_for
from harness.probes import NotYet
from pgshare import deadline
from pgshare.errors import NotReadyError, SettingError


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


def test_an_explicit_budget_is_scaled_too_and_a_negative_window_is_not(monkeypatch):
    budgets = []
    monkeypatch.setattr(deadline, "poll", lambda what, attempt, until: budgets.append(round(until.left)))
    wait_for(list, owner="x", budget=20, env={"HARNESS_TIMEOUT_SCALE": "3"})
    wait_for(list, owner="x", env={"HARNESS_TIMEOUT_SCALE": "3"})
    wait_for(list, owner="x", env={"HARNESS_TIMEOUT_SCALE": "3", "HARNESS_HANG_BUDGET": "600"})
    assert budgets == [60, 180, 1800]
    windows = []
    monkeypatch.setattr(deadline, "assert_never", lambda what, probe, *, within: windows.append(within))
    monkeypatch.setenv("HARNESS_TIMEOUT_SCALE", "50")
    assert_never(lambda: False, owner="x", within=0.2)
    assert windows == [0.2]


@pytest.mark.parametrize("budget", [60, 600])
def test_a_larger_budget_does_not_change_when_a_wait_ends(monkeypatch, budget):
    now, pauses = [0.0], []

    def sleep(seconds):
        pauses.append(seconds)
        now[0] += seconds

    def poll(what, attempt, until):
        fake = deadline.Deadline.after(until.left, clock=lambda: now[0])
        return real(what, attempt, fake, sleep=sleep)

    real = deadline.poll
    monkeypatch.setattr(deadline, "poll", poll)
    assert wait_for(lambda: now[0] >= 1.0, owner="a second", budget=budget)
    assert (round(now[0], 3), len(pauses)) == (1.006, 44)


@pytest.mark.parametrize("budget", [float("nan"), float("inf")])
def test_a_wait_without_an_end_is_refused(budget):
    with pytest.raises(SettingError, match="a wait must be a finite number of seconds"):
        wait_for(list, owner="x", budget=budget)


def test_not_yet_is_asked_again():
    seen = iter([NotYet("no"), None])

    def probe():
        exc = next(seen)
        if exc:
            raise exc
        return "there"

    assert wait_for(probe, owner="x") == "there"
