"""`quiesce budget`: the timeline, the platforms, the manifest."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from quiesce.cli.main import main
from quiesce.lifecycle.budget import HAND_BACK_BOUND, Budget, WorkerBound
from quiesce.lifecycle.plan import Plan
from quiesce.lifecycle.prestop import slept
from quiesce.lifecycle.timeline import Timeline

ORDERS = "quiesce.examples.order_service.main:orders"
MANIFEST = Path(__file__).parents[2] / "deploy" / "kubernetes" / "order-service.yaml"

GOLDEN = """\
order-service: 58 of 60 s, 2 s of slack

seconds from T0  begins  deadline  bound  spare   -10                                               50 SIGKILL
prestop             -10         0     10      -  |----------                                                  |
http                  0        25     25      7  |          #########################.......                  |
workers               0        20     20     12  |          ####################............                  |
worker relay          0      12.5   12.5   19.5  |          ############....................                  |
worker charge        25        30      5      2  |                                   #####..                  |
producers            32        47     15      -  |                                          ===============   |
pools                47        48      1      -  |                                                         =  |
report               48        49      1      -  |                                                          = |
margin               49        50      1      -  |                                                           -|

prestop 10 + max(lame_duck 0 + http 25 + after http 5, workers 20) + producers 15 + pools 1 + report 1 + margin 1 = 58 s
"""

Ran = tuple[int, str, str]


@pytest.fixture
def budget(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def run(*argv: str) -> Ran:
        status = main(["budget", *argv])
        return (status, *capsys.readouterr())

    return run


def test_the_timeline_of_the_order_service(budget: Callable[..., Ran]) -> None:
    assert budget(ORDERS, "--worker", "relay=12.5", "--worker", "charge=5:after-http") == (0, GOLDEN, "")


def test_the_figures_are_those_of_the_running_plan(budget: Callable[..., Ran]) -> None:
    status, out, _ = budget(ORDERS, "--json")
    told = json.loads(out)
    assert (status, told["fits"], told["longest"], told["slack"], told["hard_deadline"]) == (0, True, 53, 7, 49)
    plan = Plan.at(Budget(), 0.0)
    assert {part["name"]: part["deadline"] for part in told["parts"]} == {
        "prestop": 0,
        "http": plan.http.at,
        "workers": plan.worker(20, 0.0).at,
        "producers": plan.producers.at,
        "pools": plan.pools.at,
        "report": plan.end.at,
        "margin": 50,
    }
    assert sum(part["bound"] for part in told["parts"] if part["reserved"]) == 18


def test_workers_that_do_not_fit_are_refused_with_the_sum(budget: Callable[..., Ran]) -> None:
    status, out, err = budget(ORDERS, "--worker", "slow=12:after-http:hand-back")
    assert status == 78
    assert "order-service: 66 of 60 s, 6 s too much" in out
    assert "http 25 + after http 13" in err
    assert "= 66 s, over grace_period 60 s" in err
    told = json.loads(budget(ORDERS, "--worker", "slow=12:after-http:hand-back", "--json")[1])
    assert (told["fits"], [r["rule"] for r in told["refused"]]) == (False, ["R-SHUT-2"])


def test_a_budget_that_refuses_itself_shows_its_sum(budget: Callable[..., Ran]) -> None:
    status, out, err = budget("too_small_service:too_small")
    assert (status, out) == (78, "")
    assert "= 53 s, over grace_period 30 s" in err


def test_a_bound_beside_does_not_take_the_share_of_those_without_one(budget: Callable[..., Ran]) -> None:
    assert "max(lame_duck 0 + http 3, workers 3)" in budget("budget_services:small", "--worker", "quick=1")[1]


def test_a_keeper_and_its_hand_back_stand_where_they_would_be() -> None:
    workers = (WorkerBound("relay", 5.0, hands_back=True), WorkerBound("lease", 2.0, keeps=("relay",)))
    found = {s.name: (s.begins, s.deadline) for s in Timeline.of(Budget(), workers).stretches}
    assert found["worker relay"] == (0.0, 5.0 + HAND_BACK_BOUND)
    assert found["worker lease"] == (5.0 + HAND_BACK_BOUND, 7.0 + HAND_BACK_BOUND)


@pytest.mark.parametrize(
    ("platform", "gives", "needs", "set_to"),
    [
        ("kubernetes", 30, 60, "terminationGracePeriodSeconds: 60"),
        ("docker", 10, 50, "docker stop -t 50"),
        ("cloud-run", 10, 50, "No setting makes it more: make the parts smaller, Budget(grace_period=10, prestop=0"),
        ("ecs", 30, 50, '"stopTimeout": 50'),
        ("heroku", 30, 50, "No setting makes it more: make the parts smaller, Budget(grace_period=30, prestop=0"),
    ],
)
def test_a_platform_whose_default_is_too_short(
    budget: Callable[..., Ran], platform: str, gives: int, needs: int, set_to: str
) -> None:
    status, out, err = budget(ORDERS, "--platform", platform)
    assert status == 78
    assert f" gives {gives} s" in err
    assert f"{needs} s. " in err
    assert set_to in err
    assert ("has no preStop" in out) == (platform != "kubernetes")


def test_systemd_gives_enough_until_a_unit_gives_less(budget: Callable[..., Ran]) -> None:
    status, out, err = budget(ORDERS, "--platform", "systemd")
    assert (status, err) == (0, "")
    assert "note: systemd has no preStop" in out
    status, _, err = budget(ORDERS, "--platform", "systemd", "--grace-period", "49")
    assert status == 78
    assert "systemd gives 49 s; from SIGTERM to SIGKILL the service needs 50 s. Set TimeoutStopSec=50" in err


def test_what_a_platform_was_set_to_counts_and_what_cannot_be_set_does_not(budget: Callable[..., Ran]) -> None:
    assert budget(ORDERS, "--platform", "docker", "--grace-period", "50")[0] == 0
    status, _, err = budget(ORDERS, "--platform", "heroku", "--grace-period", "60")
    assert status == 78
    assert "Heroku gives 30 s, and no setting changes that; got 60" in err
    assert "the service needs 50 s" in err


@pytest.mark.parametrize("platform", ["docker", "cloud-run", "ecs", "heroku", "systemd", "kubernetes"])
def test_a_small_service_fits_everywhere(budget: Callable[..., Ran], platform: str) -> None:
    assert budget("budget_services:small", "--platform", platform)[::2] == (0, "")


def test_the_manifest_of_the_order_service_agrees(budget: Callable[..., Ran]) -> None:
    status, out, err = budget(ORDERS, "--manifest", str(MANIFEST), "--worker", "charge=5:after-http")
    assert (status, err) == (0, "")
    assert "Deployment/order-service: grace period 60 s, preStop of order-service 10 s" in out
    assert "note" not in out


Change = Callable[[dict[str, Any], dict[str, Any]], object]


@pytest.fixture
def changed(tmp_path: Path) -> Callable[[Change], str]:
    """Our manifest with something changed in the pod's spec or its container: the path of the file."""

    def write(change: Change) -> str:
        documents = list(yaml.safe_load_all(MANIFEST.read_text()))
        pod = next(d for d in documents if d["kind"] == "Deployment")["spec"]["template"]["spec"]
        change(pod, pod["containers"][0])
        path = tmp_path / "manifest.yaml"
        path.write_text(yaml.safe_dump_all(documents))
        return str(path)

    return write


