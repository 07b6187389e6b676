"""The files for several gateways: deploy/compose.scale.yml and deploy/k8s say what the one-gateway files say."""

from __future__ import annotations

import re
import tomllib
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from gateway import installation
from gateway.settings import load_settings

ROOT = Path(__file__).resolve().parents[2]
GATEWAYS = ("parlour-1", "parlour-2", "parlour-3")
OWN = {"environment", "ports", "volumes", "networks", "secrets", "depends_on"}


def read(path: str) -> dict[str, Any]:
    """Return a compose file."""
    found: dict[str, Any] = yaml.safe_load((ROOT / path).read_text("utf-8"))
    return found


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """deploy/compose.scale.yml."""
    return read("deploy/compose.scale.yml")


@pytest.fixture(scope="module")
def objects() -> dict[str, dict[str, Any]]:
    """The Kubernetes objects, by kind: one of each."""
    found = list(yaml.safe_load_all((ROOT / "deploy/k8s/parlour.yaml").read_text("utf-8")))
    by_kind = {each["kind"]: each for each in found}
    assert len(by_kind) == len(found)
    return by_kind


def read_strictly(manifest: dict[str, Any]) -> None:
    """Read *manifest* with the model of its kind. Raises ValidationError at an unknown field or another type."""
    group, _, version = manifest["apiVersion"].rpartition("/")
    module = import_module(f"cloudcoil.models.kubernetes.{group.partition('.')[0] or 'core'}.{version}")
    getattr(module, manifest["kind"]).model_validate(manifest, strict=True, extra="forbid")


def test_the_manifests_have_no_field_that_kubernetes_does_not_know(objects: dict[str, dict[str, Any]]) -> None:
    """The models made of Kubernetes' own interface read each object, and refuse a misspelt field and a wrong type."""
    for manifest in objects.values():
        read_strictly(manifest)
    wrong = deepcopy(objects["Deployment"])
    (container,) = wrong["spec"]["template"]["spec"]["containers"]
    container["readinesProbe"] = container.pop("readinessProbe")
    container["ports"][0]["containerPort"] = "8787"
    with pytest.raises(ValidationError) as refused:
        read_strictly(wrong)
    assert {error["loc"][-1]: error["type"] for error in refused.value.errors()} == {
        "readinesProbe": "extra_forbidden",
        "containerPort": "int_type",
    }


def test_a_server_beside_the_gateways_is_as_confined_as_they_are(objects: dict[str, dict[str, Any]]) -> None:
    """deploy/k8s/mcp.yaml: each field is known, no secret, no token, no right, and only gateways reach it."""
    found = {each["kind"]: each for each in yaml.safe_load_all((ROOT / "deploy/k8s/mcp.yaml").read_text("utf-8"))}
    assert set(found) == {"Deployment", "Service", "NetworkPolicy"}
    for manifest in found.values():
        read_strictly(manifest)
    pod = found["Deployment"]["spec"]["template"]["spec"]
    gateway = objects["Deployment"]["spec"]["template"]
    (server,) = pod["containers"]
    assert server["securityContext"] == gateway["spec"]["containers"][0]["securityContext"]
    assert pod["automountServiceAccountToken"] is pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] not in (0, 10001)
    assert {"env", "envFrom", "hostNetwork", "hostPID"}.isdisjoint({*server, *pod})
    assert [next(iter(each.keys() - {"name"})) for each in pod["volumes"]] == ["emptyDir"]
    assert server["resources"]["limits"]["memory"] == "256Mi"
    policy = found["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == found["Service"]["spec"]["selector"]
    assert policy["egress"] == []
    (rule,) = policy["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": gateway["metadata"]["labels"]}}]


@pytest.mark.parametrize("name", GATEWAYS)
def test_each_gateway_is_the_one_of_the_compose_file(compose: dict[str, Any], name: str) -> None:
    """Image, hardening, bounds and health are the same lines; its home is its own, and it has no port."""
    one, service = read("docker-compose.yml")["services"]["parlour"], compose["services"][name]
    assert {key: value for key, value in service.items() if key not in OWN} == {
        key: value for key, value in one.items() if key not in OWN
    }
    assert one["environment"].items() <= service["environment"].items()
    assert service["volumes"] == [f"data-{name[-1]}:/data"]
    assert "ports" not in service
    assert service["depends_on"] == {"postgres": {"condition": "service_healthy"}}


def test_the_database_is_the_one_of_the_other_compose_file(compose: dict[str, Any]) -> None:
    """With its secrets and its network, which only gateways share."""
    other = read("deploy/compose.postgres.yml")
    assert compose["services"]["postgres"] == other["services"]["postgres"]
    assert compose["secrets"] == other["secrets"]
    assert compose["networks"]["database"] == other["networks"]["database"]
    inside = {name for name, each in compose["services"].items() if "database" in each["networks"]}
    assert inside == {*GATEWAYS, "postgres"}


