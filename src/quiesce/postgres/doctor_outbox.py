"""Checks of the outbox itself: does it move, who works at it, what was set aside, is this the database it was."""

from collections import Counter
from collections.abc import Sequence

from quiesce.outbox.checks import Check, Verdict
from quiesce.postgres import waiting
from quiesce.postgres.driver import Connection
from quiesce.postgres.lane_statements import LANES
from quiesce.postgres.mapped_tables import mapped_tables
from quiesce.postgres.outbox_status import Lane, OutboxStatus, status
from quiesce.postgres.server_identity import replaced

OLD_WARN = 60.0
OLD_BAD = 600.0
"""Seconds that the oldest event has waited."""
MANY_ASIDE = 5_000
"""Events set aside in one lane, to be retried or behind such: half of where a lane stops reading by default."""
HOT_LEAST = 1_000

_REASONS = """
SELECT left(reason, 100) AS reason, count(*) AS events FROM outbox_parked WHERE state = 'dead'
GROUP BY 1 ORDER BY 2 DESC LIMIT 3
"""
# By the primary key, from both ends.
_ROWS = "SELECT count(*) FROM outbox_lane"
_BEYOND = """
SELECT lane FROM (
    (SELECT lane FROM outbox_event WHERE lane >= $1 ORDER BY lane, position LIMIT 1)
    UNION ALL
    (SELECT lane FROM outbox_event WHERE lane < 0 ORDER BY lane, position LIMIT 1)
) AS beyond LIMIT 1
"""
_ASIDE = """
SELECT lane, count(*) AS events FROM outbox_parked WHERE state IN ('retry', 'held')
GROUP BY lane ORDER BY 2 DESC LIMIT 1
"""


async def outbox(db: Connection) -> list[Check]:
    """All of it."""
    now = await status(db, count_to=20_000)
    checks = [
        _store(now, await mapped_tables(db)),
        await _same_database(db),
        _pause(now),
        _backlog(now),
        await _dead(db, now),
    ]
    checks.append(await _aside(db))
    if now.store == "log":
        checks += _lanes(now.lanes, await db.fetchval(_ROWS), await db.fetchval(_BEYOND, LANES))
    return checks


def _store(now: OutboxStatus, mapped: str) -> Check:
    if now.store is None and mapped:
        return Check("store", "warn", f"no relay has ever opened this outbox; {mapped}", "Drop the tables nobody uses")
    if now.store is None:
        verdict: Verdict = "warn" if now.waiting.events else "ok"
        return Check(
            "store",
            verdict,
            "no relay has ever opened this outbox",
            "Start a relay" if verdict == "warn" else "",
        )
    return Check("store", "ok", f"{now.store} store")


async def _same_database(db: Connection) -> Check:
    kind = await waiting.recorded_store(db)
    if kind != "log":
        told = "the row store does not depend on it" if kind else "no relay has opened this outbox"
        return Check("same database", "ok", told)
    why = (await replaced(db)).why
    if why:
        return Check(
            "same database",
            "bad",
            f"the cursors were written in another one: {'; '.join(why)}. The lanes stand until somebody decides",
            "Run: quiesce outbox rebase --dry-run",
        )
    return Check("same database", "ok", "the one that the cursors were written in")


def _pause(now: OutboxStatus) -> Check:
    if now.paused is None:
        return Check("paused", "ok", "no")
    why = f": {now.paused.why}" if now.paused.why else ""
    return Check(
        "paused", "warn", f"since {now.paused.at:%Y-%m-%d %H:%M:%S %Z} by {now.paused.by}{why}", "quiesce outbox resume"
    )


def _backlog(now: OutboxStatus) -> Check:
    if now.oldest is None:
        return Check("backlog", "ok", "nothing waits")
    told = f"{now.waiting} events wait, the oldest for {now.oldest:.0f} s"
    if now.oldest < OLD_WARN:
        return Check("backlog", "ok", told)
    return Check(
        "backlog",
        "bad" if now.oldest >= OLD_BAD else "warn",
        told,
        "See whether a relay runs, what its log says of outages, and the other checks; quiesce outbox peek shows them",
    )


async def _dead(db: Connection, now: OutboxStatus) -> Check:
    if not now.parked["dead"]:
        return Check("dead letters", "ok", "none")
    reasons = ", ".join(f"{row['events']} × {row['reason']}" for row in await db.fetch(_REASONS))
    return Check(
        "dead letters",
        "warn",
        f"{now.parked['dead']:,}: {reasons}",
        "quiesce outbox dead, then redrive what can be sent now and purge the rest",
    )


async def _aside(db: Connection) -> Check:
    row = await db.fetchrow(_ASIDE)
    if row is None:
        return Check("set aside", "ok", "nothing waits to be retried")
    where = "" if row["lane"] is None else f" in lane {row['lane']}"
    verdict: Verdict = "warn" if row["events"] >= MANY_ASIDE else "ok"
    return Check(
        "set aside",
        verdict,
        f"{row['events']:,} events wait to be retried, or behind such,{where or ' in the outbox'}",
        "A lane with too many of them reads nothing new: see their reasons by quiesce outbox peek"
        if verdict != "ok"
        else "",
    )


def _lanes(lanes: Sequence[Lane], rows: int, beyond: int | None) -> list[Check]:
    free = [lane for lane in lanes if lane.owner is None]
    stuck = [lane for lane in free if lane.waiting.events]
    shares = Counter(lane.owner for lane in lanes if lane.owner is not None)
    if rows != LANES or len(lanes) != LANES:
        told = f"outbox_lane has {rows} rows of {len(lanes)} lanes, should have one of each of {LANES}"
        advice = (
            "A restore has lost some, or put others beside them. Stop all relays, delete what is too much (of a lane "
            "the row with the lower last), insert those that miss, and see: quiesce outbox rebase"
        )
        owned = Check("lanes", "bad", told, advice)
    elif beyond is not None:
        owned = Check(
            "lanes",
            "bad",
            f"events stand in lane {beyond}, which no relay reads: there are {LANES}, and their number is fixed",
            "Make outbox_lane() as it was, see: quiesce outbox schema validate; then write those events anew",
        )
    elif stuck:
        numbers = ", ".join(str(lane.number) for lane in stuck)
        owned = Check(
            "lanes", "bad", f"events wait in lanes that nobody owns: {numbers}", "Start a relay, or look why not"
        )
    elif shares and max(shares.values()) - min(shares.values()) > 1:
        told = ", ".join(f"{owner}: {count}" for owner, count in shares.most_common())
        owned = Check("lanes", "warn", f"unevenly shared: {told}", "It evens out in seconds; else see the relays' logs")
    else:
        owned = Check("lanes", "ok", f"{LANES - len(free)} of {LANES} owned, by {len(shares)} relays")
    total = sum(lane.waiting.events for lane in lanes)
    fullest = max(lanes, key=lambda lane: lane.waiting.events, default=None)
    if fullest is not None and total >= HOT_LEAST and fullest.waiting.events > total / 2:
        hot = Check(
            "hot lane",
            "warn",
            f"lane {fullest.number} has {fullest.waiting} of {total:,} events that wait: one key, or few, write most",
            f"quiesce outbox peek --lane {fullest.number} shows the keys. A key is never parallel to itself",
        )
        return [owned, hot]
    return [owned]