def _sleep(seconds: int) -> Change:
    return lambda pod, container: container["lifecycle"]["preStop"]["sleep"].update(seconds=seconds)


def _command(*command: str) -> Change:
    return lambda pod, container: container["lifecycle"].update(preStop={"exec": {"command": list(command)}})


def _second(name: str, seconds: int) -> Change:
    sidecar = {"name": name, "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(seconds)]}}}}
    return lambda pod, container: pod["containers"].insert(0, sidecar)


def _sidecar(seconds: int, policy: str = "Always") -> Change:
    hook = {"preStop": {"sleep": {"seconds": seconds}}}
    sidecar = {"name": "mesh", "restartPolicy": policy, "lifecycle": hook}
    return lambda pod, container: pod.update(initContainers=[{"name": "migrate"}, sidecar])


def _probe(path: str, port: object) -> Change:
    return lambda pod, container: container["livenessProbe"]["httpGet"].update(path=path, port=port)


@pytest.mark.parametrize(
    ("change", "rule", "said"),
    [
        (lambda pod, container: pod.pop("terminationGracePeriodSeconds"), "R-SHUT-K8S-X2", "so it is 30. Write 60"),
        (lambda pod, container: container.pop("lifecycle"), "R-SHUT-K8S-X1", "preStop sleep of 10 seconds"),
        (_probe("/health/ready", "http"), "R-SHUT-K8S-2", "the same endpoint"),
        (_probe("/health/ready", 8080), "R-SHUT-K8S-2", "the same endpoint"),
        (lambda pod, container: pod.update(terminationGracePeriodSeconds=45), "R-SHUT-2", "= 60 s, over"),
        (_sleep(15), "R-SHUT-2", "preStop 15 + hard deadline 49 + margin 1 = 65 s"),
        (_command("sleep", "11"), "R-SHUT-2", "preStop 11 + "),
        (_command("/bin/sh", "-c", "sleep 5; sleep 0.1m && true"), "R-SHUT-2", "preStop 11 + "),
    ],
)
def test_a_manifest_that_does_not_fit(
    budget: Callable[..., Ran], changed: Callable[[Change], str], change: Change, rule: str, said: str
) -> None:
    status, out, err = budget(ORDERS, "--manifest", changed(change), "--json")
    (refused,) = json.loads(out)["refused"]
    assert (status, refused["rule"]) == (78, rule)
    assert said in refused["message"]
    assert err == f"quiesce: {refused['message']} ({rule})\n"


@pytest.mark.parametrize("change", [_sleep(60), _command("sleep", "75"), _second("mesh", 60), _sidecar(60)])
def test_s22_a_prestop_as_long_as_the_grace_period_is_refused(
    budget: Callable[..., Ran], changed: Callable[[Change], str], change: Change
) -> None:
    status, _, err = budget(ORDERS, "--manifest", changed(change))
    assert status == 78
    assert "SIGKILL comes about two seconds after SIGTERM" in err
    assert err.count("\n") == 1


def test_s22_the_default_grace_period_counts_where_none_is_written(
    budget: Callable[..., Ran], changed: Callable[[Change], str]
) -> None:
    def change(pod: dict[str, Any], container: dict[str, Any]) -> None:
        del pod["terminationGracePeriodSeconds"]
        _sleep(30)(pod, container)

    _, out, _ = budget(ORDERS, "--manifest", changed(change), "--json")
    assert [refused["rule"] for refused in json.loads(out)["refused"]] == ["R-SHUT-K8S-X2", "R-SHUT-2"]


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (_sleep(5), "preStop sleeps 5 s, the budget's prestop is 10 s"),
        (_command("/drain.sh"), "cannot be read"),
        (_command("/bin/sh", "-c", "for i in 1 2 3; do sleep 10; done"), "cannot be read"),
        (_command("/bin/sh", "-c", "sleep $SECONDS_TO_SLEEP"), "cannot be read"),
        (_sidecar(60, "Never"), None),
        (lambda pod, container: pod.update(terminationGracePeriodSeconds=90), "30 s of the grace period are not used"),
        (_second("mesh", 20), None),
    ],
)
def test_a_manifest_that_fits_but_differs(
    budget: Callable[..., Ran], changed: Callable[[Change], str], change: Change, note: str | None
) -> None:
    status, out, err = budget(ORDERS, "--manifest", changed(change), "--worker", "charge=5:after-http")
    assert (status, err) == (0, "")
    assert (note in out) if note else ("note" not in out)


