"""What the machine decides, step by step."""

import pytest

from quiesce.errors import BudgetError, IntakeClosed, SettingsError, StartInterrupted
from quiesce.lifecycle import commands as do
from quiesce.lifecycle.budget import Budget, WorkerBound
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.events import AbortRequested, PhaseChanged, StopHastened
from quiesce.lifecycle.machine import Machine
from quiesce.lifecycle.phases import Part, Phase
from quiesce.lifecycle.report import compose
from quiesce.lifecycle.watches import What
from quiesce.lifecycle.worker_drain import OUT_OF_TIME

BUDGET = Budget()
AGAIN = "received SIGTERM again"


def _phase(machine: Machine) -> Phase:
    return machine.phase  # through a function: a checker takes what it has seen once for granted


def _stopped(machine: Machine, now: float = 0.0) -> list[do.Decision]:
    machine.start_ended()
    machine.decide(now)
    machine.stop(now, "signal")
    return machine.decide(now)


def test_readiness_is_the_first_command_of_a_shutdown() -> None:
    machine = Machine(BUDGET)
    machine.members.register(WorkerBound("a"))
    machine.serving()
    assert isinstance(_stopped(machine)[0], do.BecomeNotReady)


def test_a_worker_after_http_is_told_when_the_drain_is_over_and_its_bound_starts_there() -> None:
    machine = Machine(BUDGET)
    machine.members.register(WorkerBound("payments", 5.0, after_http=True))
    machine.serving()
    assert not [d for d in _stopped(machine) if isinstance(d, do.FireStop)]
    machine.http_ended()
    (fired,) = [d for d in machine.decide(3.0) if isinstance(d, do.FireStop)]
    assert fired.deadline.at == pytest.approx(8.0)


def test_a_stuck_worker_is_aborted_at_its_bound_and_left_at_the_end_of_the_drain() -> None:
    machine = Machine(BUDGET)
    machine.members.register(WorkerBound("stuck"))
    machine.members.opening("pool", Part.POOLS)
    machine.members.opened("pool")
    _stopped(machine)
    assert do.AbortWorker("stuck", OUT_OF_TIME) not in machine.decide(19.9)
    assert do.AbortWorker("stuck", OUT_OF_TIME) in machine.decide(20.0)
    assert not [d for d in machine.decide(31.9) if isinstance(d, do.CloseResource)]
    decided = machine.decide(32.0)
    assert any(isinstance(d, do.CloseResource) for d in decided)
    assert machine.workers["stuck"].outcome == "abandoned"


def test_s32_no_closer_is_given_up_in_the_breath_in_which_it_is_called() -> None:
    machine = Machine(BUDGET)
    for name in ("first", "second"):
        machine.members.opening(name, Part.POOLS)
        machine.members.opened(name)
    machine.start_ended()
    machine.decide(0.0)
    machine.stop(0.0, "signal", within=0.0)
    steps: list[list[tuple[type, str]]] = []
    while not steps or (machine.wake_at is not None and machine.wake_at <= 0.0):
        decided = machine.decide(0.0)
        steps.append([(type(d), d.resource) for d in decided if isinstance(d, do.CloseResource | do.GiveUpCloser)])
    assert steps == [
        [(do.CloseResource, "second")],
        [(do.GiveUpCloser, "second"), (do.CloseResource, "first")],
        [(do.GiveUpCloser, "first")],
    ]


def test_lame_duck_goes_before_the_drain_of_http() -> None:
    machine = Machine(Budget(lame_duck=3, http=20))
    machine.serving()
    assert not [d for d in _stopped(machine) if isinstance(d, do.BeginHttpDrain)]
    assert machine.wake_at == pytest.approx(3.0)
    assert [d for d in machine.decide(3.0) if isinstance(d, do.BeginHttpDrain)]


