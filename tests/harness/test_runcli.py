from __future__ import annotations

import io
import json
import os

import pytest

from harness.cli import main
from pgshare.run import Run


def call(*argv, **env):
    out, err = io.StringIO(), io.StringIO()
    code = main(argv, {"PATH": os.environ["PATH"], **env}, out, err)
    return code, out.getvalue(), err.getvalue()


def plant(state_dir, run_id):
    folder = f"{state_dir}/runs/{run_id}"
    run = Run(id=run_id, folder=folder, sockets=folder, controller=("another-boot/pid:[1]", 99, 1))
    run.make_folders()
    return run


def test_a_run_that_is_not_there_is_said(state_dir):
    plant(state_dir, "aaaa_00000001")
    assert call("reap", "--run", "bbbb_00000001", PGSHARE_STATE_DIR=state_dir) == (
        66,
        "",
        "harness: no run is called 'bbbb_00000001'; runs here: aaaa_00000001\n",
    )
    assert call("reap", "--run", "aaaa_00000001", PGSHARE_STATE_DIR=state_dir)[0] == 0
    code, _, err = call("reap", "--run", "aaaa_00000001", PGSHARE_STATE_DIR=state_dir)
    assert (code, err) == (66, "harness: no run is called 'aaaa_00000001'; runs here: none\n")


def test_only_the_named_run_is_removed_and_only_when_it_is_old_enough(state_dir):
    plant(state_dir, "aaaa_00000001")
    plant(state_dir, "aaaa_00000002")
    assert call("reap", "--min-age", "1h", PGSHARE_STATE_DIR=state_dir) == (0, "", "")
    code, out, _ = call("reap", "--run", "aaaa_00000002", PGSHARE_STATE_DIR=state_dir)
    assert (code, out) == (0, "removing run aaaa_00000002: its folder\n")
    assert os.listdir(f"{state_dir}/runs") == ["aaaa_00000001"]


def test_an_unreadable_record_makes_reaping_inconclusive(state_dir):
    run = plant(state_dir, "aaaa_00000001")
    with open(os.path.join(run.folder, "inventory.json"), "w", encoding="ascii") as file:
        file.write("{broken")
    for _ in range(2):
        code, _, err = call("reap", PGSHARE_STATE_DIR=state_dir)
        assert code == 1
        assert "inventory.json" in err
    assert os.path.exists(run.folder)


def test_ps_json_says_what_a_run_holds(state_dir):
    from pgshare.inventory import Inventory

    run = plant(state_dir, "aaaa_00000001")
    Inventory(run.folder, run_id=run.id).intend([("dir", "/never/made", "")])
    (found,) = json.loads(call("ps", "--all", "--format", "json", PGSHARE_STATE_DIR=state_dir)[1])["runs"]
    assert found == {"run": "aaaa_00000001", "state": "dead", "age": found["age"], "holds": ["dir /never/made"]}
    assert call("ps", PGSHARE_STATE_DIR=state_dir)[2] == "no runs\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_state_folder_that_cannot_be_read_is_a_sentence(state_dir):
    os.makedirs(f"{state_dir}/runs")
    os.chmod(f"{state_dir}/runs", 0)
    code, _, err = call("ps", PGSHARE_STATE_DIR=state_dir)
    os.chmod(f"{state_dir}/runs", 0o700)
    assert (code, err) == (66, f"harness: cannot use '{state_dir}/runs': Permission denied\n")


def test_doctor_says_which_origins_work_and_why(state_dir):
    code, out, err = call("doctor", PGSHARE_STATE_DIR=state_dir)
    assert (code, err) == (0, "")
    lines = dict(line.split(": ", 1) for line in out.splitlines())
    assert lines["external"] == "PGSHARE_DSN is not set"
    assert lines["container"] == "not available in this version"
    assert lines["state folder"] == f"{state_dir}, writable"
    assert lines["server runs as"]
    assert " GiB free)" in lines["data"]
    assert lines["left behind"] == "nothing"
    assert not os.listdir(f"{state_dir}/runs")


def test_doctor_of_an_external_server_starts_nothing(state_dir, live_dsn):
    code, out, _ = call("doctor", "--format", "json", PGSHARE_STATE_DIR=state_dir, PGSHARE_DSN=live_dsn)
    data = json.loads(out)
    assert (code, data["problems"]) == (0, [])
    assert data["origin"] == "external: PGSHARE_DSN is set"
    assert data["answered"].startswith("Postgres ")
    assert "started" not in data
    assert not os.path.exists(f"{state_dir}/runs")


def test_doctor_tells_all_it_can_when_the_server_does_not_answer(state_dir):
    code, out, err = call("doctor", PGSHARE_STATE_DIR=state_dir, PGSHARE_WAIT="0.05", PGSHARE_DSN="host=/nowhere")
    assert code == 69
    assert "origin: external: PGSHARE_DSN is set\n" in out
    assert "embedded: " in out
    assert err.startswith("harness: the server that PGSHARE_DSN names not ready after 0.")


def test_doctor_tells_all_it_can_when_the_setting_is_wrong(state_dir):
    code, out, err = call("doctor", PGSHARE_STATE_DIR=state_dir, PGSHARE_BIN="/nowhere")
    assert code == 78
    assert f"state folder: {state_dir}, writable\n" in out
    assert err.startswith("harness: PGSHARE_BIN='/nowhere' has no postgres")
    assert err.count("\n") == 1


def test_doctor_names_a_state_folder_that_is_none_once_and_writes_nowhere_else(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    code, out, err = call("doctor", PGSHARE_STATE_DIR=str(tmp_path / "file" / "x"))
    assert code == 78
    assert err.startswith("harness: cannot use")
    assert err.endswith("set PGSHARE_STATE_DIR to a folder of yours\n")
    assert err.count("\n") == 1
    assert "server runs as: " in out
    assert os.listdir() == []


def test_doctor_says_that_containers_come_later(state_dir):
    code, out, err = call("doctor", PGSHARE_STATE_DIR=state_dir, PGSHARE_CONTAINER="1")
    assert code == 69
    assert "origin: container: PGSHARE_CONTAINER asks for a container\n" in out
    assert "containers are not available in this version" in err


def test_doctor_where_there_are_no_programs(state_dir, monkeypatch):
    from pgshare import binaries

    monkeypatch.setattr(binaries, "list_binaries", lambda *_: [])
    monkeypatch.setattr(binaries, "find_binaries", _none)
    code, out, err = call("doctor", PGSHARE_STATE_DIR=state_dir)
    assert code == 69
    assert "embedded: no server programs found\n" in out
    assert err == "harness: no programs; install some\n"


def _none(*_, **__):
    from pgshare.errors import OriginUnavailableError

    raise OriginUnavailableError("no programs; install some")
