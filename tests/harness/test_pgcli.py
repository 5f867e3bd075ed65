from __future__ import annotations

import io
import json
import os
import time

import psycopg
import pytest
from psycopg import sql

import pgshare
from harness.cli import main
from pgshare import conninfo, mark
from pgshare.ports import free_ports
from pgshare.run import Run


def call(*argv, **env):
    out, err = io.StringIO(), io.StringIO()
    code = main(argv, {"PATH": os.environ["PATH"], **env}, out, err)
    return code, out.getvalue(), err.getvalue()


@pytest.fixture
def weak_dsn(live_dsn):
    """The DSN of a role that may do nothing, its name, and the database."""
    name = Run.new().name("weak")
    with psycopg.connect(live_dsn, autocommit=True) as conn:
        database = conn.execute("select quote_ident(current_database())").fetchone()[0]
        conn.execute(f"create role {name} login password 'x'")
        yield conninfo.build({**conninfo.parse(live_dsn, name="x"), "user": name, "password": "x"}), name, database
        conn.execute(f"drop role {name}")


def test_probe_says_what_the_role_may(live_dsn):
    code, out, _ = call("pg", "probe", PGSHARE_DSN=live_dsn)
    assert code == 0
    assert "\nmay create schemas: yes, databases (pg_database): yes\n" in out
    data = json.loads(call("pg", "probe", "--format", "json", PGSHARE_DSN=live_dsn)[1])
    assert (data["can_create"], data["can_create_databases"]) == (True, True)


def test_probe_says_what_a_weak_role_lacks_and_the_grant(weak_dsn):
    dsn, name, database = weak_dsn
    code, out, err = call("pg", "probe", PGSHARE_DSN=dsn)
    assert code == 78
    assert "\nmay create schemas: no, databases (pg_database): no\n" in out
    assert err.rstrip().endswith(f'run: GRANT CREATE ON DATABASE "{database}" TO "{name}"')


@pytest.mark.parametrize("words", [("probe",), ("schemas",), ("sweep", "--dry-run")])
def test_a_server_that_does_not_answer_is_waited_for_as_long_as_was_asked(words):
    began = time.monotonic()
    code, out, err = call("pg", *words, "--wait", "0.05s", PGSHARE_DSN=f"host=127.0.0.1 port={free_ports(1)[0]}")
    assert (code, out) == (69, "")
    assert err.startswith("harness: the server that PGSHARE_DSN names not ready after 0.")
    assert time.monotonic() - began < 8  # deadline: not the 10 s of a connection slot


@pytest.mark.parametrize("words", [("probe",), ("schemas",), ("sweep", "--dry-run")])
def test_a_wrong_password_ends_at_once(live_dsn, words):
    parts = {**conninfo.parse(live_dsn, name="x"), "password": "se cret"}
    code, out, err = call("pg", *words, "--dsn", conninfo.build(parts), "--wait", "60")
    assert (code, out) == (78, "")
    assert "password authentication failed" in err
    assert "se cret" not in err


def plant(dsn, run_id, *, age, test):
    """A schema as a run that died ``age`` seconds ago left it."""
    run = Run(id=run_id, folder="/nowhere", sockets="/nowhere", controller=("", 0, 0))
    name = run.name()
    found = mark.Mark(run=run_id, worker="main", test=test, at=int(time.time() - age))
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(f"create schema {name}")
        conn.execute(sql.SQL("comment on schema {} is {}").format(sql.Identifier(name), found.text()))
    return name


@pytest.fixture
def apart_dsn(pg_database):
    """A database of this test alone: what is planted here is not swept by a test beside it, nor counted."""
    return pg_database.dsn


