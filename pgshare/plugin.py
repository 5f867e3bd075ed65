"""The plugin that pytest loads. Importing it imports nothing that pytest has not.

Small on purpose: pytest reads this file through its assertion rewriter, which is slow, and in every run anew where bytecode is not
written. ``pgshare.plain`` makes it read everything else as Python does.
"""

from __future__ import annotations

import pgshare.plain  # noqa: F401  # before the others: importing it is its effect
from pgshare.door import (
    pg_async_conn,
    pg_conn,
    pg_database,
    pg_dsn,
    pg_migrate,
    pg_schema,
    pg_server,
    pytest_addoption,
    pytest_configure,
    pytest_configure_node,
    pytest_itemcollected,
    pytest_report_header,
    pytest_runtest_makereport,
    pytest_runtest_protocol,
    pytest_runtest_setup,
    pytest_runtest_teardown,
    pytest_sessionfinish,
    pytest_sessionstart,
    pytest_terminal_summary,
    pytest_testnodedown,
    pytest_unconfigure,
)

__all__ = [
    "pg_async_conn",
    "pg_conn",
    "pg_database",
    "pg_dsn",
    "pg_migrate",
    "pg_schema",
    "pg_server",
    "pytest_addoption",
    "pytest_configure",
    "pytest_configure_node",
    "pytest_itemcollected",
    "pytest_report_header",
    "pytest_runtest_makereport",
    "pytest_runtest_protocol",
    "pytest_runtest_setup",
    "pytest_runtest_teardown",
    "pytest_sessionfinish",
    "pytest_sessionstart",
    "pytest_terminal_summary",
    "pytest_testnodedown",
    "pytest_unconfigure",
]
