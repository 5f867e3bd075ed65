from __future__ import annotations

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict

from pgshare import conninfo
from pgshare.errors import SettingError

B01 = (
    "postgresql://u:p%40ss%2Fw%3Ard%25%20x@127.0.0.1:1,127.0.0.1:5432/db?target_session_attrs=read-write"
    "&application_name=my%20app&connect_timeout=3&options=-c%20statement_timeout%3D5s"
)
NASTY = "p@ss:w/rd#%25 é'\\"
VALUES = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), min_size=1, max_size=30)
PARTS = st.fixed_dictionaries(
    {"user": VALUES, "password": VALUES, "dbname": VALUES, "application_name": VALUES},
    optional={"options": VALUES, "connect_timeout": st.just("3"), "sslmode": st.sampled_from(["disable", "require"])},
)
HOSTS = st.sampled_from(["127.0.0.1", "::1", "db.example", "/run/x:y:z", "/tmp/with blank", "@abstract", "h1,h2"])


def same(base, dsn, *but):
    left, right = conninfo_to_dict(base), conninfo_to_dict(dsn)
    return {k: v for k, v in left.items() if k not in but} == {k: v for k, v in right.items() if k not in but}


def test_every_key_but_options_survives_a_search_path():
    dsn = conninfo.with_search_path(B01, ["s1"], name="PGSHARE_DSN", application_name="pgshare x")
    assert same(B01, dsn, "options")
    assert conninfo_to_dict(dsn)["options"] == '-c statement_timeout=5s -c search_path="s1"'


@given(PARTS, HOSTS)
@settings(max_examples=150, deadline=None)
def test_keyword_and_uri_forms_parse_back_to_the_same_parts(parts, host):
    full = {**parts, "host": host, "port": "5433"}
    assert conninfo.parse(conninfo.build(full), name="x") == full
    back = conninfo.parse(conninfo.to_uri(full), name="x")
    if host == "h1,h2":  # one port for all hosts is written at each
        assert back.pop("port") == "5433,5433"
        full.pop("port")
    assert back == full
    assert "+" not in conninfo.to_uri({**full, "user": "a b"})


@given(st.text(max_size=40))
def test_the_servers_splitting_undoes_our_escaping(text):
    assert conninfo.split_words(f"-c {conninfo.escape_word('x=' + text)}") == ["-c", "x=" + text]


@pytest.mark.parametrize(
    "taken",
    [
        "-c search_path=x",
        "-csearch_path=x",
        "--search_path=x",
        "--search-path=x",
        "-c SEARCH_PATH=x",
        "-c statement_timeout=1s -c search\\_path=x",
    ],
)
def test_a_search_path_in_options_is_refused_by_name(taken):
    with pytest.raises(SettingError) as caught:
        conninfo.with_search_path(f"host=h options='{conninfo_escape(taken)}'", ["s"], name="PGSHARE_DSN")
    assert str(caught.value) == (
        "PGSHARE_DSN (its options) already sets search_path; remove it there, or name the schemas in PGSHARE_SCHEMAS"
    )
    with pytest.raises(SettingError, match="^PGOPTIONS already sets search_path"):
        conninfo.with_search_path("host=h", ["s"], name="PGSHARE_DSN", pgoptions=taken)


def conninfo_escape(text):
    return text.replace("\\", "\\\\").replace("'", "\\'")


def test_settings_of_pgoptions_stay_in_force_unless_the_dsn_has_options():
    joined = conninfo.with_search_path("host=h", ["s"], name="x", pgoptions="-c work_mem=1MB")
    assert conninfo_to_dict(joined)["options"] == '-c work_mem=1MB -c search_path="s"'
    # libpq itself ignores PGOPTIONS then, so the outcome is the same as without us.
    own = conninfo.with_search_path("host=h options='-c a.b=1'", ["s"], name="x", pgoptions="-c work_mem=1MB")
    assert conninfo_to_dict(own)["options"] == '-c a.b=1 -c search_path="s"'


def test_the_users_application_name_stays():
    assert "application_name=mine" in conninfo.with_search_path("application_name=mine", ["s"], name="x", application_name="ours")
    assert (
        conninfo_to_dict(conninfo.with_search_path("host=h", ["s"], name="x", application_name="ours"))["application_name"]
        == "ours"
    )


