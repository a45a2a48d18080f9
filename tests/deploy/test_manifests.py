"""The manifests are valid Kubernetes, obey R-SHUT-K8S-*, and say what the service's budget says."""

import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from quiesce.examples.order_service.main import orders

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
VERSION = "1.31"  # the first where the sleep of a preStop hook is on by default is 1.30


def documents() -> list[tuple[str, dict[str, Any]]]:
    found = []
    for path in MANIFESTS:
        found += [(f"{path.name}:{d['kind']}", d) for d in yaml.safe_load_all(path.read_text()) if d]
    return found


@pytest.mark.parametrize(("name", "document"), documents(), ids=[name for name, _ in documents()])
def test_manifests_fit_the_kubernetes_schemas(name: str, document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, VERSION, strict=True)


def test_the_schemas_find_a_fault() -> None:
    _, deployment = next(item for item in documents() if item[0].endswith("Deployment"))
    broken = json.loads(json.dumps(deployment))
    broken["spec"]["template"]["spec"]["terminationGracePeriodSecond"] = 60
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSION, strict=True)


@pytest.fixture(scope="module")
def deployment() -> dict[str, Any]:
    return dict(next(document for name, document in documents() if name.endswith("Deployment")))


@pytest.fixture(scope="module")
def pod(deployment: dict[str, Any]) -> dict[str, Any]:
    return dict(deployment["spec"]["template"]["spec"])


def test_r_shut_k8s_1_the_grace_period_is_written_down(pod: dict[str, Any]) -> None:
    assert pod["terminationGracePeriodSeconds"] == 60 == orders.budget.grace_period


def test_r_shut_k8s_2_probes_point_at_their_own_endpoints(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/health/ready"
    assert container["livenessProbe"]["httpGet"]["path"] == "/health/live"


def test_r_shut_k8s_3_one_more_comes_before_one_goes(deployment: dict[str, Any]) -> None:
    assert deployment["spec"]["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }


def test_r_shut_k8s_x1_there_is_a_prestop_and_the_budget_knows_it(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    assert container["lifecycle"]["preStop"]["sleep"]["seconds"] == 10 == orders.budget.prestop


def test_r_shut_k8s_x2_the_graceful_timeout_fits_into_the_grace_period(pod: dict[str, Any]) -> None:
    assert 20 <= orders.budget.http <= 45
    assert orders.budget.longest() <= pod["terminationGracePeriodSeconds"]


def test_the_service_is_pid_1_in_exec_form_and_the_target_exists() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert "ENTRYPOINT" not in text
    (command,) = re.findall(r"^CMD (.*)$", text, re.MULTILINE)
    argv = json.loads(command)
    assert argv[:2] == ["quiesce", "run"]
    from quiesce.cli.run import load

    assert load(argv[2]) is orders


def test_every_copied_file_of_the_image_exists() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (DEPLOY.parent / source).exists(), source