def test_what_comes_too_late_is_refused() -> None:
    machine = Machine(BUDGET)
    machine.stop(0.0, "early")
    assert machine.members.opening("pool", Part.POOLS) is False
    with pytest.raises(StartInterrupted, match="a stop was requested"):
        machine.members.register(WorkerBound("late"))
    machine.start_ended()
    with pytest.raises(IntakeClosed, match="too late"):
        machine.members.register(WorkerBound("later"))


def test_a_bound_that_does_not_fit_is_refused_when_it_is_registered() -> None:
    machine = Machine(BUDGET)
    with pytest.raises(BudgetError, match="over grace_period 60"):
        machine.members.register(WorkerBound("slow", 40.0))


def test_a_failure_during_the_drain_is_remembered() -> None:
    machine = Machine(BUDGET)
    machine.members.register(WorkerBound("a"))
    _stopped(machine)
    machine.worker_ended("a", 1.0, "ValueError: broken")
    assert machine.failed
    assert machine.reason == "signal"


def test_s12_a_heartbeat_is_told_only_after_the_work_it_protects_is_over() -> None:
    machine = Machine(BUDGET)
    machine.members.register(WorkerBound("heartbeat", keeps=("payments",)))
    machine.members.register(WorkerBound("payments"))
    machine.members.check_workers()
    assert [d.worker for d in _stopped(machine) if isinstance(d, do.FireStop)] == ["payments"]
    machine.worker_ended("payments", 7.0)
    (fired,) = [d for d in machine.decide(7.0) if isinstance(d, do.FireStop)]
    # A keeper's own bound is short, so that it fits into the budget without being asked for.
    assert (fired.worker, fired.deadline.at) == ("heartbeat", 8.0)


def test_a_keeper_of_work_that_never_ends_goes_with_the_end_of_the_drain() -> None:
    machine = Machine(BUDGET)
    machine.members.register(WorkerBound("heartbeat", keeps="all"))
    machine.members.register(WorkerBound("stuck"))
    _stopped(machine)
    assert [d for d in machine.decide(20.0) if isinstance(d, do.AbortWorker)] == [do.AbortWorker("stuck", OUT_OF_TIME)]
    # As late as it may, and early enough to end what it has in hand, or to unwind, before closing begins.
    assert not [d for d in machine.decide(30.9) if isinstance(d, do.FireStop | do.AbortWorker)]
    assert machine.wake_at == 31.0
    (fired,) = [d for d in machine.decide(31.0) if isinstance(d, do.FireStop | do.AbortWorker)]
    assert isinstance(fired, do.FireStop)
    assert fired.worker == "heartbeat"
    assert 31.8 < fired.deadline.at < 32.0
    machine.worker_ended("heartbeat", 31.2)
    machine.decide(32.0)
    assert machine.phase is Phase.CLOSING
    assert {name: worker.outcome for name, worker in machine.workers.items()} == {
        "heartbeat": "finished",
        "stuck": "abandoned",
    }


def test_a_keeper_of_what_is_left_after_a_second_signal_has_a_moment_of_its_own() -> None:
    machine = Machine(BUDGET)
    machine.members.register(WorkerBound("heartbeat", keeps="all"))
    machine.members.register(WorkerBound("lease", keeps=("heartbeat", "stuck")))
    machine.members.register(WorkerBound("stuck"))
    _stopped(machine)
    machine.abort(2.0, AGAIN)
    assert [d.worker for d in machine.decide(2.0) if isinstance(d, do.AbortWorker)] == ["stuck"]
    assert machine.wake_at == 3.0
    assert [d for d in machine.decide(3.0) if isinstance(d, do.FireStop | do.AbortWorker)] == [
        do.FireStop("heartbeat", Deadline(4.0))
    ]
    assert [d for d in machine.decide(4.0) if isinstance(d, do.AbortWorker)] == [
        do.AbortWorker("heartbeat", OUT_OF_TIME)
    ]
    machine.worker_ended("heartbeat", 4.1)
    assert [d.worker for d in machine.decide(4.1) if isinstance(d, do.FireStop)] == ["lease"]
    machine.worker_ended("lease", 4.2)
    machine.decide(4.2)
    assert _phase(machine) is Phase.DRAINING
    machine.decide(5.0)
    assert _phase(machine) is Phase.CLOSING
    assert {name: worker.outcome for name, worker in machine.workers.items()} == {
        "heartbeat": "aborted",
        "lease": "finished",
        "stuck": "abandoned",
    }


