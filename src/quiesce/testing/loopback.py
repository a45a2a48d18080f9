"""Loopback ports for the servers of tests: finding a free one, and knowing that ours is the one that answers."""

import contextlib
import os
import secrets
import socket
import sys
from pathlib import Path


def answers(pid: int, port: int) -> bool:
    """Whether the process accepts TCP connections on the loopback port; another's server there does not count."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    if not sys.platform.startswith("linux"):
        return True
    listening = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                _, local, _, state, *_, inode = line.split()[:10]
                if state == "0A" and int(local.rpartition(":")[2], 16) == port:
                    listening.add(f"socket:[{inode}]")
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(descriptor) in listening:
                return True
    return False


def free_port() -> int:
    """A loopback TCP port that nobody listens on now.

    Taken from below the range the kernel uses for outgoing connections: a server that is stopped and started
    again needs the same port, and meanwhile a client's connection (even the one of a client that tries to
    reach that very server) could be given it.
    """
    for _ in range(100):
        port = 20_000 + secrets.randbelow(_first_ephemeral_port() - 20_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        taken: int = probe.getsockname()[1]
        return taken


def _first_ephemeral_port() -> int:
    with contextlib.suppress(OSError, ValueError):
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        return first if first > 21_000 else 60_000
    return 32_768
