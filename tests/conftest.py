"""The plugin that gives the tests real servers is switched on here, and nowhere else."""

import pytest

pytest_plugins = ["quiesce_pytest"]


@pytest.fixture(scope="session")
def database_template_sql() -> list[str]:
    """Every test's database has the outbox's tables and those of the order service."""
    from quiesce.examples.order_service.schema import TABLES
    from quiesce.postgres import schema

    return [schema.show(), TABLES]
