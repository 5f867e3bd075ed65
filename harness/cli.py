"""The command ``harness``: parse, call, translate. stdout is data, stderr is talk; exit codes of docs/cli.md."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import TYPE_CHECKING

from harness import pgcli, runcli
from harness.exits import SIGNAL, explain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TextIO


class _Version(argparse.Action):
    """Looks the version up when it is asked for: the metadata costs every other command its import."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print it and end."""
        from importlib.metadata import PackageNotFoundError, version

        try:
            found = version("pgshare")
        except PackageNotFoundError:
            found = "not installed"
        sys.stdout.write(f"harness (pgshare {found})\n")
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command."""
    parser = argparse.ArgumentParser(prog="harness", description="Look at and clean up what test runs hold.")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and end")
    nouns = parser.add_subparsers(dest="noun", metavar="COMMAND", required=True)
    pgcli.add_commands(nouns)
    runcli.add_commands(nouns)
    return parser


def main(argv: Sequence[str], env: Mapping[str, str], stdout: TextIO, stderr: TextIO) -> int:
    """Run the command and return its exit code; one sentence and never a traceback for what goes wrong."""
    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):  # argparse knows only sys's
            arguments = build_parser().parse_args(argv)
    except SystemExit as exc:
        return int(exc.code or 0)
    try:
        code: int = arguments.run(arguments, env, stdout, stderr)
    except BrokenPipeError:
        raise
    except (Exception, KeyboardInterrupt) as exc:  # noqa: BLE001  # every error is told here, bugs as such
        code, sentence = explain(exc)
        stderr.write(f"harness: {sentence}\n")
    return code


def entry() -> None:
    """Run as a console script."""
    try:
        code = main(sys.argv[1:], os.environ, sys.stdout, sys.stderr)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has all it wants (``| head``). What is still buffered goes nowhere, or the exit would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = SIGNAL + 13
    sys.exit(code)
