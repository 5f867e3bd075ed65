"""Exit codes of the command, and one sentence for each error that ends it."""

from __future__ import annotations

import os
import sys

from pgshare.errors import (
    InventoryError,
    KeeperError,
    NotReadyError,
    OriginUnavailableError,
    PgshareError,
    ServerStartError,
    SettingError,
)

OK, FINDING, USAGE = 0, 1, 2
MALFORMED, MISSING, UNAVAILABLE, BUG, BAD_SETTING = 65, 66, 69, 70, 78
SIGNAL = 128  # and the signal's number

CODES: tuple[tuple[type[BaseException], int], ...] = (
    (SettingError, BAD_SETTING),
    (OriginUnavailableError, UNAVAILABLE),
    (NotReadyError, UNAVAILABLE),
    (ServerStartError, UNAVAILABLE),
    (KeeperError, UNAVAILABLE),
    (InventoryError, MALFORMED),
    (PgshareError, FINDING),
)


def explain(exc: BaseException) -> tuple[int, str]:
    """Return the exit code for ``exc`` and the sentence that says it."""
    for kind, code in CODES:
        if isinstance(exc, kind):
            return code, str(exc)
    if isinstance(exc, KeyboardInterrupt):
        return SIGNAL + 2, "interrupted"
    if isinstance(exc, ImportError) and "pq wrapper" in str(exc):
        return UNAVAILABLE, "psycopg finds no libpq; pip install 'pgshare[binary]'"
    if isinstance(exc, OSError) and exc.filename is not None:
        return MISSING, f"cannot use {os.fsdecode(exc.filename)!r}: {exc.strerror}"
    if _is_the_drivers(exc):
        return UNAVAILABLE, f"the server: {' '.join(str(exc).split()) or type(exc).__name__}"
    return BUG, f"a bug in harness: {type(exc).__name__}: {exc} ({_where(exc)}); please report it"


def _is_the_drivers(exc: BaseException) -> bool:
    """Return whether psycopg raised it, without importing psycopg for the question."""
    psycopg = sys.modules.get("psycopg")
    return psycopg is not None and isinstance(exc, psycopg.Error)


def _where(exc: BaseException) -> str:
    trace = exc.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{os.path.basename(trace.tb_frame.f_code.co_filename)}, line {trace.tb_lineno}" if trace is not None else "no line"