@pytest.mark.parametrize("dsn", ["foo", "password=se cret word", "postgresql://u:sec%zzret@h/db", "host='unclosed secret"])
def test_a_dsn_that_does_not_parse_is_named_and_never_shown(dsn):
    with pytest.raises(SettingError) as caught:
        conninfo.parse(dsn, name="PGSHARE_DSN")
    assert str(caught.value).startswith("PGSHARE_DSN is not a connection string: ")
    assert "cret" not in str(caught.value)
    assert "word" not in str(caught.value).replace("password", "")
    assert "cret" not in conninfo.redact(dsn)


@given(PARTS)
def test_no_form_of_a_redacted_dsn_holds_the_password(parts):
    secret = "geheim" + parts["password"]
    full = {**parts, "password": secret, "sslpassword": secret}
    for dsn in (conninfo.build(full), conninfo.to_uri(full)):
        assert "geheim" not in conninfo.redact(dsn)


def test_pg_variables_fill_only_what_the_dsn_lacks():
    env = {"PGHOST": "fromenv", "PGPORT": "6", "PGUSER": "u", "PGOPTIONS": "-c a.b=1", "PGSSLMODE": "require", "PGDATABASE": ""}
    assert conninfo.fill_from_env({"host": "mine"}, env) == {"host": "mine", "port": "6", "user": "u", "sslmode": "require"}
    assert conninfo.fill_from_env({"service": "s"}, env) == {"service": "s"}
    assert conninfo.fill_from_env({}, {"PGSERVICE": "s", "PGHOST": "h"}) == {"service": "s"}


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 64, "é" * 32])
def test_a_name_that_the_server_would_cut_or_refuse_is_refused_first(name):
    with pytest.raises(SettingError, match="must have 1 to 63 bytes and no NUL"):
        conninfo.quote_ident(name)


@pytest.mark.parametrize("name", ["T B", 't"q', "t'q", "t\\b", "t,c", "tété", "x\t-c\tlog_statement=all", "a\n\v\f\rb"])
def test_any_schema_name_reaches_the_server_byte_for_byte(live_dsn, name):
    unique = f"pgs {name}"[:60]
    quoted = psycopg.sql.Identifier(unique)
    with psycopg.connect(live_dsn, autocommit=True) as admin:
        admin.execute(psycopg.sql.SQL("drop schema if exists {} cascade; create schema {}").format(quoted, quoted))
        try:
            for form in (conninfo.build, conninfo.to_uri):
                dsn = conninfo.with_search_path(live_dsn, [unique], name="x")
                with psycopg.connect(form(conninfo.parse(dsn, name="x"))) as conn:
                    row = conn.execute("select current_schema(), current_setting('log_statement')").fetchone()
                assert row == (unique, "none")
        finally:
            admin.execute(psycopg.sql.SQL("drop schema {} cascade").format(quoted))


def test_existing_options_and_the_search_path_both_hold(live_dsn):
    parts = conninfo.parse(live_dsn, name="x")
    dsn = conninfo.with_search_path(conninfo.build({**parts, "options": "-c statement_timeout=5s"}), ["pg_catalog"], name="x")
    with psycopg.connect(dsn) as conn:
        assert conn.execute("show statement_timeout").fetchone() == ("5s",)
        assert conn.execute("select current_schema()").fetchone() == ("pg_catalog",)


def test_a_nasty_password_and_database_connect_as_they_are(own_server):
    with psycopg.connect(own_server.dsn, autocommit=True) as admin:
        admin.execute(psycopg.sql.SQL("create role nasty login password {}").format(psycopg.sql.Literal(NASTY)))
        admin.execute('create database "my db" owner nasty')
        parts = {**conninfo.parse(own_server.dsn, name="x"), "user": "nasty", "password": NASTY, "dbname": "my db"}
        try:
            for form in (conninfo.build(parts), conninfo.to_uri(parts)):
                dsn = conninfo.with_search_path(form, ["public"], name="x")
                assert same(form, dsn, "options")
                with psycopg.connect(dsn) as conn:
                    assert conn.execute("select current_database()").fetchone() == ("my db",)
        finally:
            admin.execute('drop database "my db"')
            admin.execute("drop role nasty")


