"""Decide where the Postgres comes from, then get it. Nothing after this module asks who runs the server."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Literal, NamedTuple

from pgshare.errors import OriginUnavailableError, SettingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import psycopg

    from pgshare.binaries import Binaries
    from pgshare.lease import Lease
    from pgshare.run import Run
    from pgshare.schema import Schema
    from pgshare.settings import Settings
    from pgshare.suite import Postgres

Origin = Literal["external", "container", "embedded", "none"]


class Host(NamedTuple):
    """What this machine offers. ``missing`` says why no server binaries can be used; blank when they can."""

    missing: str = ""
    tried: tuple[str, ...] = ()
    binaries: Binaries | None = None


class Decision(NamedTuple):
    """The origin, and one sentence that says why."""

    origin: Origin
    reason: str
    tried: tuple[str, ...] = ()


def choose_origin(settings: Settings, host: Host) -> Decision:
    """Return the origin for these settings on this machine; touch nothing.

    External when a DSN is set, else the container when asked for, else embedded when there are binaries, else none.
    """
    if settings.dsn:
        return Decision(origin="external", reason=f"{settings.named('dsn')} is set")
    if settings.container:
        return Decision(origin="container", reason=f"{settings.named('container')} asks for a container")
    if not host.missing:
        return Decision(origin="embedded", reason="no DSN is set and server binaries are here")
    return Decision(origin="none", reason=host.missing, tried=host.tried)


def probe_host(settings: Settings, env: Mapping[str, str]) -> Host:
    """Look for server binaries, where the decision depends on them. Raises SettingError for a setting that names none."""
    if settings.dsn or settings.container:
        return Host()
    from pgshare.binaries import find_binaries
    from pgshare.run import cache_folder

    try:
        found = find_binaries(settings.bin, env, cache_folder(settings.state_dir, env), setting=settings.named("bin"))
    except OriginUnavailableError as exc:
        return Host(missing=str(exc), tried=exc.tried)
    return Host(binaries=found)


class Acquired(NamedTuple):
    """A server; for one that is ours, the lease that holds it; and the connection that proved it, to be used on."""

    postgres: Postgres
    lease: Lease | None = None
    conn: psycopg.Connection | None = None


def acquire(run: Run, settings: Settings, env: Mapping[str, str] | None = None, *, keep_conn: bool = False) -> Acquired:
    """Return the run's Postgres, starting it when it is ours and nobody of this run has.

    ``keep_conn``: the caller goes on with the connection that proved the server, and closes it.

    Raises OriginUnavailableError when nothing is to be had (skip, or fail under require), SettingError and NotReadyError for a
    setting that does not work, ServerStartError and KeeperError for a server of ours that does not.
    """
    environment = os.environ if env is None else env
    if settings.warm:
        raise SettingError(
            f"{settings.named('warm')}: keeping a server warm between runs is not available in this version; leave it out"
        )
    host = probe_host(settings, environment)
    decision = choose_origin(settings, host)
    if decision.origin == "external":
        return _external(settings, environment, keep_conn=keep_conn)
    if decision.origin == "embedded":
        from pgshare.suite import shared_postgres

        postgres, lease = shared_postgres(run, settings, environment, binaries=host.binaries)
        return Acquired(postgres=postgres, lease=lease, conn=lease.take_proof() if keep_conn else None)
    if decision.origin == "container":
        raise OriginUnavailableError(
            f"{decision.reason}, and containers are not available in this version; leave it out, or set PGSHARE_DSN",
            tried=("container: not available in this version",),
        )
    raise OriginUnavailableError(decision.reason, tried=decision.tried)


def _external(settings: Settings, env: Mapping[str, str], *, keep_conn: bool) -> Acquired:
    """Return the server that the user named, proved to be usable for tests."""
    import time

    from pgshare import conninfo, probe
    from pgshare.deadline import Deadline
    from pgshare.suite import Postgres

    began = time.perf_counter()
    name = settings.named("dsn")
    own = conninfo.parse(settings.dsn or "", name=name)
    parts = conninfo.fill_from_env(own, env)
    if parts != own:
        conninfo.parse(conninfo.build(parts), name=f"{name}, filled in from PG* variables,")
    facts, conn = probe.open_probed(conninfo.build(parts), Deadline.after(settings.wait), name=name)
    try:
        probe.check_usable(facts, name=name)
        if "service" in parts:
            parts = conninfo.fill_from_service(parts, probe.effective(conn), env)
            conninfo.refuse_search_path(
                "" if "options" in own else parts.get("options", ""), source=f"service {parts['service']!r} (of {name})"
            )
    except SettingError:
        conn.close()
        raise
    dsn = conninfo.build(parts)
    if not keep_conn:
        conn.close()
    postgres = Postgres(
        dsn=dsn,
        origin="external",
        version=facts.version.split(" ", 1)[0],
        version_num=facts.version_num,
        source=name,
        gate="connect",
        took=time.perf_counter() - began,
        place=f"{parts.get('host', parts.get('service', 'the default socket'))}, database {facts.database}",
    )
    return Acquired(postgres=postgres, conn=conn if keep_conn else None)


def acquire_dsn(settings: Settings | None = None) -> str:
    """Return an administrative DSN of a server for tests, without pytest. A server of ours ends with this process."""
    from pgshare.run import Run
    from pgshare.settings import settings_from_env

    found = settings_from_env() if settings is None else settings
    acquired = acquire(Run.new(found.state_dir), found)
    _held.append(acquired)
    return acquired.postgres.dsn


# What acquire_dsn holds until the process ends: closing a lease would end nothing, but losing it would look like leaving.
_held: list[Acquired] = []


@contextlib.contextmanager
def isolated_schema(dsn: str, *, test: str = "", settings: Settings | None = None) -> Iterator[Schema]:
    """Give a fresh schema on the server at ``dsn``, without pytest; dropped at the end whatever happened inside.

    Raises SettingError and NotReadyError as the fixtures do, LeftoverError when the schema could not be dropped, and warns
    (ConnectionLeakWarning) about connections that were left open.
    """
    import warnings

    from pgshare.run import Run
    from pgshare.schema import SchemaFactory
    from pgshare.sessions import ConnectionLeakWarning
    from pgshare.settings import Settings as Made

    given = Made() if settings is None else settings
    found = given._replace(dsn=dsn, sources={**given.sources, "dsn": "the DSN given to isolated_schema"})
    run = Run.new(found.state_dir)
    acquired = acquire(run, found, keep_conn=True)
    factory = SchemaFactory(acquired.postgres, run, found, pgoptions=os.environ.get("PGOPTIONS", ""), conn=acquired.conn)
    try:
        schema = factory.create(test)
        try:
            yield schema
        finally:
            report = factory.drop(schema)
        if report:
            warnings.warn(str(report), ConnectionLeakWarning, stacklevel=3)
    finally:
        factory.close()
