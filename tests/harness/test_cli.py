from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest

import pgshare
from harness.cli import main
from pgshare import conninfo
from pgshare.ports import free_ports


def call(*argv, **env):
    out, err = io.StringIO(), io.StringIO()
    code = main(argv, {"PATH": os.environ["PATH"], **env}, out, err)
    return code, out.getvalue(), err.getvalue()


def test_probe_says_what_the_server_is(live_dsn):
    code, out, err = call("pg", "probe", PGSHARE_DSN=live_dsn)
    assert code == 0
    assert out.startswith("Postgres ")
    assert "connections: " in out
    assert "tests can run against" in err
    password = conninfo.parse(live_dsn, name="x")["password"]
    assert password not in out + err
    code, out, _ = call("pg", "probe", "--dsn", live_dsn, "--format", "json")
    data = json.loads(out)
    assert (code, data["schema"], data["can_create"]) == (0, 1, True)


def test_without_a_server_the_exit_code_says_unavailable():
    code, out, err = call("pg", "probe", "--wait", "0.05", PGSHARE_DSN=f"host=127.0.0.1 port={free_ports(1)[0]}")
    assert (code, out) == (69, "")
    assert err.startswith("harness: the server that PGSHARE_DSN names not ready after")


@pytest.mark.parametrize("verb", ["probe", "schemas", "sweep", "url"])
def test_without_a_dsn_the_setting_is_named(verb):
    assert call("pg", verb) == (78, "", "harness: no server is named; set PGSHARE_DSN, or pass --dsn\n")


def test_schemas_lists_what_is_marked(live_dsn):
    with pgshare.isolated_schema(live_dsn, test="t::listed") as schema:
        _, out, _ = call("pg", "schemas", "--dsn", live_dsn)
        assert [line for line in out.splitlines() if schema.name in line and "alive" in line and "t::listed" in line]
        _, out, _ = call("pg", "schemas", "--dsn", live_dsn, "--format", "json")
        (item,) = [item for item in json.loads(out)["items"] if item["name"] == schema.name]
        assert (item["kind"], item["test"], item["alive"]) == ("schema", "t::listed", True)


def test_sweep_reports_what_it_would_drop(live_dsn):
    code, out, err = call("pg", "sweep", "--dry-run", "--apart", "0", "--dsn", live_dsn)
    assert (code, err) == (0, "0 found, 0 kept\n")
    assert (
        call("pg", "sweep", "--apart", "0", "--format", "json", "--dsn", live_dsn)[1]
        == '{"schema": 1, "dropped": [], "kept": []}\n'
    )
    assert out == ""


def test_url_gives_every_form(live_dsn):
    code, out, _ = call("pg", "url", PGSHARE_DSN=live_dsn)
    assert code == 0
    assert conninfo.parse(out.strip(), name="x") == conninfo.parse(live_dsn, name="x")
    assert call("pg", "url", "--as", "sqlalchemy", PGSHARE_DSN=live_dsn)[1].startswith("postgresql+psycopg://")
    code, _, err = call("pg", "url", "--as", "jdbc", PGSHARE_DSN=live_dsn)
    assert code == 78
    assert "unknown driver 'jdbc'" in err


def test_an_unknown_kept_schema_names_the_known(state_dir):
    code, out, err = call("pg", "url", "pgshare_x", PGSHARE_STATE_DIR=state_dir)
    assert (code, out) == (66, "")
    assert err == "harness: no kept schema is called 'pgshare_x'; kept: none (run the tests with --pg-keep failed)\n"


def test_ps_and_reap_on_an_empty_machine(state_dir):
    assert call("ps", PGSHARE_STATE_DIR=state_dir) == (0, "", "no runs\n")
    assert call("ps", "--format", "json", PGSHARE_STATE_DIR=state_dir) == (0, '{"schema": 1, "runs": []}\n', "")
    assert call("reap", PGSHARE_STATE_DIR=state_dir) == (0, "", "")


def test_a_living_run_is_listed_and_never_reaped(state_dir):
    from pgshare.settings import Settings

    with pgshare.suite_postgres(settings=Settings(state_dir=state_dir)) as server:
        _, out, _ = call("ps", "--format", "json", PGSHARE_STATE_DIR=state_dir)
        (run,) = json.loads(out)["runs"]
        assert run["state"] == "alive"
        assert "process postgres" in run["holds"]
        assert call("reap", PGSHARE_STATE_DIR=state_dir)[0] == 0
        code, _, err = call("reap", "--run", run["run"], PGSHARE_STATE_DIR=state_dir)
        assert (code, err) == (1, f"run {run['run']} is alive; stop its tests first\n")
        assert os.path.exists(f"/proc/{server.pid}")


def plant(state_dir, run_id, boot, pid):
    from pgshare.run import Run

    run = Run(id=run_id, folder=f"{state_dir}/runs/{run_id}", sockets=f"{state_dir}/runs/{run_id}", controller=(boot, pid, 1))
    run.make_folders()
    return run


def test_dead_runs_go_unknown_ones_stay_and_foreign_folders_are_not_looked_at(state_dir):
    from pgshare import child

    here = child.boot_id()
    plant(state_dir, "aaaa_00000001", "another-boot/pid:[1]", 99)
    unknown = plant(state_dir, "aaaa_00000002", here.partition("/")[0] + "/pid:[1]", 99)
    os.mkdir(f"{state_dir}/runs/somebodys")
    _, out, _ = call("ps", "--all", PGSHARE_STATE_DIR=state_dir)
    assert [line.split()[:2] for line in out.splitlines()] == [["aaaa_00000001", "dead"], ["aaaa_00000002", "unknown"]]
    assert "would remove run aaaa_00000001" in call("reap", "--dry-run", PGSHARE_STATE_DIR=state_dir)[1]
    code, _, err = call("reap", PGSHARE_STATE_DIR=state_dir)
    assert (code, err) == (1, "run aaaa_00000002: cannot tell whether its owner is alive, left alone\n")
    assert sorted(os.listdir(f"{state_dir}/runs")) == ["aaaa_00000002", "somebodys"]
    assert os.path.exists(unknown.folder)


def test_doctor_starts_a_server_and_leaves_nothing(state_dir):
    code, out, _ = call("doctor", PGSHARE_STATE_DIR=state_dir)
    assert code == 0
    assert "origin: embedded: no DSN is set and server binaries are here" in out
    assert "started: Postgres " in out
    assert "left behind: nothing" in out
    code, out, _ = call("doctor", "--format", "json", PGSHARE_STATE_DIR=state_dir, PATH="/nowhere")
    assert (code, json.loads(out)["schema"]) == (0, 1)


def test_usage_errors_list_the_known_and_exit_with_2():
    code, _, err = call("dance")
    assert (code, "invalid choice: 'dance'" in err, "doctor" in err) == (2, True, True)
    assert call()[0] == 2


def test_the_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "harness", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("harness (pgshare ")
