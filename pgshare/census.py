"""What a schema cannot hold: list what was added to the server outside of it. Lists only; nothing is dropped by guess."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psycopg

# Kind and name of everything that outlives DROP SCHEMA ... CASCADE.
QUERY = """
select 'role ' || rolname from pg_roles
union all select 'database ' || datname from pg_database where datname !~ '^pgshare_'
union all select 'large object ' || oid from pg_largeobject_metadata
union all select 'publication ' || pubname from pg_publication
union all select 'event trigger ' || evtname from pg_event_trigger
union all select 'replication slot ' || slot_name from pg_replication_slots
union all select 'extension ' || extname from pg_extension
union all select 'relation ' || relname || ' in public' from pg_class where relkind in ('r', 'p', 'v', 'm', 'f', 'S')
and relnamespace = to_regnamespace('public')
union all select 'function ' || proname || ' in public' from pg_proc where pronamespace = to_regnamespace('public')
union all select 'schema ' || nspname from pg_namespace where nspname !~ '^(pgshare_|pg_temp|pg_toast)'
"""


def take(conn: psycopg.Connection) -> frozenset[str]:
    """Return what is there now, as "kind name" texts."""
    return frozenset(_text(row[0]) for row in conn.execute(QUERY))


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def added(before: frozenset[str], after: frozenset[str]) -> list[str]:
    """Return what is there now and was not before."""
    return sorted(after - before)
