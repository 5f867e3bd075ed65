"""pytest's side of pgshare: hooks and fixtures that parse, call and translate; no logic of their own."""

from __future__ import annotations

import contextlib
import warnings
from operator import methodcaller
from typing import TYPE_CHECKING

import pytest

from pgshare import plain
from pgshare.errors import OriginUnavailableError, PgshareError, SettingError, TemplateError
from pgshare.settings import OPTIONS, read_table, resolve_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    import psycopg

    from pgshare.aconn import AsyncConnection
    from pgshare.database import Database
    from pgshare.live import Live
    from pgshare.report import Notes
    from pgshare.schema import Schema
    from pgshare.suite import Postgres

PG_FIXTURES = frozenset(("pg_server", "pg_dsn", "pg_schema", "pg_conn", "pg_async_conn", "pg_database"))
STACK_FIXTURES = frozenset(("stack", "own_stack"))
MARKERS = (
    "pgtest: needs a real Postgres; added by itself to tests that use a pg_* fixture",
    "podman: needs podman; added by itself to tests that use a stack",
)
LIVE = pytest.StashKey["Live"]()
RUN = pytest.StashKey["Notes"]()
RUNNING = pytest.StashKey[pytest.Item]()  # in the config: session fixtures do not know which test asked first
USED = pytest.StashKey[bool]()
FAILED = pytest.StashKey[bool]()
UNMARKED = pytest.StashKey[str]()  # the session fixture that an unmarked test asked for at run time
# Hides our own frames when what was raised is one of our errors: they say it all themselves.
HIDE = methodcaller("errisinstance", PgshareError)


class MissingMarkWarning(UserWarning):
    """A test asked for a live fixture at run time, where no marker selection could see it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pgshare", "a real Postgres for tests (pgshare)")
    for option in OPTIONS:
        if not option.has_flag:
            continue
        if option.kind == "switch":
            group.addoption(option.flag, dest=f"pgshare_{option.name}", action="store_true", default=None, help=option.help)
        else:
            group.addoption(
                option.flag,
                dest=f"pgshare_{option.name}",
                default=None,
                metavar=option.metavar or "{" + ",".join(option.choices) + "}",
                help=option.help,
            )
    parser.addini("pg_migrate", 'the project\'s migration: "package.module:function" or a glob of .sql files')


def pytest_configure(config: pytest.Config) -> None:
    plain.install()
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    import os

    from pgshare.live import Live
    from pgshare.report import Notes

    flags = {option.name: config.getoption(f"pgshare_{option.name}", None) for option in OPTIONS if option.has_flag}
    try:
        settings = resolve_settings(flags=flags, env=os.environ, table=read_table(config.rootpath))
    except SettingError as exc:
        raise pytest.UsageError(f"pgshare: {exc}") from None
    settings = settings.with_ini_migration(config.getini("pg_migrate"))
    handed = getattr(config, "workerinput", None)
    worker = str(handed["workerid"]) if handed is not None else "main"
    run = handed["pgshare"] if handed is not None else None
    config.stash[LIVE] = Live(settings, str(config.rootpath), run, worker)
    config.stash[RUN] = Notes()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    """Hand the run to an xdist worker: an environment variable would reach a pytest run inside a test as well."""
    live: Live = node.config.stash[LIVE]  # type: ignore[attr-defined]  # xdist's WorkerController
    node.workerinput["pgshare"] = live.run.to_workerinput()  # type: ignore[attr-defined]


def pytest_report_header(config: pytest.Config) -> str:
    from pgshare.report import header

    return header(config.stash[LIVE].settings)


def pytest_itemcollected(item: pytest.Item) -> None:
    names = frozenset(getattr(item, "fixturenames", ()))
    if names & STACK_FIXTURES:
        item.add_marker("podman")
    elif names & PG_FIXTURES:
        item.add_marker("pgtest")


# Plain hooks where wrappers would do: a wrapper's frame would be seen in the traceback of every failing fixture of the user's.
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    item.config.stash[RUNNING] = item


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _refuse_mixed(item)


def _refuse_mixed(item: pytest.Item) -> None:
    """Say that a schema by search_path is invisible to a stack's server, instead of letting the test read past it."""
    values = getattr(item, "funcargs", {})
    dsn = getattr(values.get("stack"), "dsn", None)
    if "pg_schema" in values and isinstance(dsn, str):
        from pgshare.schema import refuse_mixed

        try:
            refuse_mixed(dsn, values["pg_schema"])
        except SettingError as exc:
            raise _one_sentence(str(exc)) from None


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    fixture = item.stash.get(UNMARKED, "")
    if fixture:
        item.stash[UNMARKED] = ""  # a rerun is told again when it asks again
        _tell_to_mark(item, fixture)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # A rerun begins anew with its set-up.
    item.stash[FAILED] = report.failed or (report.when != "setup" and item.stash.get(FAILED, False))
    live = item.config.stash[LIVE]
    notes: dict[str, object] = {}
    if report.when == "call" and live.postgres is not None and _is_live(item):
        # What pytest reports as skipped may have run: an expected failure.
        notes = {"live": call.excinfo is None or not call.excinfo.errisinstance(pytest.skip.Exception)}
    elif report.when == "teardown":
        notes = live.notes()
        if live.postgres is not None and _is_live(item):
            from pgshare.report import server_line

            notes["server"] = server_line(live.postgres)
    # A plain attribute travels from xdist's workers to the controller with the report.
    report.pgshare = notes  # type: ignore[attr-defined]
    return report


