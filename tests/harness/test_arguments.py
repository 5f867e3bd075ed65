from __future__ import annotations

import argparse

import pytest

from harness.arguments import count, seconds


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0), ("90", 90), ("1.5", 1.5), ("90s", 90), ("10m", 600), ("2h", 7200), ("1d", 86400), ("0.5m", 30)]
)
def test_times_have_units(text, value):
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "s", "m", "-1", "nan", "inf", "infd", "10 x", "1e999", "ten"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a time; write 90, 90s, 10m, 2h or 1d"):
        seconds(text)


def test_counts_begin_at_one():
    assert count("200") == 200
    for text in ("0", "-1", "1.5", "many", ""):
        with pytest.raises(argparse.ArgumentTypeError, match=f"'{text}' is not a number of 1 or more"):
            count(text)
