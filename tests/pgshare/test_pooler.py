"""A real PgBouncer in front: its DSN is refused by name, and nothing is made in public."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile

import psycopg
import pytest
from projects import until

import pgshare
from pgshare import conninfo
from pgshare.account import current_account
from pgshare.errors import SettingError
from pgshare.ports import free_ports
from pgshare.sweep import sweep

BOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
pytestmark = pytest.mark.skipif(BOUNCER is None, reason="pgbouncer is not installed (Debian: pgbouncer)")


@pytest.fixture(params=["session", "transaction"])
def pool_mode(request):
    return request.param


@pytest.fixture(params=["", "ignore_startup_parameters = options"], ids=["default", "ignoring"])
def pooled(request, pool_mode, own_server):
    """A DSN through PgBouncer."""
    parts = conninfo.parse(own_server.dsn, name="x")
    folder = tempfile.mkdtemp(prefix="pgsb", dir="/var/tmp")
    (port,) = free_ports(1)
    config = os.path.join(folder, "ini")
    with open(config, "w") as file:
        file.write(
            f"[databases]\n* = host={parts['host']} port={parts['port']} user=postgres password={parts['password']}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\nadmin_users = postgres\npool_mode = {pool_mode}\n"
            f"unix_socket_dir =\nlogfile = {folder}/log\npidfile = {folder}/pid\n{request.param}\n"
        )
    account = current_account()
    uid, gid = account.for_child
    if account.drop:
        for path in (folder, config):
            os.chown(path, account.uid, account.gid)
    with subprocess.Popen(
        [BOUNCER, config],
        user=uid,
        group=gid,
        extra_groups=[] if account.drop else None,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        dsn = conninfo.build({"host": "127.0.0.1", "port": str(port), "user": "postgres", "dbname": "postgres", "password": "x"})
        until("pgbouncer", lambda: answers(dsn))
        yield dsn
        process.terminate()
    shutil.rmtree(folder)


def answers(dsn):
    try:
        with psycopg.connect(dsn):
            return True
    except psycopg.OperationalError:
        return False


def public(own_server):
    with psycopg.connect(own_server.dsn) as conn:
        return conn.execute(
            "select count(*) filter (where relnamespace = 'public'::regnamespace), "
            "(select count(*) from pg_namespace where nspname like 'pgshare%') from pg_class"
        ).fetchone()


def test_a_pooler_is_refused_by_name_and_nothing_stays(pooled, own_server):
    before = public(own_server)
    with pytest.raises(SettingError) as caught, pgshare.isolated_schema(pooled) as schema, schema.connect() as conn:
        conn.execute("create table t (i int)")
    assert str(caught.value).startswith(
        "the DSN given to isolated_schema goes through a connection pooler; name the server itself (its direct host and port); "
    )
    assert "options" in str(caught.value) or "because the search_path was dropped on the way" in str(caught.value)
    assert public(own_server) == before


def test_a_sweep_refuses_to_go_through_it(pooled):
    with pytest.raises(SettingError, match="goes through a connection pooler"):
        sweep(pooled, apart=0)


@pytest.mark.parametrize("pooled", [""], ids=["default"], indirect=True)
def test_a_pooler_that_refuses_the_users_own_options_is_named_too(pooled):
    dsn = conninfo.build({**conninfo.parse(pooled, name="x"), "options": "-c work_mem=1MB"})
    said = r"goes through a connection pooler; .*; it said: .*startup parameter: options"
    with pytest.raises(SettingError, match=said), pgshare.isolated_schema(dsn):
        pass


@pytest.mark.parametrize("pooled", [""], ids=["default"], indirect=True)
def test_what_speaks_the_protocol_and_is_no_postgres_is_told_in_a_sentence(pooled):
    console = conninfo.build({**conninfo.parse(pooled, name="x"), "dbname": "pgbouncer"})
    said = "^the DSN given to isolated_schema: the server does not answer as Postgres does: .*; name a Postgres server$"
    with pytest.raises(SettingError, match=said), pgshare.isolated_schema(console):
        pass
