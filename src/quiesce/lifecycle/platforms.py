"""What the platforms give a process between the order to stop and SIGKILL, and how to ask for more."""

from dataclasses import dataclass

from quiesce.lifecycle.timeline import Finding, Timeline


@dataclass(frozen=True, slots=True)
class Platform:
    """One platform, as it is when nobody sets anything."""

    name: str
    title: str
    grace_period: float
    """Seconds by default."""
    setting: str | None = None
    """What asks for more, with `{seconds}` in it. None: nothing can."""
    most: float | None = None
    """The most that can be asked for everywhere on it."""
    prestop: bool = False
    """Whether it has a preStop hook, whose time comes out of the same grace period."""

    def needed(self, timeline: Timeline) -> float:
        """Seconds that the service needs here. Without a preStop hook nothing is spent before SIGTERM."""
        return timeline.budget.grace_period if self.prestop else timeline.after_sigterm

    def findings(self, timeline: Timeline, given: float | None = None) -> list[Finding]:
        """What does not fit, and what to set. `given`: seconds it was set to, instead of the default."""
        grace = self.grace_period if given is None else given
        needed = self.needed(timeline)
        found = []
        if given is not None and self.setting is None and given != self.grace_period:
            grace = self.grace_period
            found.append(Finding(f"{self.title} gives {grace:g} s, and no setting changes that; got {given:g}"))
        if needed > grace + 0.001:
            found.append(
                Finding(f"{self._too_little(grace, given, needed)}. {self._remedy(timeline, needed)}", "R-SHUT-2")
            )
        if timeline.budget.prestop and not self.prestop:
            found.append(
                Finding(
                    f"{self.title} has no preStop: the budget's prestop of {timeline.budget.prestop:g} s is spent by "
                    "nobody. Where routers must forget the service first, that is lame_duck's work",
                    refused=False,
                )
            )
        return found

    def _too_little(self, grace: float, given: float | None, needed: float) -> str:
        by_default = " by default" if given is None and self.setting is not None else ""
        what = "the whole of the budget" if self.prestop else "from SIGTERM to SIGKILL the service"
        verb = "is" if self.prestop else "needs"
        return f"{self.title} gives {grace:g} s{by_default}; {what} {verb} {needed:g} s"

    def _remedy(self, timeline: Timeline, needed: float) -> str:
        smaller = f"Budget(grace_period={self.most or self.grace_period:g}, ...)"
        if not self.prestop:
            smaller = smaller.replace(", ...", ", prestop=0, ...")
        if self.setting is None:
            return f"No setting makes it more: make the parts smaller, {smaller}"
        # Every one of these settings takes whole seconds.
        remedy = "Set " + self.setting.format(seconds=-int(-needed // 1))
        if self.most is not None and needed > self.most:
            remedy += f"; where {self.most:g} s is the most that is given, make the parts smaller, {smaller}"
        return remedy


KUBERNETES = Platform(
    "kubernetes", "Kubernetes", 30.0, "terminationGracePeriodSeconds: {seconds} in the pod's spec", prestop=True
)

PLATFORMS = {
    platform.name: platform
    for platform in (
        KUBERNETES,
        Platform(
            "docker",
            "Docker",
            10.0,
            "it by docker stop -t {seconds}, docker run --stop-timeout {seconds}, or stop_grace_period: {seconds}s "
            "in a compose file",
        ),
        Platform("cloud-run", "Cloud Run", 10.0),
        Platform("ecs", "ECS", 30.0, '"stopTimeout": {seconds} in the container\'s definition', most=120.0),
        Platform("heroku", "Heroku", 30.0),
        Platform("systemd", "systemd", 90.0, "TimeoutStopSec={seconds} in the unit"),
    )
}
"""By the name that the command line takes."""