def test_a_keeper_outlives_the_critical_sections_of_what_was_torn() -> None:
    machine = Machine(BUDGET)
    machine.members.register(WorkerBound("lease", keeps=("payments",)))
    machine.members.register(WorkerBound("payments"))
    _stopped(machine)
    machine.sections_open(1)
    machine.abort(2.0, AGAIN)
    machine.decide(2.0)
    assert [d for d in machine.decide(3.0) if isinstance(d, do.FireStop | do.AbortSections)] == [do.AbortSections()]
    assert not [d for d in machine.decide(3.9) if isinstance(d, do.FireStop)]
    machine.sections_open(0)
    machine.worker_ended("payments", 3.95)
    assert [d for d in machine.decide(3.95) if isinstance(d, do.FireStop)] == [do.FireStop("lease", Deadline(4.95))]


def test_a_second_signal_tears_the_work_first_and_its_keeper_after_it() -> None:
    machine = Machine(BUDGET)
    machine.members.register(WorkerBound("heartbeat", bound=5.0, keeps=("payments",)))
    machine.members.register(WorkerBound("payments"))
    _stopped(machine)
    machine.abort(2.0, AGAIN)
    aborted = [d for d in machine.decide(2.0) if isinstance(d, do.AbortWorker)]
    assert aborted == [do.AbortWorker("payments", AGAIN)]
    machine.worker_ended("payments", 2.1)
    told = [d for d in machine.decide(2.1) if isinstance(d, do.FireStop | do.AbortWorker)]
    assert [type(d) for d in told] == [do.FireStop]
    # It has a moment to end by itself, and another one to unwind.
    machine.decide(3.0)
    assert _phase(machine) is Phase.DRAINING
    assert [d for d in machine.decide(3.1) if isinstance(d, do.AbortWorker)] == [do.AbortWorker("heartbeat", AGAIN)]
    machine.decide(4.0)
    assert _phase(machine) is Phase.DRAINING
    machine.decide(4.1)
    assert _phase(machine) is Phase.CLOSING


