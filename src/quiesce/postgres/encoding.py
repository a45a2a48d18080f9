"""The encoding of a database, which must know what text is."""

from quiesce.postgres.driver import AnyConnection

MOVE = "Move its data into one that was made with TEMPLATE template0 ENCODING 'UTF8', by pg_dump and a restore"
"""What to do about it."""


async def wrong_encoding(connection: AnyConnection) -> str | None:
    """What is wrong with the encoding of the database, None where nothing is.

    A database in SQL_ASCII stores whatever bytes come, and converts none. A key that is no UTF-8 could then not be read
    by a relay, nor an event be set aside whose key is not plain ASCII; and one such event would stop all others.
    """
    encoding = await connection.fetchval("SELECT current_setting('server_encoding')")
    if encoding != "SQL_ASCII":
        return None
    return "the encoding of the database is SQL_ASCII, which takes bytes that are no text: a relay cannot read them"