def test_what_a_dead_run_left_is_listed_and_swept(apart_dsn):
    run_id = f"ffff_{os.urandom(4).hex()}"
    name = plant(apart_dsn, run_id, age=7200, test="t::died")
    try:
        _, out, _ = call("pg", "schemas", "--dsn", apart_dsn)
        (line,) = [line for line in out.splitlines() if name in line]
        assert line == f"schema {name}  dead  {line.split()[3]}  t::died"
        data = json.loads(call("pg", "schemas", "--dsn", apart_dsn, "--format", "json")[1])
        (item,) = [item for item in data["items"] if item["name"] == name]
        assert (item["run"], item["alive"]) == (run_id, False)
        assert item["age"] >= 7200
        assert name not in call("pg", "sweep", "--dry-run", "--apart", "0", "--min-age", "3h", "--dsn", apart_dsn)[1]
        code, out, _ = call("pg", "sweep", "--dry-run", "--apart", "0", "--min-age", "1h", "--dsn", apart_dsn)
        assert (code, f"would drop schema {name}  t::died" in out) == (0, True)
    finally:
        code, out, _ = call("pg", "sweep", "--apart", "0", "--min-age", "1h", "--dsn", apart_dsn)
    assert (code, f"dropped schema {name}  t::died" in out) == (0, True)
    with psycopg.connect(apart_dsn) as conn:
        assert conn.execute("select to_regnamespace(%s)", [name]).fetchone() == (None,)


def test_what_cannot_be_dropped_stays_and_is_the_exit_code(apart_dsn):
    name = plant(apart_dsn, f"fffe_{os.urandom(4).hex()}", age=7200, test="t::held")
    with psycopg.connect(apart_dsn) as holder:
        holder.execute(f"create table {name}.t (x int)")
        holder.commit()
        holder.execute(f"lock table {name}.t")
        code, out, err = call("pg", "sweep", "--apart", "0", "--min-age", "1h", "--dsn", apart_dsn)
        assert code == 1
        assert f"kept schema {name}: canceling statement due to lock timeout" in out
        assert err.endswith(" kept\n")
    assert call("pg", "sweep", "--apart", "0", "--min-age", "1h", "--dsn", apart_dsn)[0] == 0


def kept_record(state_dir, text):
    run = Run.new(state_dir)
    run.make_folders()
    folder = os.path.join(run.folder, "kept")
    os.mkdir(folder, 0o700)
    with open(os.path.join(folder, "pgshare_x.json"), "w", encoding="utf-8") as file:
        file.write(text)
    return folder


def test_url_prints_the_dsn_of_a_kept_schema_and_nothing_else(state_dir):
    dsn = "host=/s user=u password='p w' dbname=d options='-c search_path=pgshare_x'"
    kept_record(state_dir, json.dumps({"name": "pgshare_x", "dsn": dsn}))
    code, out, err = call("pg", "url", "pgshare_x", PGSHARE_STATE_DIR=state_dir)
    assert (code, err) == (0, "")
    assert conninfo.parse(out.strip(), name="x") == conninfo.parse(dsn, name="x")
    assert call("pg", "url", "pgshare_x", "--as", "asyncpg", PGSHARE_STATE_DIR=state_dir)[1].startswith("postgresql://")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"name": "pgshare_x"}'])
def test_a_kept_record_that_cannot_be_read_is_malformed_data(state_dir, text):
    folder = kept_record(state_dir, text)
    code, out, err = call("pg", "url", "pgshare_x", PGSHARE_STATE_DIR=state_dir)
    assert (code, out) == (65, "")
    assert err.startswith(f"harness: a record of a kept schema below {os.path.dirname(os.path.dirname(folder))} cannot be read")


def test_only_url_prints_a_password(live_dsn):
    password = conninfo.parse(live_dsn, name="x")["password"]
    with pgshare.isolated_schema(live_dsn, test="t::secret"):
        for words in (("probe",), ("schemas",), ("sweep", "--dry-run", "--apart", "0")):
            for form in ("text", "json"):
                _, out, err = call("pg", *words, "--format", form, "--dsn", live_dsn)
                assert password not in out + err
    assert conninfo.parse(call("pg", "url", "--dsn", live_dsn)[1].strip(), name="x")["password"] == password
