"""What a Kubernetes manifest says of the shutdown, and whether it agrees with the service's budget."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from quiesce.errors import SettingsError
from quiesce.lifecycle.platforms import KUBERNETES
from quiesce.lifecycle.prestop import slept
from quiesce.lifecycle.timeline import Finding, Timeline

WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Pod", "Job", "CronJob")
"""The kinds whose pods are told to go by SIGTERM: a Job's as well, by an eviction or its activeDeadlineSeconds."""

UNROUTED = ("Job", "CronJob")
"""Those to which nobody routes requests."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What was read. Times are seconds."""

    label: str
    """Kind and name, such as Deployment/order-service."""
    grace_period: float | None
    """terminationGracePeriodSeconds, where it is written down."""
    container: str
    """Which container runs the service."""
    has_prestop: bool
    prestop: float | None
    """None: there is no preStop, or its length cannot be read (an HTTP hook, a script)."""
    same_probes: bool
    """Readiness and liveness ask the same endpoint."""
    beside: tuple[tuple[str, float], ...] = ()
    """preStop of the other containers, by name: they come out of the same grace period. Sidecars among the init
    containers are such, too."""
    routed: bool = True
    """Whether requests may come to it."""

    @property
    def grace(self) -> float:
        return KUBERNETES.grace_period if self.grace_period is None else self.grace_period

    def findings(self, timeline: Timeline) -> list[Finding]:
        return [Finding(f"{self.label}: {f.message}", f.rule, f.refused) for f in self._findings(timeline)]

    def _findings(self, timeline: Timeline) -> Iterator[Finding]:
        budget = timeline.budget
        if self.grace_period is None:
            yield Finding(
                f"terminationGracePeriodSeconds is not written down, so it is {self.grace:g}. "
                f"Write {budget.grace_period:g}",
                "R-SHUT-K8S-X2",
            )
        yield from self._prestop(timeline)
        if self.same_probes:
            yield Finding(
                "readinessProbe and livenessProbe ask the same endpoint: a pod that drains would be restarted for it. "
                "Use /health/ready and /health/live",
                "R-SHUT-K8S-2",
            )
        swallowed = [(c, s) for c, s in self._hooks() if s >= self.grace]
        for container, seconds in swallowed:
            yield Finding(
                f"the preStop of {container} sleeps {seconds:g} s, and the grace period is {self.grace:g} s: SIGKILL "
                "comes about two seconds after SIGTERM, whatever is in hand. Make the sleep shorter",
                "R-SHUT-2",
            )
        if self.grace_period is None or swallowed:
            return  # Already refused, with what to do.
        prestop = self.prestop or 0.0 if not self.has_prestop or self.prestop is not None else budget.prestop
        needed = prestop + timeline.after_sigterm
        if needed > self.grace + 0.001:
            yield Finding(
                f"preStop {prestop:g} + hard deadline {budget.available:g} + margin {budget.margin:g} = {needed:g} s, "
                f"over terminationGracePeriodSeconds {self.grace:g}. Make the parts smaller, or write {needed:g}",
                "R-SHUT-2",
            )
        elif needed < self.grace:
            yield Finding(f"{self.grace - needed:g} s of the grace period are not used by the budget", refused=False)

    def _prestop(self, timeline: Timeline) -> Iterator[Finding]:
        budget = timeline.budget
        if not self.has_prestop:
            # Without HTTP nobody routes to the pod; a lame-duck window does the same work inside the process.
            if not self.routed:
                if budget.prestop:
                    yield Finding(
                        f"container {self.container} has no preStop: the budget's prestop of {budget.prestop:g} s is "
                        "spent by nobody",
                        refused=False,
                    )
            elif budget.prestop or (budget.http and not budget.lame_duck):
                yield Finding(
                    f"container {self.container} has no preStop: requests still come when it stops. "
                    f"Write a preStop sleep of {budget.prestop or 10:g} seconds",
                    "R-SHUT-K8S-X1",
                )
        elif self.prestop is None:
            yield Finding(
                f"how long the preStop of {self.container} takes cannot be read from it; taken as the budget's "
                f"{budget.prestop:g} s",
                refused=False,
            )
        elif self.prestop != budget.prestop:
            yield Finding(
                f"preStop sleeps {self.prestop:g} s, the budget's prestop is {budget.prestop:g} s: "
                "give them one number",
                refused=False,
            )

    def _hooks(self) -> list[tuple[str, float]]:
        return [*([(self.container, self.prestop)] if self.prestop is not None else []), *self.beside]

    def as_dict(self) -> dict[str, object]:
        return {
            "workload": self.label,
            "container": self.container,
            "grace_period": self.grace_period,
            "prestop": self.prestop,
        }


