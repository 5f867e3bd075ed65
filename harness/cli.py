"""The command ``harness``: parse, call, translate. stdout is data, stderr is talk; exit codes of docs/cli.md."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from harness import pgcli, runcli
from pgshare.errors import NotReadyError, OriginUnavailableError, PgshareError, SettingError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TextIO

OK, FINDING, USAGE, UNAVAILABLE, BUG, BAD_SETTING = 0, 1, 2, 69, 70, 78


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command."""
    from importlib.metadata import version

    parser = argparse.ArgumentParser(prog="harness", description="Look at and clean up what test runs hold.")
    parser.add_argument("--version", action="version", version=f"harness (pgshare {version('pgshare')})")
    nouns = parser.add_subparsers(dest="noun", metavar="COMMAND", required=True)
    pgcli.add_commands(nouns)
    runcli.add_commands(nouns)
    return parser


def main(argv: Sequence[str], env: Mapping[str, str], stdout: TextIO, stderr: TextIO) -> int:
    """Run the command and return its exit code; never raises for what a user can cause."""
    try:
        arguments = build_parser().parse_args(argv)
    except SystemExit as exc:
        return int(exc.code or 0)
    try:
        code: int = arguments.run(arguments, env, stdout, stderr)
    except SettingError as exc:
        return _say(stderr, exc, BAD_SETTING)
    except (OriginUnavailableError, NotReadyError) as exc:
        return _say(stderr, exc, UNAVAILABLE)
    except PgshareError as exc:
        return _say(stderr, exc, FINDING)
    return code


def _say(stderr: TextIO, exc: Exception, code: int) -> int:
    stderr.write(f"harness: {exc}\n")
    return code


def entry() -> None:
    """Run as a console script."""
    sys.exit(main(sys.argv[1:], os.environ, sys.stdout, sys.stderr))
