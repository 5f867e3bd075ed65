"""Wrong set-ups that people make: one sentence that names the setting and the way out, the right exit code, no traceback, soon.

Each output is also looked up in docs/troubleshooting.md, so that the page shows what people see.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time

import psycopg
import pytest
from recipes import find_shown

from pgshare import conninfo
from pgshare.ports import free_ports

ONE = "def test_a(pg_conn): pass\n"
SOON = 3.0  # seconds: the limit is the subject here


def check(result, message, *, code=1):
    assert result.code == code, result.out
    assert message in re.sub(r"\s+", " ", result.out.replace("\nE  ", " ")), result.out
    assert find_shown(result.out), "no row of docs/troubleshooting.md shows this"
    assert "Traceback" not in result.out
    assert not re.search(r"pgshare/\w+\.py", result.out)
    assert "During handling" not in result.out
    assert seconds(result) < SOON, result.out


def seconds(result):
    """pytest's own time for the session; without a session, the process's time over that of a pytest that does nothing."""
    said = re.search(r" in (\d+\.\d+)s ", result.out)
    if said:
        return float(said.group(1))
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "pytest", "--version"], check=True, capture_output=True)
    return result.seconds - (time.monotonic() - began)


def changed(dsn, **parts):
    return conninfo.build({**conninfo.parse(dsn, name="x"), **parts})


def where(dsn):
    parts = conninfo.parse(dsn, name="x")
    if parts["host"].startswith("/"):
        return f'connection to server on socket "{parts["host"]}/.s.PGSQL.{parts["port"]}" failed'
    return f'connection to server at "{parts["host"]}"'


def test_01_a_wrong_password(project, own_server):
    result = project.write(test_a=ONE).run(PGSHARE_DSN=changed(own_server.dsn, password="wrong"))
    check(
        result,
        f"PGSHARE_DSN: the server refused the connection: {where(own_server.dsn)}: "
        'FATAL: password authentication failed for user "postgres"',
    )


def test_02_a_missing_database(project, own_server):
    result = project.write(test_a=ONE).run(PGSHARE_DSN=changed(own_server.dsn, dbname="nope"))
    check(result, f'PGSHARE_DSN: the server refused the connection: {where(own_server.dsn)}: FATAL: database "nope" does not exist')


def test_03_a_closed_port(project):
    (port,) = free_ports(1)
    result = project.write(test_a=ONE).run("--pg-dsn", f"host=127.0.0.1 port={port}", "--pg-wait", "0.2")
    check(result, "the server that --pg-dsn names not ready after 0.")
    check(result, f'last seen: connection to server at "127.0.0.1", port {port} failed: Connection refused')


def test_04_a_host_that_does_not_resolve(project):
    result = project.write(test_a=ONE).run("--pg-wait", "0.2", PGSHARE_DSN="postgresql://nope.invalid/db")
    check(result, "the server that PGSHARE_DSN names not ready after 0.")
    check(result, "last seen: failed to resolve host 'nope.invalid'")


def test_05_a_role_that_may_not_create_schemas(project, own_server):
    with psycopg.connect(own_server.dsn, autocommit=True) as admin:
        admin.execute("create role reader login password 'reader'")
        try:
            result = project.write(test_a=ONE).run(PGSHARE_DSN=changed(own_server.dsn, user="reader", password="reader"))
        finally:
            admin.execute("drop role reader")
    check(
        result,
        "PGSHARE_DSN: role 'reader' may not create schemas in database 'postgres'; run: "
        'GRANT CREATE ON DATABASE "postgres" TO "reader"',
    )


def test_06_a_dsn_that_does_not_parse(project):
    result = project.write(test_a=ONE).run(PGSHARE_DSN="localhost:5432 secret")
    check(
        result,
        'PGSHARE_DSN is not a connection string: missing "..." after "..." in connection info string; '
        "write postgresql://user:password@host:5432/dbname (percent-encode special characters) or host=... user=... password='...'",
    )
    assert "secret" not in result.out


def test_07_a_search_path_in_the_dsn(project, own_server):
    result = project.write(test_a=ONE).run(PGSHARE_DSN=changed(own_server.dsn, options="-c search_path=mine"))
    check(result, "PGSHARE_DSN (its options) already sets search_path; remove it there, or name the schemas in PGSHARE_SCHEMAS")


def test_08_a_folder_without_server_programs(project):
    result = project.write(test_a=ONE).run("--pg-bin", "/usr/nowhere")
    check(
        result,
        "--pg-bin='/usr/nowhere' has no postgres and no initdb; name the folder that holds the server's programs, or unset it",
    )


def test_09_no_server_at_all_where_one_is_required(project):
    nothing = "import pgshare.binaries as b\nb.DISTRIBUTION = b.WHEELS = ()\n"
    result = project.write(test_a=ONE, conftest=nothing).run("--pg-require", PATH="/nowhere")
    check(
        result,
        "no Postgres server binaries found; set PGSHARE_DSN to a server, or pip install 'pgshare[embedded]' (required by --pg-require)",
    )


def test_10_a_value_that_is_no_number(project):
    result = project.write(test_a=ONE).run(PGSHARE_WAIT="soon")
    check(result, "ERROR: pgshare: PGSHARE_WAIT must be a number of seconds, 0 or more, got 'soon'", code=4)


def test_11_an_unknown_key(project):
    result = project.write(test_a=ONE, pyproject="[tool.pgshare]\nrequired = true\n").run()
    check(result, "ERROR: pgshare: [tool.pgshare] has an unknown key 'required'; did you mean require?", code=4)


def test_12_an_unknown_variable(project):
    check(
        project.write(test_a=ONE).run(PGSHARE_DNS="x"),
        "ERROR: pgshare: the environment has an unknown variable PGSHARE_DNS; did you mean PGSHARE_DSN?",
        code=4,
    )


def test_13_a_migration_that_is_not_there(project):
    result = project.write(test_a=ONE).run("-o", "pg_migrate=my.migrations:run")
    check(result, "pg_migrate='my.migrations:run': there is no module 'my'; correct it, or add its folder to pythonpath")


def test_14_a_container_is_not_available_yet(project):
    result = project.write(test_a=ONE).run("--pg-container", "--pg-require")
    check(
        result,
        "--pg-container asks for a container, and containers are not available in this version; leave it out, or set PGSHARE_DSN "
        "(required by --pg-require)",
    )


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one", "xdist"])
def test_a_bad_setting_is_said_once_before_any_worker_starts(project, workers):
    result = project.write(test_a=ONE).run(*workers, PGSHARE_KEEP="some")
    assert result.code == 4, result.out
    assert result.out.count("PGSHARE_KEEP must be one of never, failed, always, got 'some'") == 1
