"""``harness ps``, ``harness reap`` and ``harness doctor``: the runs on this machine, and what works here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from typing import TextIO

    from pgshare.runs import Found


def add_commands(nouns: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    ps = nouns.add_parser("ps", help="list the runs on this machine and what they hold")
    ps.add_argument("--all", action="store_true", help="dead runs as well")
    ps.add_argument("--format", choices=("text", "json"), default="text")
    ps.set_defaults(run=run_ps)
    reap = nouns.add_parser("reap", help="remove what dead runs left, by exact recorded identity")
    reap.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    reap.add_argument("--run", dest="run_id", metavar="ID", help="only this run; ends it when it was kept on request")
    reap.add_argument("--min-age", type=float, default=0.0, metavar="SECONDS", help="leave younger runs alone")
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
        return 0
    for run in found:
        stdout.write(f"{run.run.id}  {run.state}  {run.age:.0f}s  {', '.join(run.holds) or 'holds nothing'}\n")
    if not found:
        stderr.write("no runs\n")
    return 0


def run_reap(arguments: argparse.Namespace, env: Mapping[str, str], stdout: TextIO, stderr: TextIO) -> int:
    """Remove dead runs' leftovers, or end one kept run; 1 when something had to stay."""
    from pgshare import runs

    problems = []
    for found in runs.find_runs(_top(env)):
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
    return 1 if problems else 0


def _remove(found: Found, stdout: TextIO, *, dry_run: bool) -> list[str]:
    from pgshare import runs

    stdout.write(f"{'would remove' if dry_run else 'removing'} run {found.run.id}: {', '.join(found.holds) or 'its folder'}\n")
    if dry_run:
        return []
    return runs.end_kept(found.run) if found.state == runs.KEPT_ALIVE else runs.recover(found.run)


def run_doctor(arguments: argparse.Namespace, env: Mapping[str, str], stdout: TextIO, _: TextIO) -> int:
    """Say what works here; 69 when no Postgres is to be had."""
    from pgshare import acquire
    from pgshare.account import current_account
    from pgshare.binaries import list_binaries
    from pgshare.place import choose_place
    from pgshare.run import Run, cache_folder
    from pgshare.settings import settings_from_env

    settings = settings_from_env(env)
    cache = cache_folder(settings.state_dir, env)
    decision = acquire.choose_origin(settings, acquire.probe_host(settings, env))
    account = current_account()
    lines: dict[str, object] = {
        "origin": f"{decision.origin}: {decision.reason}",
        "binaries": [f"{found.version} ({found.origin}: {found.bin_dir})" for found in list_binaries(env, cache)],
        "server runs as": account.name or str(account.uid),
        "state folder": _top(env),
        "data": str(choose_place(settings.memory, cache, "pgshare_doctor")),
    }
    code = 0
    if decision.origin in ("none", "container"):
        code = 69
    else:
        run = Run.new(settings.state_dir, env)
        acquired = acquire.acquire(run, settings, env)
        lines["started"] = (
            f"Postgres {acquired.postgres.version} in {acquired.postgres.took * 1000:.0f} ms ({acquired.postgres.gate})"
        )
        if acquired.lease is not None:
            left = acquired.lease.leave()
            lines["left behind"] = left or "nothing"
            code = 1 if left else 0
    if arguments.format == "json":
        stdout.write(json.dumps({"schema": 1, **lines}) + "\n")
        return code
    for name, value in lines.items():
        for item in value if isinstance(value, list) else [value]:
            stdout.write(f"{name}: {item}\n")
    return code