@pytest.mark.parametrize(
    ("script", "seconds"),
    [
        ("sleep 10", 10),
        ("exec /bin/sleep 1m 5s", 65),
        ("curl -s localhost || sleep 5; sleep 5", 10),
        ("if ready; then { sleep 7; } fi", 7),
        ("(sleep 3) & wait", 3),
        ("sleep 4 # as long as the balancer needs", 4),
        ("echo sleep 70", None),
        ("while true; do sleep 1; done", None),
        ("seq 3 | xargs -n 1 sleep", None),
        ("wait() { sleep 3; }; wait; wait", None),
        ("sleep infinity", None),
        ("", None),
    ],
)
def test_how_long_a_script_sleeps(script: str, seconds: float | None) -> None:
    assert slept(["/bin/bash", "-ec", script]) == seconds


@pytest.mark.parametrize("kind", ["Job", "CronJob"])
def test_a_job_is_told_to_go_as_well_and_needs_no_prestop(
    budget: Callable[..., Ran], tmp_path: Path, kind: str
) -> None:
    spec: dict[str, Any] = {"template": {"spec": {"containers": [{"name": "import"}]}}}
    pod = spec["template"]["spec"]
    path = tmp_path / "job.yaml"

    def told(grace_period: int) -> Ran:
        pod["terminationGracePeriodSeconds"] = grace_period
        whole = spec if kind == "Job" else {"jobTemplate": {"spec": spec}}
        path.write_text(yaml.safe_dump({"kind": kind, "metadata": {"name": "import"}, "spec": whole}))
        return budget(ORDERS, "--manifest", str(path))

    status, out, err = told(50)
    assert (status, err) == (0, "")
    assert "the budget's prestop of 10 s is spent by nobody" in out
    assert told(40)[0] == 78