def _is_live(item: pytest.Item) -> bool:
    named = not PG_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
    return named or item.stash.get(USED, False) or item.get_closest_marker("pgtest") is not None


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Take what an xdist worker found after its last report."""
    output = getattr(node, "workeroutput", None) or {}  # none of a worker that crashed
    node.config.stash[RUN].add(output.get("pgshare", {}))  # type: ignore[attr-defined]  # xdist's WorkerController


class _Collector:
    """Collects what logged reports carry; the controller's count, a worker's are only taken off its list."""

    def __init__(self, live: Live, notes: Notes) -> None:
        self._live, self._notes = live, notes

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found = getattr(report, "pgshare", None) or {}
        self._notes.add(found)
        if "kept" in found:
            self._live.notes_delivered()


def pytest_sessionstart(session: pytest.Session) -> None:
    stash = session.config.stash
    session.config.pluginmanager.register(_Collector(stash[LIVE], stash[RUN]), "pgshare-collector")


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """After every fixture's teardown and xdist's own end, before the terminal summary is written: the controller leaves."""
    try:
        return (yield)
    finally:
        live, notes = session.config.stash[LIVE], session.config.stash[RUN]
        live.keep_server = live.keep_server or any(ours for *_, ours in notes.kept)
        notes.run_id = live.run_id
        notes.failures += live.leave()
        if live.is_controller:
            notes.add(live.notes())
            _judge(session, notes)
        else:
            session.config.workeroutput["pgshare"] = live.notes()  # type: ignore[attr-defined]  # xdist's


def _judge(session: pytest.Session, notes: Notes) -> None:
    """Turn a run red that could not be cleaned, or that required a live test and had none."""
    config = session.config
    runs_tests = not any(config.getoption(name, default=False) for name in ("collectonly", "setupplan", "setuponly"))
    notes.is_red = config.stash[LIVE].settings.require and runs_tests and not notes.live_tests
    passing = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    if (notes.failures or notes.is_red) and session.exitstatus in passing:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    from pgshare.report import summary

    notes = config.stash.get(RUN, None)
    lines = summary(notes, config.stash[LIVE].settings) if notes is not None else []
    if lines:
        terminalreporter.section("pgshare", sep="=", bold=False)
        for line in lines:
            terminalreporter.write_line(line)


def pytest_unconfigure(config: pytest.Config) -> None:
    plain.uninstall()
    if LIVE in config.stash:
        config.stash[LIVE].leave()


@contextlib.contextmanager
def _door(request: pytest.FixtureRequest) -> Iterator[Live]:
    """Translate our errors: nothing to be had is a skip (a failure under require), everything else one sentence."""
    __tracebackhide__ = True
    live = request.config.stash[LIVE]
    try:
        yield live
    except OriginUnavailableError as exc:
        if live.settings.require:
            raise _one_sentence(f"{exc} (required by {live.settings.named('require')})") from None
        raise pytest.skip.Exception(str(exc)) from None
    except TemplateError as exc:
        if exc.__cause__ is not None:
            raise  # the project's own traceback is what its author needs
        raise _one_sentence(str(exc)) from None
    except Exception as exc:
        said = live.explain(exc, request.node.nodeid)
        if not isinstance(said, PgshareError):
            raise
        raise _one_sentence(str(said)) from None


def _one_sentence(text: str) -> BaseException:
    """Return pytest's failure without a traceback; raised ``from None``, so that ours is not shown as its context either."""
    return pytest.fail.Exception(text, pytrace=False)


