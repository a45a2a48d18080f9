"""The plugin that gives the tests real servers is switched on here, and so are the fixtures of two rooms.

A conftest of their own would make several modules of that name, which a type checker does not take.
"""

import pytest

pytest_plugins = ["quiesce_pytest", "outbox_databases", "lane_members", "pgbouncer", "pausable_broker"]


@pytest.fixture(scope="session")
def database_template_sql() -> list[str]:
    """Every test's database has the tables of the outbox, of the inbox and of the order service."""
    from quiesce.examples.order_service.schema import TABLES
    from quiesce.inbox.schema_steps import INBOX
    from quiesce.outbox.schema_steps import OUTBOX

    return [OUTBOX.show(), INBOX.show(), TABLES]