@pytest.mark.parametrize(
    "base",
    [
        "host=/run/x:y:z",
        "postgresql:///db?host=@/run/pg",
        "postgresql://%2Frun%2Fpg:5433/db",
        "postgresql://[::1]:5433/db",
        "host=h1,h2 port=5",
    ],
)
def test_hosts_and_socket_folders_survive(base):
    dsn = conninfo.with_search_path(base, ["s"], name="x")
    assert same(base, dsn, "options")
    assert conninfo_to_dict(conninfo.to_uri(conninfo_to_dict(dsn)))["host"] == conninfo_to_dict(base)["host"]


WAY_OUT = (
    "; write postgresql://user:password@host:5432/dbname (percent-encode special characters) or host=... user=... password='...'"
)
OF_ITS_OWN = "its user, password or database name has an '@' or '/' of its own, to be written %40 or %2F"


@pytest.mark.parametrize(
    ("dsn", "reason"),
    [
        ("postgresql://u:secret/2@h/db", OF_ITS_OWN),
        ("postgres://u:12/secret@h/db", OF_ITS_OWN),
        ("postgresql://u:p@secret@h/db", OF_ITS_OWN),
        ("postgresql://u:a?b@secret@h/db", "its host has an '@'; in a password that is written %40"),
        ("postgresql://u:secret?@h:x/db", "its port is not a number from 1 to 65535"),
        ("host=h port=tcp://172.17.0.3:5432 password=secret", "its port is not a number from 1 to 65535"),
        ("host=h port=65536", "its port is not a number from 1 to 65535"),
        ("host=h\0 password=secret", "it has a NUL, where libpq would stop reading"),
        ("host=h password=secret\udcff", "it is not UTF-8"),
        (
            "postgresql+psycopg://u:secret@h/db",
            "it is the URL of another library, and libpq knows neither 'jdbc:' nor a '+driver'",
        ),
        (
            "jdbc:postgresql://h/db?password=secret",
            "it is the URL of another library, and libpq knows neither 'jdbc:' nor a '+driver'",
        ),
    ],
)
def test_what_libpq_would_misread_is_refused_before_half_a_password_is_shown_as_a_host(dsn, reason):
    with pytest.raises(SettingError) as caught:
        conninfo.parse(dsn, name="PGSHARE_DSN")
    assert str(caught.value) == f"PGSHARE_DSN is not a connection string: {reason}{WAY_OUT}"
    assert conninfo.redact(dsn) == "<a connection string that does not parse>"


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u:a?b@h/db",
        "postgresql://h/db?user=me@tenant",
        "postgresql://me%40tenant:a%2Fb%40c@h/db%40x",
        "postgresql://h1:1,h2:2/db",
        "host=@abstract port=' 5432 '",
        "host=h1,h2,h3 port=1,,3",
        "service=s",
        "",
    ],
)
def test_what_libpq_reads_as_it_was_meant_is_read(dsn):
    assert conninfo.parse(dsn, name="x") == conninfo_to_dict(dsn)


@given(st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=40))
def test_the_words_of_existing_options_stay_and_ours_come_last(taken):
    if "search_path" in conninfo.settings_in(taken):
        return
    dsn = conninfo.with_search_path(conninfo.build({"options": taken}), ["T B\\"], name="x")
    words = conninfo.split_words(conninfo.parse(dsn, name="x")["options"])
    assert words == [*conninfo.split_words(taken), "-c", 'search_path="T B\\"']


@pytest.mark.parametrize("taken", ["-Oc search_path=x", "-ecsearch_path=x", "-c\tsearch_path=x", "-d 1 -c search_path=x"])
def test_a_search_path_behind_joined_switches_is_seen(taken):
    with pytest.raises(SettingError, match="already sets search_path"):
        conninfo.with_search_path(conninfo.build({"options": taken}), ["s"], name="x")


def test_the_value_of_a_switch_is_no_setting():
    assert list(conninfo.settings_in("-d -csearch_path=x -B 16 -c a.b=-csearch_path=y")) == ["a.b"]


def test_an_empty_password_and_an_address_with_a_zone_survive_in_a_uri():
    parts = {"user": "", "password": "", "host": "fe80::1%eth0", "port": "5432"}
    assert conninfo.parse(conninfo.to_uri(parts), name="x") == parts
