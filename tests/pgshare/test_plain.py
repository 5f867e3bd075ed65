from __future__ import annotations

import sys

from pgshare import plain
from pgshare.plain import PlainFinder


def test_our_modules_are_found_as_python_finds_them_and_others_are_left_alone():
    import pgshare

    spec = PlainFinder.find_spec("pgshare.conninfo", pgshare.__path__)
    assert type(spec.loader).__module__ == "_frozen_importlib_external"
    assert PlainFinder.find_spec("pgshare") is None
    assert PlainFinder.find_spec("pgsharex.conninfo") is None
    assert PlainFinder.find_spec("psycopg") is None


def test_the_finder_is_there_once_and_in_front_of_pytests():
    assert sys.meta_path.count(PlainFinder) == 1
    rewriter = next(index for index, finder in enumerate(sys.meta_path) if type(finder).__name__ == "AssertionRewritingHook")
    assert sys.meta_path.index(PlainFinder) < rewriter


def test_it_goes_with_its_last_user():
    assert PlainFinder in sys.meta_path
    plain.install()
    plain.uninstall()
    assert PlainFinder in sys.meta_path  # this run still uses it


def test_in_a_run_our_modules_are_not_rewritten(project):
    project.write(
        test_a="""
        def test_a(pg_dsn):
            import sys
            loaders = {type(module.__spec__.loader).__name__ for name, module in sys.modules.items() if name.startswith("pgshare.")
                       and name not in ("pgshare.plugin", "pgshare.plain")}
            assert loaders == {"SourceFileLoader"}
        """
    )
    assert project.run().code == 0
