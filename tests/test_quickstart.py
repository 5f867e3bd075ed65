"""The quickstart as a newcomer runs it, and the demo's proof that nothing is left, which must be able to fail."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "examples" / "quickstart"
FOREIGN = ("PGSHARE_", "HARNESS_", "PYTEST_", "PG")


def load_demo():
    spec = spec_from_file_location("demo", ROOT / ".ci" / "demo.py")
    found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


demo = load_demo()


def env(**extra):
    return {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)} | extra


def test_the_demo_says_what_was_started_and_proves_that_nothing_of_exactly_that_run_is_left():
    done = subprocess.run([sys.executable, str(ROOT / ".ci" / "demo.py")], env=env(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^embedded Postgres \d\S* \(.+\), data in .+, ready in \d+ ms \(.+\)$", done.stdout, re.M)
    (seen,) = re.findall(r"^demo: run ([0-9a-f]{4}_[0-9a-f]{8}) had while it ran: (.+)$", done.stdout, re.M)
    assert re.fullmatch(r"\d+ processes, \d+ sockets, 1 shared memory segment, \d+ folders", seen[1]), seen
    assert f"demo: run {seen[0]} has left nothing: no process, no socket, no shared memory, no folder\n" in done.stdout
    assert re.search(r"^demo: \d+\.\d s for the whole run of examples/quickstart$", done.stdout, re.M)


def test_the_quickstart_runs_on_a_server_that_the_variable_names(live_dsn):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "pgtest", "-n", "2", "--pg-require", "-p", "no:cacheprovider", "-p", "no:asyncio"],
        cwd=QUICKSTART,
        env=env(PGSHARE_DSN=live_dsn),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"^=+ 11 passed in ", done.stdout, re.M)
    assert "external Postgres" in done.stdout


@pytest.fixture
def run_id():
    return f"0000_{os.urandom(4).hex()}"


def test_the_proof_sees_each_kind_of_trace_and_only_of_its_run(run_id):
    folder = Path(tempfile.mkdtemp(prefix="pgst", dir="/var/tmp")) / run_id
    folder.mkdir()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "s"))
    child = [sys.executable, "-c", "input()"]
    named = subprocess.Popen([*child, f"/x/{run_id}"], stdin=subprocess.PIPE)
    inside = subprocess.Popen(child, stdin=subprocess.PIPE, cwd=folder)
    try:
        found = demo.traces(run_id, [str(folder), str(folder / "gone")], [])
        assert sorted(found) == sorted(
            [
                f"folder {folder}",
                f"socket {folder}/s",
                *(f"process {process.pid}: {demo.command(process.pid)}" for process in (named, inside)),
            ]
        )
        assert demo.traces(run_id[:-1] + "x", [], []) == []
    finally:
        for process in (named, inside):
            process.communicate(b"\n", timeout=30)
        listener.close()
        (folder / "s").unlink()
        folder.rmdir()
        folder.parent.rmdir()
    assert demo.traces(run_id, [str(folder)], []) == []


def test_the_proof_sees_the_shared_memory_of_a_living_server(own_server, run_id):
    (segment,) = demo.traces(run_id, [], [own_server.pid])
    assert segment.startswith("shared memory segment ")
    assert demo.traces(run_id, [], [os.getpid()]) == []


def test_a_run_that_nobody_watched_proves_nothing(tmp_path, capsys):
    assert demo.judge(tmp_path / "no record") == 1
    (tmp_path / "blind").write_text('{"run": "0000_00000000", "folders": [], "pids": [], "had": []}')
    assert demo.judge(tmp_path / "blind") == 1
    assert capsys.readouterr().out == 2 * "demo: no run was watched, so nothing is proved\n"


def test_what_is_left_is_named_and_turns_the_demo_red(tmp_path, capsys, run_id):
    record = {"run": run_id, "folders": [str(tmp_path)], "pids": [], "had": [f"folder {tmp_path}"]}
    (tmp_path / "record").write_text(json.dumps(record))
    assert demo.judge(tmp_path / "record") == 1
    assert capsys.readouterr().out == f"demo: run {run_id} had while it ran: 1 folder\ndemo: left behind: folder {tmp_path}\n"


def test_the_readme_names_the_files_that_are_there():
    text = (QUICKSTART / "README.md").read_text()
    named = set(re.findall(r"`([\w/.]+\.(?:py|sql|toml))`", text))
    assert named
    assert [path for path in named if not (QUICKSTART / path).exists()] == []
