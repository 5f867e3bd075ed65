from __future__ import annotations

import pytest

from pgshare import deadline
from pgshare.deadline import Deadline, NotYet, assert_never, hang_budget, poll
from pgshare.errors import NotReadyError, SettingError


class FakeTime:
    """A clock that only a pause moves."""

    def __init__(self):
        self.now, self.pauses = 100.0, []

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.pauses.append(seconds)
        self.now += seconds


def later(time, at):
    def attempt():
        if time.now < at:
            raise NotYet(f"it is {time.now:.3f}")
        return "there"

    return attempt


def test_the_first_try_is_immediate():
    time = FakeTime()
    assert poll("x", lambda: 7, Deadline.after(10, clock=time.clock), sleep=time.sleep) == 7
    assert time.pauses == []


def test_pauses_grow_and_stay_short_whatever_the_budget():
    times = []
    for budget in (60, 600):
        time = FakeTime()
        poll("x", later(time, 100.2), Deadline.after(budget, clock=time.clock), sleep=time.sleep)
        times.append(time.pauses)
    assert times[0] == times[1]
    assert times[0][:5] == [0.001, 0.002, 0.004, 0.008, 0.016]
    assert max(times[0]) <= deadline.LONGEST_PAUSE


def test_the_end_of_the_budget_reports_what_was_seen_last_and_never_sleeps_past_it():
    time = FakeTime()
    with pytest.raises(NotReadyError) as caught:
        poll("the thing", later(time, 999), Deadline.after(0.5, clock=time.clock), sleep=time.sleep)
    assert time.now == pytest.approx(100.5)
    assert caught.value.attempts == len(time.pauses) + 1
    assert str(caught.value) == f"the thing not ready after 0.5s ({caught.value.attempts} tries); last seen: it is 100.500"
    assert isinstance(caught.value, TimeoutError)


def test_anything_but_not_yet_ends_the_wait_at_once():
    time = FakeTime()

    def attempt():
        raise KeyError("no")

    with pytest.raises(KeyError):
        poll("x", attempt, Deadline.after(10, clock=time.clock), sleep=time.sleep)
    assert time.pauses == []


def test_named_exceptions_can_mean_again():
    time, seen = FakeTime(), iter([OSError("first"), None])

    def attempt():
        exc = next(seen)
        if exc:
            raise exc
        return "ok"

    assert poll("x", attempt, Deadline.after(10, clock=time.clock), not_yet=(OSError,), sleep=time.sleep) == "ok"


def test_an_expired_deadline_still_tries_once():
    time = FakeTime()
    assert poll("x", lambda: 1, Deadline.after(0, clock=time.clock), sleep=time.sleep) == 1
    with pytest.raises(NotReadyError, match=r"\(1 try\)"):
        poll("x", later(time, 999), Deadline.after(0, clock=time.clock), sleep=time.sleep)


def test_never_fails_at_the_first_true_look_and_its_window_is_exact():
    time = FakeTime()
    assert_never("x", lambda: False, within=0.3, clock=time.clock, sleep=time.sleep)
    assert time.now == pytest.approx(100.3)
    with pytest.raises(AssertionError, match="the event happened after 0.003s, must not within 1s"):
        begin = time.now
        assert_never("the event", lambda: time.now > begin + 0.002, within=1, clock=time.clock, sleep=time.sleep)


def test_the_budget_comes_from_one_place_and_scales():
    assert hang_budget({}) == 6 * deadline.RACE_FLOOR == 60
    assert deadline.EXEC_RACE_FLOOR == 10
    assert hang_budget({"HARNESS_HANG_BUDGET": "30", "HARNESS_TIMEOUT_SCALE": "2"}) == 60
    assert hang_budget({"HARNESS_HANG_BUDGET": " "}) == 60


@pytest.mark.parametrize("value", ["9", "x", "nan", "inf", "-1"])
def test_a_budget_below_the_floor_is_refused_by_name(value):
    with pytest.raises(SettingError, match="HARNESS_HANG_BUDGET must be a number of at least 10"):
        hang_budget({"HARNESS_HANG_BUDGET": value})


def test_a_negative_window_is_never_scaled(monkeypatch):
    monkeypatch.setenv("HARNESS_TIMEOUT_SCALE", "50")
    time = FakeTime()
    assert_never("x", lambda: False, within=0.2, clock=time.clock, sleep=time.sleep)
    assert time.now == pytest.approx(100.2)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf")])
def test_a_wait_without_an_end_is_refused(seconds):
    """A deadline of nan never expires: the loop would go on for ever."""
    with pytest.raises(SettingError, match=f"a wait must be a finite number of seconds, got {seconds}"):
        Deadline.after(seconds)
    with pytest.raises(SettingError):
        assert_never("x", lambda: False, within=seconds)


def test_a_list_of_pauses_goes_on_with_its_last():
    time = FakeTime()
    assert poll("x", later(time, 100.9), Deadline.after(10, clock=time.clock), pauses=[0.1, 0.3], sleep=time.sleep) == "there"
    assert time.pauses == [0.1, 0.3, 0.3, 0.3]


def test_a_slow_attempt_is_not_followed_by_a_pause_beyond_the_deadline():
    time = FakeTime()

    def attempt():
        time.now += 0.4
        raise NotYet("still")

    with pytest.raises(NotReadyError, match=r"^x not ready after 1\.2s \(3 tries\); last seen: still$"):
        poll("x", attempt, Deadline.after(1, clock=time.clock), sleep=time.sleep)
    assert time.pauses == [0.001, 0.002]


def test_what_was_seen_last_is_one_line_and_never_empty():
    time = FakeTime()
    for exc, shown in ((NotYet("a\n  b"), "a b"), (OSError(), "OSError")):

        def attempt(exc=exc):
            raise exc

        with pytest.raises(NotReadyError) as caught:
            poll("x", attempt, Deadline.after(0, clock=time.clock), not_yet=(OSError,), sleep=time.sleep)
        assert caught.value.last_seen == shown
        assert caught.value.__cause__ is exc


@pytest.mark.parametrize("value", ["0.5", "0", "inf", "x"])
def test_a_scale_below_one_is_refused_by_name(value):
    with pytest.raises(SettingError, match=f"^HARNESS_TIMEOUT_SCALE must be a number of at least 1, got '{value}'"):
        hang_budget({"HARNESS_TIMEOUT_SCALE": value})


def test_the_first_look_of_a_negative_window_is_immediate():
    time = FakeTime()
    with pytest.raises(AssertionError, match="must not within 5s"):
        assert_never("x", lambda: True, within=5, clock=time.clock, sleep=time.sleep)
    assert time.pauses == []