def test_the_proxy_alone_has_a_port_and_is_the_one_that_gateways_trust(compose: dict[str, Any]) -> None:
    """It is bounded and hardened, and mounts the file whose upstream has the gateways' names and port."""
    proxy, gateway = compose["services"]["proxy"], compose["services"]["parlour-1"]
    assert proxy["ports"] == ["127.0.0.1:${PARLOUR_WEB__PUBLISHED_PORT:-8787}:8080"]
    assert proxy["volumes"] == ["./deploy/nginx.scale.conf:/etc/nginx/conf.d/default.conf:ro"]
    for key in ("read_only", "cap_drop", "security_opt", "restart", "logging"):
        assert proxy[key] == gateway[key], key
    assert gateway["environment"]["PARLOUR_WEB__TRUSTED_PROXIES"] == proxy["networks"]["default"]["ipv4_address"]
    conf = (ROOT / "deploy/nginx.scale.conf").read_text("utf-8")
    port = gateway["environment"]["PARLOUR_WEB__PORT"]
    assert re.findall(r"^    server (\S+) ", conf, re.MULTILINE) == [f"{name}:{port}" for name in GATEWAYS]
    assert "listen 8080;" in conf


@pytest.mark.parametrize("where", ["compose", "kubernetes"])
def test_their_settings_are_taken(
    tmp_path: Path, compose: dict[str, Any], objects: dict[str, dict[str, Any]], where: str
) -> None:
    """The gateway reads each of them: a shared store whose address is in a file."""
    found = compose["services"]["parlour-1"]["environment"] if where == "compose" else objects["ConfigMap"]["data"]
    url = "postgresql://parlour:secret@postgres/parlour"
    files = {name: tmp_path / name for name in found if name.endswith("_FILE")}
    for name, file in files.items():
        file.write_text(url if "STORE" in name else "sk-x")
    values = {name: re.sub(r"\$\{\w+:-(.*?)\}", r"\1", text) for name, text in found.items()}
    settings = load_settings({**values, **{name: str(file) for name, file in files.items()}})
    assert (settings.store.shared, settings.store.address) == (True, url)
    assert settings.web.trusted_proxies


@pytest.mark.parametrize("where", ["compose", "kubernetes"])
def test_the_gateway_names_commands_as_the_file_s_head_does(
    compose: dict[str, Any], objects: dict[str, dict[str, Any]], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line for a login code, in the log and on the page, is letter by letter the one at the head of the file."""
    monkeypatch.setattr(installation, "_MAKEFILE", Path("/nowhere/Makefile"))
    file, variables = {
        "compose": ("deploy/compose.scale.yml", compose["services"]["parlour-1"]["environment"]),
        "kubernetes": (
            "deploy/k8s/parlour.yaml",
            objects["ConfigMap"]["data"] | {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
        ),
    }[where]
    command = installation.operator_command("web login", variables | {"container": "oci"})
    assert command in re.findall(r"[^`\n]*parlour web login", (ROOT / file).read_text("utf-8").replace("#   ", ""))


def test_pods_are_as_confined_as_the_container(objects: dict[str, dict[str, Any]]) -> None:
    """The image's user, no root, nothing writable but the home and /tmp, no capability, no token of the cluster."""
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"]["memory"] == "1Gi"
    with (ROOT / "pyproject.toml").open("rb") as file:
        assert container["image"].endswith(f"/parlour:{tomllib.load(file)['project']['version']}")


def test_secrets_are_files_that_the_gateway_s_user_alone_reads(objects: dict[str, dict[str, Any]]) -> None:
    """No secret is in a variable; the paths in the settings are those of the mount."""
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert {each["name"] for each in pod["volumes"]} == set(mounts)
    (secret,) = [each["secret"] for each in pod["volumes"] if "secret" in each]
    assert secret["defaultMode"] == 0o440
    assert container["envFrom"] == [{"configMapRef": {"name": objects["ConfigMap"]["metadata"]["name"]}}]
    assert "env" not in container
    files = [path for name, path in objects["ConfigMap"]["data"].items() if name.endswith("_FILE")]
    assert files
    assert all(path.startswith(mounts["secrets"] + "/") for path in files)


def test_the_probes_are_answered_and_a_disruption_takes_one_pod(objects: dict[str, dict[str, Any]]) -> None:
    """They name this machine, or would be refused; the liveness probe does not ask for the database."""
    deployment = objects["Deployment"]["spec"]
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]
    for probe, path in (("startupProbe", "/readyz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")):
        asked = container[probe]["httpGet"]
        assert (asked["path"], asked["port"]) == (path, container["ports"][0]["name"])
        assert asked["httpHeaders"] == [{"name": "Host", "value": "localhost"}]
    labels = deployment["template"]["metadata"]["labels"]
    assert objects["PodDisruptionBudget"]["spec"] == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
    assert objects["Service"]["spec"]["selector"] == deployment["selector"]["matchLabels"] == labels
    assert pod["terminationGracePeriodSeconds"] > 25


def test_the_ingress_leads_to_the_service_under_the_public_name(objects: dict[str, dict[str, Any]]) -> None:
    """The name is that of the settings, and has a certificate."""
    ingress, service = objects["Ingress"]["spec"], objects["Service"]
    (rule,) = ingress["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert backend == {"name": service["metadata"]["name"], "port": {"name": service["spec"]["ports"][0]["name"]}}
    assert objects["ConfigMap"]["data"]["PARLOUR_WEB__PUBLIC_URL"] == f"https://{rule['host']}/"
    assert ingress["tls"][0]["hosts"] == [rule["host"]]
