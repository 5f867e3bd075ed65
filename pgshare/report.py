"""What the person at the terminal reads: one header line, a short summary. Touches nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgshare.settings import Settings
    from pgshare.suite import Postgres


class Notes(Protocol):
    """What a run's controller noted."""

    servers: dict[str, None]
    kept: list[tuple[str, str]]
    residue: list[str]
    failures: list[str]
    is_red: bool


def header(settings: Settings) -> str:
    """Return the header line: the origin that will be used and why. Nothing is started or asked for it."""
    if settings.dsn:
        origin = f"external server ({settings.named('dsn')})"
    elif settings.container:
        origin = f"container ({settings.named('container')}: not available in this version)"
    else:
        where = f"binaries from {settings.named('bin')}" if settings.bin else "no DSN set"
        origin = f"embedded server ({where}), started by the first test that needs it"
    others = [f"{name} ({source})" for name, source in settings.sources.items() if name not in ("dsn", "bin", "container")]
    return f"pgshare: {origin}{'; set: ' + ', '.join(others) if others else ''}"


def server_line(postgres: Postgres) -> str:
    """Return what was used, from where, and how fast it was there."""
    if postgres.origin == "external":
        return f"external Postgres {postgres.version} ({postgres.source}): {postgres.place}"
    return (
        f"embedded Postgres {postgres.version} ({postgres.source}), data in {postgres.place}, "
        f"ready in {postgres.ready_after * 1000:.0f} ms ({postgres.gate})"
    )


def summary(notes: Notes, settings: Settings) -> Sequence[str]:
    """Return the lines of the summary section; none when there is nothing to say."""
    lines = list(notes.servers)
    if notes.kept:
        from pgshare.keep import how_to_connect

        lines += [f"kept schema of {test}: {how_to_connect(name)}" for test, name in notes.kept]
        run = notes.kept[0][1].removeprefix("pgshare_")[:13]
        lines.append(f"remove what was kept: harness reap --run {run}")
    lines += [f"added outside of its schema by {line}" for line in notes.residue]
    lines += [f"could not be cleaned up: {failure}" for failure in notes.failures]
    if notes.is_red:
        lines.append(f"no live test ran, and {settings.named('require')} wants one: check the selection and the markers")
    return lines
