from __future__ import annotations

import subprocess
import sys
import time

import psycopg
import pytest

from pgshare import conninfo, database, sweep
from pgshare.mark import LOCK_CLASS, Mark, lock_key, read_mark
from pgshare.run import Run
from pgshare.schema import SchemaFactory
from pgshare.settings import Settings

MAKER = (
    "import sys; from pgshare import database; from pgshare.acquire import acquire; from pgshare.run import Run\n"
    "from pgshare.schema import SchemaFactory; from pgshare.settings import Settings\n"
    "run = Run.new(); s = Settings(dsn=sys.argv[1]); pg = acquire(run, s).postgres; f = SchemaFactory(pg, run, s)\n"
    "names = [f.create('t::x').name for _ in range(3)]\n"
    "names.append(database.create(f.admin, pg.dsn, run, 't::db', version_num=pg.version_num).name)\n"
    "print(run.id, *names, flush=True); sys.stdin.read()\n"
)


@pytest.fixture
def maker(own_server):
    with subprocess.Popen(
        [sys.executable, "-c", MAKER, own_server.dsn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        run, *names = process.stdout.readline().split()
        yield process, run, names
        process.kill()


def kill(process, own_server):
    """Kill the maker and wait until the server has noticed."""
    from projects import until

    process.kill()
    process.wait()
    with psycopg.connect(own_server.dsn, autocommit=True) as conn:
        until("its sessions' end", lambda: not conn.execute(
            "select 1 from pg_stat_activity where application_name like 'pgshare%%main admin' and pid <> pg_backend_pid() "
            "and application_name like %s", [f"%{process_run(process)}%"]).fetchone())  # fmt: skip


def end(factory, own_server):
    """Close the maker's session and wait until the server has noticed."""
    from projects import until

    pid = factory.admin.conn.info.backend_pid
    factory.close()
    with psycopg.connect(own_server.dsn, autocommit=True) as conn:
        until("its session's end", lambda: not conn.execute("select 1 from pg_stat_activity where pid = %s", [pid]).fetchone())


def process_run(process):
    return getattr(process, "run_id", "")


def names_there(own_server):
    with psycopg.connect(own_server.dsn) as conn:
        return {row[0] for row in conn.execute("select nspname from pg_namespace union all select datname from pg_database")}


def test_what_a_killed_process_left_is_swept_and_nothing_else(maker, own_server):
    process, run, names = maker
    process.run_id = run
    look = f"pgshare_{run}_main_99"
    mark = Mark.now(run, "main", "t").text()
    decoys = ["test_customer", "t_1_2", look]
    living = SchemaFactory(own_server, Run.new(), Settings())
    alive = living.create("t::alive")
    with psycopg.connect(own_server.dsn, autocommit=True) as admin:
        for decoy in decoys:
            admin.execute(f'create schema "{decoy}"')
        admin.execute("create database second")
        # A mark copied by hand onto something that the run cannot have named.
        admin.execute(f"comment on schema test_customer is '{mark}'")
        admin.execute("create table public.users (i int)")
        try:
            assert sweep.sweep(own_server.dsn, apart=0.0, min_age=0.0).dropped == []  # its run is alive
            kill(process, own_server)
            dry = sweep.sweep(own_server.dsn, apart=0.0, min_age=0.0, dry_run=True)
            assert sorted(item.name for item in dry.dropped) == sorted(names)
            assert set(names) <= names_there(own_server)
            assert sweep.sweep(own_server.dsn, apart=0.0, min_age=600).dropped == []  # too young
            report = sweep.sweep(own_server.dsn, apart=0.05, min_age=0.0, limit=2)
            assert len(report.dropped) == 2
            report = sweep.sweep(own_server.dsn, apart=0.05, min_age=0.0)
            assert len(report.dropped) == 2
            left = names_there(own_server)
            assert not set(names) & left
            assert {*decoys, "second", "public", alive.name} <= left
            assert admin.execute("select to_regclass('public.users')").fetchone()[0]
        finally:
            for decoy in decoys:
                admin.execute(f'drop schema if exists "{decoy}"')
            admin.execute("drop database second")
            admin.execute("drop table public.users")
    living.drop(alive)
    living.close()


def test_the_next_run_sweeps_what_an_earlier_one_saw_dead(maker, own_server, tmp_path, monkeypatch):
    process, run, names = maker
    process.run_id = run
    kill(process, own_server)
    seen = str(tmp_path / "seen")
    monkeypatch.setattr(sweep, "MIN_AGE", 0.0)
    with psycopg.connect(own_server.dsn, autocommit=True) as admin:
        assert sweep.sweep_seen_before(admin, seen).dropped == []  # the first look
        assert sweep.sweep_seen_before(admin, seen).dropped == []  # too soon for a second one
        monkeypatch.setattr(sweep, "APART", 0.0)
        assert {item.name for item in sweep.sweep_seen_before(admin, seen).dropped} == set(names)
    assert not set(names) & names_there(own_server)


def test_liveness_is_read_with_the_runs_own_lock(own_server):
    factory = SchemaFactory(own_server, Run.new(), Settings())
    schema = factory.create("t")
    with psycopg.connect(own_server.dsn, autocommit=True) as conn:
        (item,) = [item for item in sweep.look(conn) if item.name == schema.name]
        assert item.alive
        held = conn.execute("select count(*) from pg_locks where locktype = 'advisory' and classid = %s", [LOCK_CLASS]).fetchone()
        assert held[0] >= 1
        # A test that takes every key it likes cannot look like us: another class.
        conn.execute("select pg_advisory_lock(%s), pg_advisory_lock(1, %s)", [lock_key(item.mark.run), lock_key(item.mark.run)])
        factory.close()
        from projects import until

        until("a dead run", lambda: not [found for found in sweep.look(conn) if found.name == schema.name][0].alive)  # noqa: RUF015
    report = sweep.sweep(own_server.dsn, apart=0.0, min_age=0.0, only_run=item.mark.run)
    assert [found.name for found in report.dropped] == [schema.name]


def test_what_is_locked_stays_and_is_reported(own_server):
    factory = SchemaFactory(own_server, Run.new(), Settings())
    schema = factory.create("t")
    with psycopg.connect(conninfo.build({**conninfo.parse(schema.dsn, name="x"), "application_name": "holder"})) as holder:
        holder.execute("create table t (i int)")
        holder.commit()
        holder.execute("lock table t")
        end(factory, own_server)
        run = schema.name.removeprefix("pgshare_")[:13]
        report = sweep.sweep(own_server.dsn, apart=0.1, min_age=0.0, only_run=run)
        assert [(item.name, reason.split(" due")[0]) for item, reason in report.kept] == [(schema.name, "canceling statement")]
    assert len(sweep.sweep(own_server.dsn, apart=0.0, min_age=0.0, only_run=run).dropped) == 1


@pytest.mark.parametrize(
    "comment",
    [
        None,
        "",
        "pgshare",
        "pgshare {",
        "pgshare []",
        'pgshare {"v":2}',
        "pgshare 3",
        'pgshare {"v":1,"run":1,"worker":"w","test":"t","at":1}',
        "my table",
    ],
)
def test_what_is_not_exactly_our_mark_is_nobodys(comment):
    assert read_mark(comment) is None


def test_a_mark_reads_back_whatever_the_test_is_called():
    mark = Mark.now("ab_1", "gw0", "t::[é☃'\"\\]\0")
    assert mark.text().isascii()
    assert read_mark(mark.text()) == read_mark(mark.text().encode()) == mark
    assert abs(mark.at - time.time()) < 60
    assert -(1 << 31) <= lock_key("ab_1") < 1 << 31


def test_what_is_held_for_a_look_is_spared_unless_asked_for_by_its_run(own_server):
    run = Run.new()
    factory = SchemaFactory(own_server, run, Settings())
    held, other = factory.create("t::held"), factory.create("t::other")
    whole = database.create(factory.admin, own_server.dsn, run, "t::whole", version_num=own_server.version_num)
    for kept in (held, whole):
        sweep.hold(factory.admin.conn, kept.name, 3600.0)
    end(factory, own_server)
    swept = sweep.sweep(own_server.dsn, apart=0.05, min_age=0.001)
    assert [item.name for item in swept.dropped if item.mark.run == run.id] == [other.name]
    asked = sweep.sweep(own_server.dsn, apart=0.05, min_age=0.0, only_run=run.id)
    assert {item.name for item in asked.dropped} == {held.name, whole.name}


def test_two_thousand_leftovers_are_swept_in_bounded_steps(own_server, tmp_path, monkeypatch):
    run = Run.new()
    mark = Mark(run.id, "main", "t::x", int(time.time()) - 3600).text()
    with psycopg.connect(own_server.dsn, autocommit=True) as admin:
        for begin in range(0, 2000, 100):
            admin.execute(
                "; ".join(
                    f"create schema pgshare_{run.id}_main_{n}; comment on schema pgshare_{run.id}_main_{n} is '{mark}'"
                    for n in range(begin, begin + 100)
                )
            )
        monkeypatch.setattr(sweep, "APART", 0.0)
        hurried = sweep.sweep_seen_before(admin, str(tmp_path / "seen"), budget=0.0)
        assert (hurried.dropped, hurried.left) == ([], 2000)
        first = sweep.sweep_seen_before(admin, str(tmp_path / "seen"))
        assert first.dropped
        assert len(first.dropped) + first.left == 2000
        assert first.took < 10  # the limit is the subject: somebody waits for the end of their run
        rest = sweep.sweep(own_server.dsn, apart=0.0, min_age=0.0, limit=2000, only_run=run.id)
        assert (len(rest.dropped), rest.left, rest.kept) == (first.left, 0, [])
        assert rest.took < 60


def test_a_kept_schema_on_a_server_that_others_use_is_held_for_an_hour(project, own_server):
    project.write(test_a="def test_a(pg_dsn): assert False\ndef test_b(pg_database): assert False\n")
    before = names_there(own_server)
    result = project.run("--pg-keep", "failed", PGSHARE_DSN=own_server.dsn)
    kept = names_there(own_server) - before
    assert len(kept) == 2, result.out
    with psycopg.connect(own_server.dsn, autocommit=True) as conn:
        for item in sweep.look(conn):
            if item.name in kept:
                assert item.mark.at > time.time() + 3000
                run = item.mark.run
    sweep.sweep(own_server.dsn, apart=0.0, min_age=0.0, only_run=run)
    assert not kept & names_there(own_server)
