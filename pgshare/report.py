"""What the person at the terminal reads: one header line, a short summary. Touches nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pgshare.settings import Settings
    from pgshare.suite import Postgres


class Notes:
    """What the controller learns from reports, its own or its workers'."""

    def __init__(self) -> None:
        self.live_tests = 0
        self.servers: dict[str, None] = {}
        self.kept: list[tuple[str, str, bool]] = []  # test, name, whether it is on a server of ours
        self.residue: list[str] = []
        self.problems: list[str] = []  # what recovery and sweep of dead runs had to leave
        self.failures: list[str] = []  # what of this run could not be cleaned
        self.run_id = ""
        self.is_red = False

    def add(self, found: Mapping[str, Any]) -> None:
        """Add what one report, or the end of a worker, says."""
        self.live_tests += bool(found.get("live"))
        if found.get("server"):
            self.servers.setdefault(found["server"])
        self.kept += [(test, name, ours) for test, name, ours in found.get("kept", ())]
        self.residue += found.get("residue", ())
        self.problems += [problem for problem in found.get("problems", ()) if problem not in self.problems]


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
        from pgshare.keep import SERVER_KEPT_FOR, how_to_connect

        lines += [f"kept schema of {test}: {how_to_connect(name)}" for test, name, _ in notes.kept]
        ours = any(ours for *_, ours in notes.kept)
        until = f" (or wait: the server ends by itself after {SERVER_KEPT_FOR / 60:.0f} minutes)" if ours else ""
        lines.append(f"remove what was kept: harness reap --run {notes.run_id}{until}")
    lines += [f"added outside of its schema by {line}" for line in notes.residue]
    lines += [f"left by a run that died, and still there: {problem}" for problem in notes.problems]
    if notes.failures:
        lines += [f"could not be cleaned up: {failure}" for failure in notes.failures]
        lines.append(f"remove what is left: harness reap --run {notes.run_id}")
    if notes.is_red:
        lines.append(f"no live test ran, and {settings.named('require')} wants one: check the selection and the markers")
    return lines
