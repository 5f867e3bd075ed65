"""Keep the caller's PG* variables away from servers that we started: they would send a DSN of ours somewhere else.

Most of them lose against a key in the DSN, but PGSERVICE beats every DSN, and asyncpg and Django read them as well.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping

# libpq's connection variables (PQconndefaults of 14 to 18).
NAMES = """
PGTZ PGDATESTYLE PGGEQO PGSERVICE PGSERVICEFILE PGUSER PGPASSWORD PGPASSFILE PGCHANNELBINDING PGCONNECT_TIMEOUT PGDATABASE PGHOST
PGHOSTADDR PGPORT PGCLIENTENCODING PGOPTIONS PGAPPNAME PGSSLMODE PGSSLNEGOTIATION PGREQUIRESSL
PGSSLCOMPRESSION PGSSLCERT PGSSLKEY PGSSLCERTMODE PGSSLROOTCERT PGSSLCRL PGSSLCRLDIR PGSSLSNI PGREQUIREPEER
PGREQUIREAUTH PGMINPROTOCOLVERSION PGMAXPROTOCOLVERSION PGSSLMINPROTOCOLVERSION PGSSLMAXPROTOCOLVERSION
PGGSSENCMODE PGKRBSRVNAME PGGSSLIB PGGSSDELEGATION PGTARGETSESSIONATTRS PGLOADBALANCEHOSTS
"""
VARIABLES = frozenset(NAMES.split())


def take_out(env: MutableMapping[str, str]) -> dict[str, str]:
    """Remove libpq's variables from ``env`` and return them."""
    return {name: env.pop(name) for name in sorted(VARIABLES & set(env))}


def put_back(env: MutableMapping[str, str], taken: dict[str, str]) -> None:
    """Undo ``take_out``; what was set anew meanwhile stays."""
    for name, value in taken.items():
        env.setdefault(name, value)


@contextlib.contextmanager
def without_pg_variables() -> Iterator[None]:
    """Run the block without libpq's variables in this process's environment; nothing is touched where none is set."""
    taken = take_out(os.environ)
    try:
        yield
    finally:
        put_back(os.environ, taken)
