"""The settings of a Kafka broker for tests: one node that is its own controller (KRaft), and quick."""

from collections.abc import Mapping
from pathlib import Path

from quiesce.errors import StartError

_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def broker_settings(data: Path, *, port: int, controller_port: int) -> dict[str, str]:
    """Those of a broker that keeps its log in `data` and takes clients on the loopback port without asking who."""
    client, controller = f"127.0.0.1:{port}", f"127.0.0.1:{controller_port}"
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": controller,
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{client},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{client}",
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        # One broker holds the only copy of everything.
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        # A broker killed and started again is refused until the session of its former life has run out (9 s).
        "broker.session.timeout.ms": "2000",
        "broker.heartbeat.interval.ms": "300",
        # Quick: few internal partitions, no waiting for more members, short sessions where a test asks for it.
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "500",
        # The same for members of the protocol `consumer`, for whom the broker decides.
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": "100",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.session.timeout.ms": "6000",
    }


def with_users(settings: Mapping[str, str], users: Mapping[str, str], port: int) -> dict[str, str]:
    """The settings with a listener on `port` for `users` (names and passwords), who may do only what an ACL allows."""
    logins = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    sasl = f"SASL://127.0.0.1:{port}"
    return {
        **settings,
        "listeners": f"{settings['listeners']},{sasl}",
        "advertised.listeners": f"{settings['advertised.listeners']},{sasl}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": f"{_LOGIN} required {logins};",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # The plain listener, the controller's and ours.
        "super.users": "User:ANONYMOUS",
    }


def write_settings(settings: Mapping[str, str], file: Path) -> None:
    """Write them as Kafka's programs read them. Raises StartError when there is no place for the file."""
    lines = [f"{name}={value}" for name, value in settings.items()]
    try:
        file.write_text("\n".join(lines) + "\n")
    except OSError as error:
        raise StartError(f"cannot write Kafka's settings in {file.parent}: {error.strerror}") from error
