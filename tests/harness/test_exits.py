"""What the command says when something goes wrong: one sentence, the right exit code, never a traceback of ours."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from importlib import metadata

import psycopg
import pytest

from harness import cli, runcli
from pgshare.errors import InventoryError, KeeperError, LeftoverError, NotReadyError, RefusedError, ServerStartError, SettingError


def call(*argv, **env):
    out, err = io.StringIO(), io.StringIO()
    code = cli.main(argv, {"PATH": os.environ["PATH"], **env}, out, err)
    return code, out.getvalue(), err.getvalue()


@pytest.mark.parametrize(
    ("exc", "code", "sentence"),
    [
        (SettingError("X is wrong"), 78, "X is wrong"),
        (NotReadyError("it", waited=1.0, last_seen="no"), 69, "it not ready after 1.0s (1 try); last seen: no"),
        (ServerStartError("it died", log_tail="FATAL: no"), 69, "it died\nFATAL: no"),
        (KeeperError("gone"), 69, "gone"),
        (psycopg.OperationalError("the connection is lost\nHINT: none"), 69, "the server: the connection is lost HINT: none"),
        (InventoryError("a record is broken"), 65, "a record is broken"),
        (RefusedError("not ours"), 1, "not ours"),
        (LeftoverError("it stays"), 1, "it stays"),
        (PermissionError(13, "Permission denied", "/x"), 66, "cannot use '/x': Permission denied"),
        (ImportError("no pq wrapper available.\nAttempts made:"), 69, "psycopg finds no libpq; pip install 'pgshare[binary]'"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_every_error_is_a_sentence_with_its_exit_code(monkeypatch, exc, code, sentence):
    def run_ps(*_):
        raise exc

    monkeypatch.setattr(runcli, "run_ps", run_ps)
    assert call("ps") == (code, "", f"harness: {sentence}\n")


@pytest.mark.parametrize("exc", [ZeroDivisionError("division by zero"), ImportError("no module x"), OSError("odd")])
def test_a_bug_of_ours_is_told_as_one(monkeypatch, exc):
    def run_ps(*_):
        raise exc

    monkeypatch.setattr(runcli, "run_ps", run_ps)
    code, out, err = call("ps")
    assert (code, out) == (70, "")
    assert err.startswith(f"harness: a bug in harness: {type(exc).__name__}: {exc} (test_exits.py, line ")
    assert err.count("\n") == 1


def test_usage_goes_to_the_given_streams():
    code, out, err = call("--help")
    assert (code, err) == (0, "")
    assert "harness pg" not in out
    assert "doctor" in out
    code, out, err = call("dance")
    assert (code, out) == (2, "")
    assert "invalid choice: 'dance' (choose from" in err
    code, _, err = call("pg", "dance")
    assert code == 2
    assert all(verb in err for verb in ("probe", "schemas", "url", "sweep"))
    assert call("pg")[0] == call()[0] == 2


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("pg", "sweep", "--apart", "nan"), "argument --apart: 'nan' is not a time; write 90, 90s, 10m, 2h or 1d"),
        (("pg", "sweep", "--min-age", "-1"), "argument --min-age: '-1' is not a time; write 90, 90s, 10m, 2h or 1d"),
        (("pg", "sweep", "--limit", "0"), "argument --limit: '0' is not a number of 1 or more"),
        (("pg", "probe", "--wait", "soon"), "argument --wait: 'soon' is not a time; write 90, 90s, 10m, 2h or 1d"),
        (("reap", "--min-age", "10x"), "argument --min-age: '10x' is not a time; write 90, 90s, 10m, 2h or 1d"),
    ],
)
def test_a_wrong_argument_is_a_usage_error(argv, message):
    code, out, err = call(*argv, PGSHARE_DSN="host=nowhere.invalid")
    assert (code, out) == (2, "")
    assert err.rstrip().endswith(message)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_stops_reading_is_no_error(unbuffered):
    """``harness ps | head -1``: the pipe is closed before all is written."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "harness", "pg", "url", "--dsn", "host=x"],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + 13, "")


def test_looking_at_runs_needs_no_driver(state_dir, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('psycopg', 'filelock', 'anyio', 'podman', 'pytest', 'psutil'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Blocked())\n"
    )
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    env = {"PATH": os.environ["PATH"], "PGSHARE_STATE_DIR": state_dir, "PYTHONPATH": path}
    for words in (["ps"], ["reap"], ["--version"], ["pg", "--help"]):
        done = subprocess.run([sys.executable, "-m", "harness", *words], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_version_is_looked_up_only_when_asked_and_its_absence_is_no_error(monkeypatch):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    assert call("--version") == (0, "harness (pgshare not installed)\n", "")
    assert call("--help")[0] == 0
