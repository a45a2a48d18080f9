"""A node with a network of its own: PostgreSQL and a member that reaches it by TCP. SIGUSR1 takes the network away.

`unshare -n python lost_node.py LANE_PROCESS`. It writes down the way in that needs no network, and when it was cut.
"""

import fcntl
import signal
import socket
import struct
import sys
import time
from pathlib import Path

from quiesce.postgres import schema
from quiesce.testing.postgres import LocalPostgres
from quiesce.testing.service_process import ServiceProcess

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def loopback(up: bool) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack("16sh", b"lo", 0)
        flags = struct.unpack("16sh", fcntl.ioctl(any_socket, SIOCGIFFLAGS, asked))[1]
        flags = flags | IFF_UP if up else flags & ~IFF_UP
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags))


def main(lane_process: str) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    loopback(True)
    with LocalPostgres() as server:
        dsn = server.create_database("outbox")
        server.execute(schema.show(), "outbox")
        owner = ServiceProcess([sys.executable, "-P", lane_process, dsn, "30"], name="owner")
        with owner:
            owner.wait_for(r" owns \[0")
            print(f"way postgresql://postgres@/outbox?host={server.directory}&port={server.port}", flush=True)
            signal.sigwait({signal.SIGUSR1})
            loopback(False)
            print(f"cut {time.monotonic():.3f}", flush=True)
            lost = owner.wait_for(r"([\d.]+) lost \d+", 15.0)
            print(f"owner {lost[1]}", flush=True)
            signal.sigwait({signal.SIGUSR1})


if __name__ == "__main__":
    main(str(Path(sys.argv[1])))
