"""Cutting a connection that somebody holds, from outside."""

import contextlib
import os
import socket
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

AnyConnection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]


def busy(connection: AnyConnection) -> bool:
    """Whether a statement is under way on it."""
    return not connection.closed and connection.info.transaction_status == TransactionStatus.ACTIVE


def cut(connection: AnyConnection) -> None:
    """Ends the conversation with the server, at once and for both sides.

    The socket is shut down and not closed: whoever waits on it wakes with an error, be it another thread, and no
    number of a file is freed under its feet. The server ends its side when it reads the end, or finds out while a
    statement runs.
    """
    with contextlib.suppress(psycopg.Error, OSError):
        number = os.dup(connection.fileno())
        with socket.socket(fileno=number) as ours:
            ours.shutdown(socket.SHUT_RDWR)