def workloads(documents: Iterable[object], service: str) -> list[Workload]:
    """Those of a manifest that are called like the service; all of them if none is.

    Raises:
        SettingsError: there is none, or one that is no workload as Kubernetes knows it.
    """
    found = [item for document in documents for item in _items(document) if item.get("kind") in WORKLOADS]
    if not found:
        raise SettingsError(f"manifest: has none of {', '.join(WORKLOADS)}")
    named = [item for item in found if _name(item) == service]
    return [_workload(item, service) for item in named or found]


_WAY = {"Pod": (), "CronJob": ("spec", "jobTemplate", "spec", "template")}
"""Where the pod stands in a workload; else under its template."""


def _items(document: object) -> Iterator[dict[str, Any]]:
    if isinstance(document, dict):
        if document.get("kind") == "List":
            for item in document.get("items") or ():
                yield from _items(item)
        else:
            yield document


def _workload(item: dict[str, Any], service: str) -> Workload:
    label = f"{item['kind']}/{_name(item)}"
    pod = item
    for key in _WAY.get(item["kind"], ("spec", "template")):
        pod = _get(pod, key, label)
    spec = _get(pod, "spec", label)
    containers = spec.get("containers")
    if not isinstance(containers, list) or not containers or not all(isinstance(c, dict) for c in containers):
        raise SettingsError(f"manifest: {label} has no containers")
    main = _main(containers, (service, _name(item), _default_container(pod)))
    readiness, liveness = (_endpoint(main, main.get(probe)) for probe in ("readinessProbe", "livenessProbe"))
    hook = _hook(main)
    sidecars = [c for c in _list(spec.get("initContainers")) if _mapping(c).get("restartPolicy") == "Always"]
    beside = [(str(c.get("name")), _sleep(_hook(c))) for c in [*containers, *sidecars] if c is not main]
    return Workload(
        label=label,
        grace_period=_seconds(spec, "terminationGracePeriodSeconds", label),
        container=str(main.get("name")),
        has_prestop=bool(hook),
        prestop=_sleep(hook),
        same_probes=readiness is not None and readiness == liveness,
        beside=tuple((name, seconds) for name, seconds in beside if seconds is not None),
        routed=item["kind"] not in UNROUTED,
    )


def _main(containers: list[dict[str, Any]], names: Iterable[str | None]) -> dict[str, Any]:
    """The container that runs the service: the one called like it, or the first."""
    for name in names:
        for container in containers:
            if name is not None and container.get("name") == name:
                return container
    return containers[0]


def _default_container(pod: dict[str, Any]) -> str | None:
    name = _mapping(_mapping(pod.get("metadata")).get("annotations")).get("kubectl.kubernetes.io/default-container")
    return name if isinstance(name, str) else None


def _hook(container: dict[str, Any]) -> dict[str, Any]:
    return _mapping(_mapping(container.get("lifecycle")).get("preStop"))


def _sleep(hook: dict[str, Any]) -> float | None:
    if "sleep" in hook:
        return _seconds(_mapping(hook["sleep"]), "seconds", "preStop sleep")
    command = _mapping(hook.get("exec")).get("command")
    return slept([str(word) for word in command]) if isinstance(command, list) else None


def _endpoint(container: dict[str, Any], probe: object) -> object:
    """What a probe asks, so that two can be compared; headers and times aside."""
    if not isinstance(probe, dict):
        return None
    if "httpGet" in probe:
        asked = _mapping(probe["httpGet"])
        return ("http", asked.get("path", "/"), _port(container, asked.get("port")), asked.get("host"))
    if "tcpSocket" in probe:
        return ("tcp", _port(container, _mapping(probe["tcpSocket"]).get("port")))
    return next(((kind, probe[kind]) for kind in ("exec", "grpc") if kind in probe), None)


def _port(container: dict[str, Any], port: object) -> object:
    """The number behind a port's name."""
    for known in container.get("ports") or ():
        if isinstance(port, str) and _mapping(known).get("name") == port:
            return known.get("containerPort")
    return int(port) if isinstance(port, str) and port.isdigit() else port


def _seconds(of: dict[str, Any], key: str, label: str) -> float | None:
    value = of.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SettingsError(f"manifest: {label}: {key}: got {value!r}, takes whole seconds")
    return float(value)


def _get(of: dict[str, Any], key: str, label: str) -> dict[str, Any]:
    found = of.get(key)
    if not isinstance(found, dict):
        raise SettingsError(f"manifest: {label} has no {key}")
    return found


def _list(value: object) -> list[dict[str, Any]]:
    return value if isinstance(value, list) else []


def _mapping(value: object) -> dict[str, Any]:
    """Empty where there is none, or something else: what is no manifest is not judged here."""
    return value if isinstance(value, dict) else {}


def _name(item: dict[str, Any]) -> str:
    return str(_mapping(item.get("metadata")).get("name", "without a name"))
