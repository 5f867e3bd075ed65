"""What one schema cannot isolate: each limit pinned, so that the documentation stays true."""

from __future__ import annotations

import psycopg
import pytest

from pgshare import census


@pytest.fixture
def two(pg_schema, pg_server):
    """This test's schema and another one on the same server."""
    import pgshare

    with pgshare.isolated_schema(pg_server.dsn) as other:
        yield pg_schema, other


def test_notifications_cross_schemas_unless_the_channel_is_the_tests_own(two):
    mine, other = two
    with mine.connect(autocommit=True) as listener, other.connect(autocommit=True) as sender:
        listener.execute("listen ch")
        listener.execute(psycopg.sql.SQL("listen {}").format(psycopg.sql.Identifier(mine.channel("ch"))))
        sender.execute("notify ch, 'crossed'")
        sender.execute("select pg_notify(%s, 'not mine')", [other.channel("ch")])
        sender.execute("select pg_notify(%s, 'mine')", [mine.channel("ch")])
        got = list(listener.notifies(timeout=20, stop_after=2))
    assert [(note.channel, note.payload) for note in got] == [("ch", "crossed"), (mine.channel("ch"), "mine")]


def test_advisory_locks_cross_schemas_and_cannot_stall_us(two, pg_server):
    import pgshare

    mine, other = two
    with mine.connect(autocommit=True) as holder, other.connect(autocommit=True) as asker:
        holder.execute("select pg_advisory_lock(7)")
        assert asker.execute("select pg_try_advisory_lock(7)").fetchone() == (False,)
        with pgshare.isolated_schema(pg_server.dsn) as third, third.connect() as conn:
            assert conn.execute("select 1").fetchone() == (1,)


def test_roles_and_large_objects_outlive_the_schema_and_are_listed(own_server):
    import pgshare

    with psycopg.connect(own_server.dsn, autocommit=True) as admin:
        before = census.take(admin)
        with pgshare.isolated_schema(own_server.dsn) as schema, schema.connect(autocommit=True) as conn:
            conn.execute("create role left_role")
            oid = conn.execute("select lo_create(0)").fetchone()[0]
            conn.execute("create publication left_pub")
            conn.execute("create function f() returns event_trigger language plpgsql as 'begin end'")
            conn.execute("create event trigger goes_with_its_function on ddl_command_start execute function f()")
        assert census.added(before, census.take(admin)) == [f"large object {oid}", "publication left_pub", "role left_role"]
        admin.execute(f"drop role left_role; drop publication left_pub; select lo_unlink({oid})")


def test_what_appears_in_public_during_a_test_is_listed(own_server):
    """A dump's script, which names public and empties the path, leaves its session outside and its table in public."""
    import pgshare

    with psycopg.connect(own_server.dsn, autocommit=True) as admin:
        before = census.take(admin)
        with pgshare.isolated_schema(own_server.dsn) as schema, schema.connect(autocommit=True) as conn:
            conn.execute("select pg_catalog.set_config('search_path', '', false); create table public.dumped (i serial)")
            with pytest.raises(psycopg.errors.UndefinedTable):
                conn.execute("select * from dumped")
            conn.execute("discard all")
            assert conn.execute("select current_schema()").fetchone() == (schema.name,)
        try:
            assert census.added(before, census.take(admin)) == ["relation dumped in public", "relation dumped_i_seq in public"]
        finally:
            admin.execute("drop table public.dumped")


def test_a_type_made_again_has_another_oid_and_we_register_nothing_globally(two):
    from psycopg.types.enum import EnumInfo, register_enum

    oids = []
    for schema in two:
        with schema.connect() as conn:
            conn.execute("create type mood as enum ('ok')")
            info = EnumInfo.fetch(conn, "mood")
            register_enum(info, conn)  # per connection, as the documentation shows
            oids.append(info.oid)
            assert conn.execute("select 'ok'::mood").fetchone()[0].name == "ok"
    assert oids[0] != oids[1]
    for oid in oids:
        assert psycopg.adapters.types.get(oid) is None
