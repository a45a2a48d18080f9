"""A node that vanishes from the network: nobody says goodbye, and its lanes are free all the same."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest
from lane_members import ALL, Join, eventually

from quiesce.postgres import connect
from quiesce.postgres.connections import RELAY
from quiesce.testing.service_process import ServiceProcess

HERE = Path(__file__).parent


@pytest.mark.needs("namespaces")
@pytest.mark.xdist_group("own_postgres_lanes")
async def test_a_lost_node_is_replaced(join: Join) -> None:
    command = ["unshare", "-n", sys.executable, "-P", str(HERE / "lost_node.py"), str(HERE / "lane_process.py")]
    with ServiceProcess(command, name="node") as node:
        way = (await asyncio.to_thread(node.wait_for, r"way (\S+)", 30.0))[1]
        peer = join("peer", dsn=way)
        await peer.tend()
        await eventually(lambda: len(peer.held) == 8)
        peer.takeovers.clear()
        node.signal(signal.SIGUSR1)
        took = await eventually(lambda: peer.held.keys() == ALL, 12.0)
        assert took > 0.5, "the node was not lost, it left"
        cut = (await asyncio.to_thread(node.wait_for, r"cut ([\d.]+)"))[1]
        owner = (await asyncio.to_thread(node.wait_for, r"owner ([\d.]+)", 15.0))[1]
        # It is told of them right behind their being owned.
        await eventually(lambda: sum(takeover.lanes for takeover in peer.takeovers) == 8)
        waited = max(takeover.seconds for takeover in peer.takeovers)
        # They were locked nearly all the time; but nobody was there.
        assert waited > took - 1.0
        knew = float(owner) - float(cut)
        print(f"lost node: replaced after {took:.2f} s, says {waited:.2f} s, knew it itself after {knew:.2f} s")
        async with connect(way) as look:
            assert await look.fetchval("SELECT count(*) FROM outbox_lane WHERE epoch >= 2") == 16
        await asyncio.to_thread(node.kill)


async def test_both_ends_of_the_lock_connection_probe(join: Join) -> None:
    member = join()
    await member.tend()
    assert member._locks is not None
    inside = member._locks._connection
    for name, value in RELAY.server_settings().items():
        # By this protocol no rows come back, only their number.
        found = await inside.execute(f"SELECT 1 FROM pg_settings WHERE name = '{name}' AND setting = '{value}'")
        assert found == "SELECT 1", name
