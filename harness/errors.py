"""Every error that harness raises on purpose."""

from __future__ import annotations


class HarnessError(Exception):
    """Base of every error raised on purpose; the message says the way out."""
