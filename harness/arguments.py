"""Values of the command line: a wrong one is a usage error before anything is done."""

from __future__ import annotations

import argparse

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str) -> float:
    """Return a time in seconds: ``90``, ``90s``, ``10m``, ``2h`` or ``1d``."""
    number, unit = (text[:-1], UNITS[text[-1]]) if text[-1:] in UNITS and text[-1:] else (text, 1.0)
    try:
        value = float(number) * unit
    except ValueError:
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write 90, 90s, 10m, 2h or 1d")
    return value


def count(text: str) -> int:
    """Return a number of 1 or more."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return value