def test_bounds_that_are_not_known_here_are_said_to_be_unknown(budget: Callable[..., Ran]) -> None:
    status, out, _ = budget(ORDERS)
    assert status == 0
    assert "note: what the start-up function asks for its workers" in out
    assert "Name those with terms of their own by --worker" in out
    assert "note" not in budget(ORDERS, "--worker", "charge=5:after-http")[1]


def test_where_there_is_no_slack_the_picture_shows_the_time_to_unwind() -> None:
    budget = Budget(grace_period=6, prestop=0, http=2.5, workers=2.5, producers=1, pools=1, report=1, margin=0.5)
    found = {s.name: (s.deadline, s.spare) for s in Timeline.of(budget, (WorkerBound("slow", 2.4),)).stretches}
    assert found["http"] == found["workers"] == (2.25, 0.0)
    assert found["worker slow"] == pytest.approx((2.25, 0.1))


def test_a_lame_duck_window_stands_in_for_a_prestop(
    budget: Callable[..., Ran], changed: Callable[[Change], str]
) -> None:
    path = changed(lambda pod, container: container.pop("lifecycle"))
    assert budget("budget_services:lame", "--manifest", path)[0] == 0
    assert budget("budget_services:small", "--manifest", path)[0] == 78


def test_a_manifest_comes_from_standard_input(budget: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(MANIFEST.read_text()))
    assert budget(ORDERS, "--manifest", "-", "--platform", "kubernetes")[0] == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: Service\n", "has none of Deployment"),
        ("kind: Job\nmetadata: {name: a}\n", "Job/a has no spec"),
        ("kind: CronJob\nmetadata: {name: a}\nspec: {jobTemplate: {}}\n", "CronJob/a has no spec"),
        ("replicas: {{ .Values.replicas }}\n", "line 1: is no YAML; render a template first"),
        ("kind: Pod\nmetadata: {name: a}\nspec: {}\n", "Pod/a has no containers"),
        ("kind: Deployment\nmetadata: {name: a}\n", "Deployment/a has no spec"),
        (
            "kind: Pod\nmetadata: {name: a}\nspec: {terminationGracePeriodSeconds: 60s, containers: [{name: a}]}\n",
            "terminationGracePeriodSeconds: got '60s', takes whole seconds",
        ),
        (None, "No such file"),
    ],
)
def test_a_file_that_says_nothing_is_refused(
    budget: Callable[..., Ran], tmp_path: Path, text: str | None, said: str
) -> None:
    path = tmp_path / "m.yaml"
    if text is not None:
        path.write_text(text)
    status, out, err = budget(ORDERS, "--manifest", str(path))
    assert (status, out) == (78, "")
    assert said in err


def test_without_pyyaml_one_line_says_how_to_get_it(
    budget: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    status, _, err = budget(ORDERS, "--manifest", str(MANIFEST))
    assert (status, err) == (1, 'quiesce: --manifest needs PyYAML: pip install "quiesce[manifest]"\n')


def test_the_environment_lists_workers_and_the_command_line_takes_their_place(
    budget: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIESCE_WORKER", "relay=3, charge=4:after-http")
    monkeypatch.setenv("QUIESCE_JSON", "1")

    def names(*argv: str) -> list[str]:
        parts = json.loads(budget(ORDERS, *argv)[1])["parts"]
        return [part["name"] for part in parts if part["name"].startswith("worker ")]

    assert names() == ["worker relay", "worker charge"]
    assert names("--worker", "a=1", "--worker", "b=2") == ["worker a", "worker b"]
    monkeypatch.setenv("QUIESCE_WORKER", "relay")
    assert budget(ORDERS)[::2] == (
        78,
        "quiesce: QUIESCE_WORKER: got 'relay', takes NAME=BOUND, then :after-http or :hand-back\n",
    )


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--worker", "a=1", "--worker", "a=2"), "a is given twice"),
        (("--worker", "workers=1"), "is the budget's own"),
        (("--grace-period", "50"), "takes a --platform"),
        (("--platform", "docker", "--manifest", "x"), "--platform got 'docker'"),
    ],
)
def test_flags_that_contradict_each_other(budget: Callable[..., Ran], argv: tuple[str, ...], said: str) -> None:
    status, _, err = budget(ORDERS, *argv)
    assert status == 78
    assert said in err


@pytest.mark.parametrize("worker", ["a", "=1", "a=x", "a=-1", "a=nan", "a=1:later"])
def test_a_worker_that_cannot_be_read(worker: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["budget", ORDERS, "--worker", worker])
    assert exit_.value.code == 2
    assert "argument --worker: got " in capsys.readouterr().err