def _note_use(request: pytest.FixtureRequest) -> None:
    """Note that a live test ran, and say when marker selection could not have known."""
    item = request.node
    item.stash[USED] = True
    item.stash[UNMARKED] = ""
    if _is_unmarked(item):
        _tell_to_mark(item, request.fixturename or "")


def _note_first_use(request: pytest.FixtureRequest) -> None:
    """Note the same for a session fixture: it is told at the test's end, because a session fixture's failure is everybody's."""
    item = request.config.stash.get(RUNNING, None)
    if item is not None and _is_unmarked(item):
        item.stash[USED] = True
        item.stash[UNMARKED] = request.fixturename or ""


def _is_unmarked(item: pytest.Item) -> bool:
    return item.get_closest_marker("pgtest") is None and item.get_closest_marker("podman") is None


def _tell_to_mark(item: pytest.Item, fixture: str) -> None:
    message = f"{item.nodeid} asked for {fixture} at run time, so -m pgtest does not select it: mark it pgtest"
    if item.config.stash[LIVE].settings.require:
        raise _one_sentence(message)
    warnings.warn(message, MissingMarkWarning, stacklevel=2)


def _warn_leaks(report: object) -> None:
    if report:
        from pgshare.sessions import ConnectionLeakWarning

        warnings.warn(str(report), ConnectionLeakWarning, stacklevel=2)


@pytest.fixture(scope="session")
def pg_server(request: pytest.FixtureRequest) -> Postgres:
    """Return the suite's Postgres: ``.dsn`` (administrative), ``.origin``, ``.version``. Skips when none is to be had."""
    with _door(request) as live:
        server = live.server()
    _note_first_use(request)
    return server


@pytest.fixture(scope="session")
def pg_migrate(request: pytest.FixtureRequest) -> Callable[[str], object] | None:
    """Return the project's migration, a callable that takes a DSN. Override it, or set ``pg_migrate``."""
    return request.config.stash[LIVE].migration()


@pytest.fixture
def pg_schema(
    request: pytest.FixtureRequest,
    pg_server: Postgres,  # noqa: ARG001  # acquired once per process, whichever fixture is first
    pg_migrate: Callable[[str], object] | None,
) -> Iterator[Schema]:
    """Return this test's fresh schema: ``.dsn .connect() .env() .url(driver) .engine_args(driver) .django() .channel(name)``."""
    __tracebackhide__ = HIDE
    with _door(request) as live:
        _note_use(request)
        # The first schema's proof opens a connection: pg_conn goes on with it.
        keep_spare = "pg_conn" in request.fixturenames and pg_migrate is None
        schema = live.create(request.node.nodeid, pg_migrate, keep_spare=keep_spare)
    yield schema
    with _door(request) as live:
        report = live.finish(schema, failed=request.node.stash.get(FAILED, False))
    _warn_leaks(report)


@pytest.fixture
def pg_dsn(pg_schema: Schema) -> str:
    """Return the DSN of this test's fresh schema."""
    return pg_schema.dsn


@pytest.fixture
def pg_conn(request: pytest.FixtureRequest, pg_schema: Schema) -> Iterator[psycopg.Connection]:
    """Return an open psycopg connection in this test's schema; closed before the schema is dropped."""
    with _door(request) as live:
        conn = live.factory.connect(pg_schema)
    yield conn
    conn.close()


@pytest.fixture
def pg_async_conn(pg_schema: Schema) -> Iterator[AsyncConnection]:
    """Return an object for ``await`` or ``async with``: a psycopg connection opened in the test's own loop."""
    from pgshare.aconn import AsyncConnection

    conn = AsyncConnection(pg_schema.dsn)
    yield conn
    conn.close()


@pytest.fixture
def pg_database(
    request: pytest.FixtureRequest,
    pg_server: Postgres,  # noqa: ARG001  # acquired once per process
) -> Iterator[Database]:
    """Return a fresh whole database, for extensions, ``public``, several schemas, channels and advisory locks."""
    with _door(request) as live:
        _note_use(request)
        database = live.create_database(request.node.nodeid)
    yield database
    with _door(request) as live:
        report = live.finish_database(database, failed=request.node.stash.get(FAILED, False))
    _warn_leaks(report)