@pytest.mark.parametrize(
    ("asks", "text"),
    [
        ([WorkerBound("a", keeps=("b",))], "worker 'a' keeps 'b', and there is no such worker"),
        ([WorkerBound("a", keeps=("a",))], "in a circle: a"),
        ([WorkerBound("a", keeps=("b",)), WorkerBound("b", keeps=("a",)), WorkerBound("c")], "in a circle: a, b"),
        ([WorkerBound("a", keeps=("b",), bound=13.0), WorkerBound("b")], "workers 20 [+] keepers 13"),
        ([WorkerBound("a", keeps="all", bound=8.0), WorkerBound("b")], "http 25 [+] keepers 8"),
    ],
)
def test_edges_that_cannot_be_kept_are_refused(asks: list[WorkerBound], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        _registered(asks)


def _registered(asks: list[WorkerBound]) -> Machine:
    machine = Machine(BUDGET)
    for ask in asks:
        machine.members.register(ask)
    machine.members.check_workers()
    return machine


def test_s31_each_worker_has_its_own_bound_side_by_side_and_a_slow_one_takes_nothing_from_the_rest() -> None:
    machine = Machine(BUDGET)
    for name, bound in (("slow", 3.0), ("middle", 5.0), ("quick", None)):
        machine.members.register(WorkerBound(name, bound))
    fired = [d for d in _stopped(machine) if isinstance(d, do.FireStop)]
    assert [d.deadline.at for d in fired] == [3.0, 5.0, 20.0]
    assert [d for d in machine.decide(3.0) if isinstance(d, do.AbortWorker)] == [do.AbortWorker("slow", OUT_OF_TIME)]
    machine.worker_ended("middle", 4.0)
    machine.worker_ended("quick", 19.0)
    assert machine.workers["middle"].outcome == machine.workers["quick"].outcome == "finished"


def test_o26_all_intake_closes_first_and_in_the_same_instant() -> None:
    machine = Machine(Budget(lame_duck=3, http=20))
    for index in range(5):
        machine.members.register(WorkerBound(f"queue {index}"))
    machine.serving()
    decided = _stopped(machine)
    kinds = [type(d) for d in decided]
    assert kinds[:6] == [do.BecomeNotReady, *[do.FireStop] * 5]
    assert {machine.workers[f"queue {index}"].told_at for index in range(5)} == {0.0}


def test_a_worker_that_hands_back_is_aborted_early_enough_for_that() -> None:
    machine = Machine(BUDGET)
    machine.members.register(WorkerBound("claims", 31.0, hands_back=True))
    (fired,) = [d for d in _stopped(machine) if isinstance(d, do.FireStop)]
    # A second to unwind and a second to hand back; without slack both come out of its own bound.
    assert fired.deadline.at == pytest.approx(30.0)
    with pytest.raises(BudgetError):
        Machine(BUDGET).members.register(WorkerBound("claims", 32.0, hands_back=True))


def test_a_thread_that_ends_after_its_abort_was_not_torn() -> None:
    machine = Machine(BUDGET)
    machine.members.register(WorkerBound("thread", 5.0))
    _stopped(machine)
    assert do.AbortWorker("thread", OUT_OF_TIME) in machine.decide(5.0)
    machine.worker_ended("thread", 6.0, torn=False)
    assert machine.workers["thread"].outcome == "finished"
    # And what comes after the closing began changes nothing any more.
    machine.decide(6.0)
    machine.worker_ended("thread", 7.0, "too late")
    assert not machine.failed


def test_sections_know_their_time() -> None:
    machine = Machine(BUDGET)
    machine.members.register(WorkerBound("a"))
    assert machine.sections_until.at == float("inf")
    _stopped(machine)
    assert machine.sections_until.at == pytest.approx(31.0)
    machine.abort(3.0, "received SIGTERM again")
    assert machine.sections_until.at == pytest.approx(4.0)


def test_a_start_that_does_not_end_is_interrupted_again_with_time_to_unwind_then_left_and_named() -> None:
    machine = Machine(BUDGET)
    machine.members.opening("pool", Part.POOLS)
    machine.members.opened("pool")
    machine.members.opening("second", Part.POOLS)
    machine.stop(0.0, "signal")
    assert do.InterruptStart() in machine.decide(0.0)
    assert do.InterruptStart() not in machine.decide(30.9)
    assert do.InterruptStart() in machine.decide(31.0)
    assert machine.wake_at == 32.0
    decided = machine.decide(32.0)
    closing = next(i for i, d in enumerate(decided) if isinstance(d, do.CloseResource))
    assert decided.index(do.LookAt(What.START, "", 1.0)) < closing
    machine.closed("pool", 32.1, "clean")
    machine.decide(32.1)
    report = compose("service", machine, 32.2)
    assert [(a.worker, a.what) for a in report.abandoned] == [
        ("start", "start that did not end"),
        ("second", "start that did not end"),
    ]
    assert report.exit_code == 75


def test_a_second_signal_interrupts_the_start_again_and_closes_a_second_later() -> None:
    machine = Machine(BUDGET)
    machine.stop(0.0, "signal")
    machine.decide(0.0)
    machine.abort(2.0, "again")
    assert [type(d) for d in machine.decide(2.0)] == [AbortRequested, do.InterruptStart]
    assert machine.wake_at == 3.0
    assert PhaseChanged(Phase.CLOSING, 3.0) in machine.decide(3.0)


def test_an_opening_outside_the_start_holds_the_closing_until_it_ends() -> None:
    machine = Machine(BUDGET)
    machine.start_ended()
    machine.decide(0.0)
    machine.members.opening("late", Part.POOLS)
    machine.stop(1.0, "signal")
    assert do.InterruptStart() in machine.decide(1.0)
    assert _phase(machine) is Phase.DRAINING
    machine.members.opened("late")
    decided = machine.decide(2.0)
    assert [d.resource for d in decided if isinstance(d, do.CloseResource)] == ["late"]


def test_sections_are_torn_a_second_before_the_drain_ends_and_in_an_abort_a_second_before_the_closers() -> None:
    machine = Machine(BUDGET)
    machine.sections_open(1)
    _stopped(machine)
    machine.sections_open(1)
    assert do.AbortSections() not in machine.decide(30.9)
    assert machine.wake_at == 31.0
    assert do.AbortSections() in machine.decide(31.0)
    assert machine.wake_at == 32.0

    machine = Machine(BUDGET)
    machine.sections_open(1)
    _stopped(machine)
    machine.abort(5.0, "again")
    assert do.AbortSections() not in machine.decide(5.0)
    assert machine.decide(6.0) == [do.AbortSections()]
    assert machine.wake_at == 7.0
    machine.sections_open(0)
    assert PhaseChanged(Phase.CLOSING, 6.1) in machine.decide(6.1), "and no longer than they take"


def test_sections_are_not_torn_before_the_deadline_of_a_worker_that_was_told_late() -> None:
    machine = Machine(BUDGET)
    machine.members.register(WorkerBound("charge", 7.0, after_http=True))
    machine.serving()
    _stopped(machine)
    machine.decide(25.0)
    # A tenth of the 7 s that it has is kept for unwinding.
    assert machine.workers["charge"].deadline is not None
    assert machine.workers["charge"].deadline.at == machine.sections_until.at == pytest.approx(31.3)
    machine.worker_ended("charge", 26.0)
    assert machine.sections_until.at == 31.0


def test_a_worker_is_aborted_before_the_section_that_it_is_in() -> None:
    machine = Machine(BUDGET)
    machine.members.register(WorkerBound("a", 32.0))
    machine.sections_open(1)
    _stopped(machine)
    machine.sections_open(1)
    torn = [d for d in machine.decide(31.0) if isinstance(d, do.AbortWorker | do.AbortSections)]
    assert torn == [do.AbortWorker("a", OUT_OF_TIME), do.AbortSections()], "so that whoever is torn can ask why"


def test_a_stop_with_less_time_hastens_what_was_planned() -> None:
    machine = Machine(BUDGET)
    machine.members.register(WorkerBound("slow"))
    machine.serving()
    _stopped(machine)
    machine.stop(9.0, "one more", within=100.0)
    assert machine.decide(9.0) == []
    machine.stop(9.0, "two", within=10.0)
    decided = machine.decide(9.0)
    assert isinstance(decided[0], do.ArmHardDeadline)
    assert decided[0].deadline.at == pytest.approx(18.8)
    assert [type(d) for d in decided[1:]] == [StopHastened, do.ShortenBound, do.ShortenHttp]
    (shortened,) = [d for d in decided if isinstance(d, do.ShortenBound)]
    assert shortened.deadline == machine.workers["slow"].deadline
    assert shortened.deadline.at == pytest.approx(13.0)
    assert machine.wake_at is not None
    # At half of the new bound.
    assert machine.wake_at <= 11.0
    assert do.AbortWorker("slow", OUT_OF_TIME) in machine.decide(13.0)
    assert do.AbortHttp() in machine.decide(14.0)
    assert machine.reason == "signal"


def test_a_limit_that_is_told_with_the_stop_itself_hastens_nothing() -> None:
    machine = Machine(BUDGET)
    machine.start_ended()
    machine.decide(0.0)
    machine.stop(0.0, "one")
    machine.stop(0.0, "two", within=5.0)
    decided = machine.decide(0.0)
    assert not [d for d in decided if isinstance(d, StopHastened)]
    (armed,) = [d for d in decided if isinstance(d, do.ArmHardDeadline)]
    assert armed.deadline.at == pytest.approx(4.9)
