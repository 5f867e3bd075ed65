"""``harness ps``, ``harness reap`` and ``harness doctor``: the runs on this machine, and what works here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from harness.arguments import seconds
from harness.exits import FINDING, MISSING, OK, explain

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping
    from typing import TextIO

    from pgshare.acquire import Decision
    from pgshare.runs import Found
    from pgshare.settings import Settings


def add_commands(nouns: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    ps = nouns.add_parser("ps", help="list the runs on this machine and what they hold")
    ps.add_argument("--all", action="store_true", help="dead runs as well")
    ps.add_argument("--format", choices=("text", "json"), default="text")
    ps.set_defaults(run=run_ps)
    reap = nouns.add_parser("reap", help="remove what dead runs left, by exact recorded identity")
    reap.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    reap.add_argument("--run", dest="run_id", metavar="ID", help="only this run; ends it when it was kept on request")
    reap.add_argument("--min-age", type=seconds, default=0.0, metavar="TIME", help="leave younger runs alone")
    reap.set_defaults(run=run_reap)
    doctor = nouns.add_parser("doctor", help="say where a Postgres would come from here, and start one")
    doctor.add_argument("--format", choices=("text", "json"), default="text")
    doctor.set_defaults(run=run_doctor)


def _top(env: Mapping[str, str]) -> str:
    from pgshare.run import state_root
    from pgshare.settings import settings_from_env

    return state_root(settings_from_env(env).state_dir, env)


def run_ps(arguments: argparse.Namespace, env: Mapping[str, str], stdout: TextIO, stderr: TextIO) -> int:
    """List runs."""
    from pgshare import runs

    found = [run for run in runs.find_runs(_top(env)) if arguments.all or run.state != runs.DEAD]
    if arguments.format == "json":
        stdout.write(json.dumps({"schema": 1, "runs": [run.data() for run in found]}) + "\n")
        return OK
    for run in found:
        stdout.write(f"{run.run.id}  {run.state}  {run.age:.0f}s  {', '.join(run.holds) or 'holds nothing'}\n")
    if not found:
        stderr.write("no runs\n")
    return OK


def run_reap(arguments: argparse.Namespace, env: Mapping[str, str], stdout: TextIO, stderr: TextIO) -> int:
    """Remove dead runs' leftovers, or end one kept run; 1 when something had to stay."""
    from pgshare import runs

    here = runs.find_runs(_top(env))
    if arguments.run_id is not None and arguments.run_id not in [found.run.id for found in here]:
        known = ", ".join(found.run.id for found in here) or "none"
        stderr.write(f"harness: no run is called {arguments.run_id!r}; runs here: {known}\n")
        return MISSING
    problems = []
    for found in here:
        if arguments.run_id not in (None, found.run.id) or found.age < arguments.min_age:
            continue
        if found.state == runs.UNKNOWN:
            problems.append(f"run {found.run.id}: cannot tell whether its owner is alive, left alone")
        elif found.state == runs.DEAD or (found.state == runs.KEPT_ALIVE and arguments.run_id is not None):
            problems += _remove(found, stdout, dry_run=arguments.dry_run)
        elif arguments.run_id is not None:
            problems.append(f"run {found.run.id} is alive; stop its tests first")
    for problem in problems:
        stderr.write(f"{problem}\n")
    return FINDING if problems else OK


def _remove(found: Found, stdout: TextIO, *, dry_run: bool) -> list[str]:
    from pgshare import runs

    stdout.write(f"{'would remove' if dry_run else 'removing'} run {found.run.id}: {', '.join(found.holds) or 'its folder'}\n")
    if dry_run:
        return []
    return runs.end_kept(found.run) if found.state == runs.KEPT_ALIVE else runs.recover(found.run)


def run_doctor(arguments: argparse.Namespace, env: Mapping[str, str], stdout: TextIO, stderr: TextIO) -> int:
    """Say what works here, as much as can be told; the exit code is that of the first thing that does not."""
    from pgshare.settings import settings_from_env

    doctor = Doctor(settings_from_env(env), env)
    for name, look in doctor.checks():
        doctor.check(name, look)
    if arguments.format == "json":
        problems = [sentence for _, sentence in doctor.problems]
        stdout.write(json.dumps({"schema": 1, **doctor.lines, "problems": problems}) + "\n")
    else:
        for name, value in doctor.lines.items():
            for item in value if isinstance(value, list) else [value]:
                stdout.write(f"{name}: {item}\n")
    for _, sentence in doctor.problems:
        stderr.write(f"harness: {sentence}\n")
    return doctor.problems[0][0] if doctor.problems else OK


class Doctor:
    """Looks at one thing after the other; what fails does not hide the rest."""

    def __init__(self, settings: Settings, env: Mapping[str, str]) -> None:
        self._settings, self._env = settings, env
        self.lines: dict[str, object] = {}
        self.problems: list[tuple[int, str]] = []

    def checks(self) -> list[tuple[str, Callable[[], object]]]:
        """Return what is looked at, in this order."""
        return [
            ("state folder", self._state_folder),
            ("origin", self._origin),
            ("external", self._external),
            ("container", lambda: "not available in this version"),
            ("embedded", self._embedded),
            ("server runs as", self._account),
            ("data", self._place),
            ("", self._start),
        ]

    def check(self, name: str, look: Callable[[], object]) -> None:
        """Add the line of one look, or its problem, told once."""
        try:
            found = look()
        except Exception as exc:  # noqa: BLE001  # told below the rest
            problem = explain(exc)
            if problem not in self.problems:
                self.problems.append(problem)
        else:
            if name:
                self.lines[name] = found

    @property
    def _cache(self) -> str:
        """The cache folder; who needs it has the state folder's problem when there is none."""
        from pgshare.run import cache_folder

        return cache_folder(self._settings.state_dir, self._env)

    def _state_folder(self) -> str:
        _ = self._cache
        return f"{_top(self._env)}, writable"

    def _origin(self) -> str:
        decision = self._decide()
        return f"{decision.origin}: {decision.reason}"

    def _decide(self) -> Decision:
        from pgshare import acquire

        return acquire.choose_origin(self._settings, acquire.probe_host(self._settings, self._env))

    def _external(self) -> str:
        name = self._settings.named("dsn")
        return f"{name} is set" if self._settings.dsn else f"{name} is not set"

    def _embedded(self) -> list[str]:
        from pgshare.binaries import list_binaries

        found = list_binaries(self._env, self._cache)
        return [f"{one.version} ({one.origin}: {one.bin_dir})" for one in found] or ["no server programs found"]

    def _account(self) -> str:
        from pgshare.account import current_account

        account = current_account()
        return account.name or str(account.uid)

    def _place(self) -> str:
        from pgshare.place import choose_place

        return str(choose_place(self._settings.memory, self._cache, "pgshare_doctor"))

    def _start(self) -> None:
        """Acquire what tests would get, and give it back."""
        from pgshare import acquire
        from pgshare.run import Run

        acquired = acquire.acquire(Run.new(self._settings.state_dir, self._env), self._settings, self._env)
        postgres = acquired.postgres
        said = f"Postgres {postgres.version} in {postgres.took * 1000:.0f} ms ({postgres.gate})"
        if acquired.lease is None:
            self.lines["answered"] = said
            return
        self.lines["started"] = said
        left = acquired.lease.leave()
        self.lines["left behind"] = left or "nothing"
        if left:
            self.problems.append((FINDING, f"something of the server is left: {'; '.join(left)}"))
