"""The container has no root, nothing writable but /data, no port beyond the machine, no key."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict

from gateway.home import SCHEMA
from gateway.settings import load_settings
from tests import links

ROOT = Path(__file__).resolve().parents[2]
UID = "10001"


@pytest.fixture(scope="module")
def service() -> dict[str, Any]:
    """The one service of docker-compose.yml."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    assert list(compose["services"]) == ["parlour"]
    found: dict[str, Any] = compose["services"]["parlour"]
    return found


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile as (instruction, arguments), continued lines joined, comments gone."""
    text = (ROOT / "Dockerfile").read_text("utf-8")
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines()) if word]


def stages() -> list[list[tuple[str, str]]]:
    """Return the Dockerfile's stages, each beginning with its FROM; what stands before the first is left out."""
    found: list[list[tuple[str, str]]] = []
    for instruction in instructions():
        if instruction[0] == "FROM":
            found.append([])
        if found:
            found[-1].append(instruction)
    return found


def values(stage: list[tuple[str, str]], word: str) -> list[str]:
    """Return the arguments of every *word* of a stage."""
    return [rest for name, rest in stage if name == word]


HARDENING = [
    ("read_only", True),
    ("cap_drop", ["ALL"]),
    ("security_opt", ["no-new-privileges:true"]),
    ("init", True),
    ("stop_grace_period", "30s"),
    ("user", f"{UID}:{UID}"),
    ("ports", ["127.0.0.1:${PARLOUR_WEB__PUBLISHED_PORT:-8787}:8787"]),
    ("extra_hosts", ["host.docker.internal:host-gateway"]),
    ("volumes", ["data:/data"]),
    ("env_file", [{"path": ".env", "required": False}]),
]


@pytest.mark.parametrize(("key", "value"), HARDENING, ids=[key for key, _ in HARDENING])
def test_compose_is_hardened(service: dict[str, Any], key: str, value: object) -> None:
    """docker-compose.yml bounds and hardens the container (docs/attacks.md, attack 88)."""
    assert service[key] == value


def test_compose_bounds_processes_memory_and_logs(service: dict[str, Any]) -> None:
    """Cost is bounded (A7) for one vCPU and 1 GB: processor, processes, memory and the engine's log files."""
    assert 0 < service["pids_limit"] <= 512
    assert (service["cpus"], service["mem_limit"]) == (1.0, "1g")
    assert service["logging"] == {"driver": "json-file", "options": {"max-size": "10m", "max-file": "5"}}


def test_compose_names_the_version_and_builds_what_cannot_be_pulled(service: dict[str, Any]) -> None:
    """The image's tag is the program's version; its own name is of no registry, so nobody else can publish under it."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    name = "${IMAGE:-localhost/${COMPOSE_PROJECT_NAME:-parlour}}"
    assert service["image"] == f"{name}:{version}${{COMMIT:+-${{COMMIT:-}}}}"  # the image of another commit stays
    assert service["build"]["tags"] == [f"{name}:{version}"]  # for commands that name no commit
    assert service["build"]["args"] | {"PYTHON_IMAGE": ""} == {
        "PYTHON_IMAGE": "",
        "LOCK": "${LOCK:-deploy/image.lock}",
        "VERSION": version,
        "COMMIT": "${COMMIT:-unknown}",
    }
    assert service["pull_policy"] == "missing"  # compose pulls first, and builds where that fails
    assert service["build"]["context"] == "."


def test_the_image_says_its_version_and_commit_and_takes_one_of_two_locks() -> None:
    """Labels come last, since they change with each commit; the lock is installed by hash whichever it is."""
    final = stages()[-1]
    assert [name for name, _ in final][-3:] == ["HEALTHCHECK", "ENTRYPOINT", "CMD"]
    (labels,) = values(final, "LABEL")
    for key, value in (("version", "${VERSION}"), ("revision", "${COMMIT}")):
        assert f'org.opencontainers.image.{key}="{value}"' in labels
    assert ("ARG", "LOCK=deploy/image.lock") in instructions()
    assert '--require-hashes --only-binary :all: -r "${LOCK}"' in values(stages()[0], "RUN")[0]


def test_two_checkouts_share_neither_container_nor_volume_nor_port() -> None:
    """No name is fixed: compose calls project, image, containers and volume after the folder or .env."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    assert "name" not in compose
    assert "container_name" not in compose["services"]["parlour"]
    assert compose["volumes"] == {"data": None}
    configured = [
        filled_in({"COMPOSE_PROJECT_NAME": folder, "PARLOUR_WEB__PUBLISHED_PORT": port})
        for folder, port in (("first", "9001"), ("second", "9002"))
    ]
    for key in ("image", "ports"):
        first, second = (each[key] for each in configured)
        assert first != second, key


def filled_in(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the service with its variables filled in, as compose does (`${NAME:-default}`, nested)."""
    text = (ROOT / "docker-compose.yml").read_text("utf-8")
    text = text.replace("${COMMIT:+-${COMMIT:-}}", "")
    innermost = re.compile(r"\$\{(\w+):-([^{}$]*)\}")
    while innermost.search(text):
        text = innermost.sub(lambda found: environment.get(found[1]) or found[2], text)
    service: dict[str, Any] = yaml.safe_load(text)["services"]["parlour"]
    return service


COMPOSE_FILES = [
    "docker-compose.yml",
    *(f"deploy/compose.{name}.yml" for name in ("secrets", "postgres", "ollama", "scale", "mcp", "https")),
    "deploy/traefik.yml",
]


def test_compose_files_follow_the_schema_of_their_specification(tmp_path: Path) -> None:
    """The specification's own schema takes every file, and refuses a copy with one key misspelt."""
    wrong = tmp_path / "wrong.yml"
    wrong.write_text((ROOT / "docker-compose.yml").read_text("utf-8").replace("read_only:", "readonly:"))
    files = [str(ROOT / name) for name in COMPOSE_FILES]
    # Without the grammar of IRIs that jsonschema builds as it is imported: four seconds of CPU.
    checker = "import sys; sys.modules['rfc3987_syntax'] = None; from check_jsonschema import main; main()"
    run = tool(
        sys.executable,
        "-c",
        checker,
        "--output-format",
        "json",
        "--builtin-schema",
        "vendor.compose-spec",
        *files,
        str(wrong),
    )
    found = json.loads(run.stdout)
    (error,) = found["errors"]
    assert (error["filename"], error["path"], found["parse_errors"]) == (str(wrong), "$.services.parlour", [])
    assert "'readonly' was unexpected" in error["message"]


@pytest.mark.parametrize("name", COMPOSE_FILES)
def test_a_variable_that_is_not_set_has_a_default(name: str) -> None:
    """Compose warns of each other one at every command, also inside the alternative of another (`${NAME:+…}`)."""
    words = json.dumps(yaml.safe_load((ROOT / name).read_text("utf-8"))).replace("$$", "")  # escaped ones are none
    assert re.findall(r"\$\w+|\$\{\w+\}", words) == []


@pytest.mark.parametrize("name", COMPOSE_FILES)
def test_what_a_compose_file_s_service_names_is_in_the_file(name: str) -> None:
    """A secret, a network, a volume or another service that is nowhere is no matter of the schema."""
    found: dict[str, Any] = yaml.safe_load((ROOT / name).read_text("utf-8"))
    for service in found["services"].values():
        assert set(service.get("secrets", ())) <= found.get("secrets", {}).keys()
        assert set(service.get("networks", ())) <= {"default", *found.get("networks", ())}
        assert set(service.get("depends_on", ())) <= found["services"].keys()
        volumes = {volume.partition(":")[0] for volume in service.get("volumes", ())}
        assert {volume for volume in volumes if "/" not in volume} <= found.get("volumes", {}).keys()
        assert all((ROOT / volume).exists() for volume in volumes if "/" in volume)


@pytest.fixture(scope="module")
def with_database() -> dict[str, Any]:
    """deploy/compose.postgres.yml, which is put on top of docker-compose.yml."""
    found: dict[str, Any] = yaml.safe_load((ROOT / "deploy/compose.postgres.yml").read_text("utf-8"))
    assert set(found["services"]) == {"parlour", "postgres"}
    return found


@pytest.mark.parametrize("key", ["read_only", "cap_drop", "security_opt", "restart", "logging", "cpus", "mem_limit"])
def test_the_database_is_as_confined_as_the_gateway(
    service: dict[str, Any], with_database: dict[str, Any], key: str
) -> None:
    """It is bounded and hardened by the same lines."""
    assert with_database["services"]["postgres"][key] == service[key]


def test_the_gateway_alone_reaches_the_database(with_database: dict[str, Any]) -> None:
    """It has no port of the machine, and its network leads nowhere; the gateway keeps its own beside it."""
    server = with_database["services"]["postgres"]
    assert "ports" not in server
    assert server["networks"] == ["database"]
    assert with_database["networks"] == {"database": {"internal": True}}
    assert with_database["services"]["parlour"]["networks"] == ["default", "database"]
    assert (server["user"], server["volumes"]) == ("999:999", ["database:/var/lib/postgresql/data"])
    assert 0 < server["pids_limit"] <= 512
    for place in server["tmpfs"]:
        assert {"noexec", "nosuid", "nodev"} <= set(place.split(":")[1].split(","))


def test_the_model_server_has_no_port_and_both_sides_have_one_context_window(service: dict[str, Any]) -> None:
    """deploy/compose.ollama.yml: only the gateway reaches it, and no prompt is cut without our knowledge."""
    found = yaml.safe_load((ROOT / "deploy/compose.ollama.yml").read_text("utf-8"))
    gateway, server = found["services"]["parlour"], found["services"]["ollama"]
    assert "ports" not in server
    for key in ("restart", "cap_drop", "security_opt", "logging"):
        assert server[key] == service[key]
    window = gateway["environment"]["PARLOUR_LLM__CONTEXT_WINDOW"]
    assert server["environment"]["OLLAMA_CONTEXT_LENGTH"] == window == "${OLLAMA_CONTEXT:-16384}"
    environment = {name: re.sub(r"\$\{\w+:-(.*?)\}", r"\1", text) for name, text in gateway["environment"].items()}
    llm = load_settings(environment | {"PARLOUR_HOME": "/nowhere"}).llm
    assert (llm.model, str(llm.api_base), llm.context_window) == ("openai/qwen3:4b", "http://ollama:11434/v1", 16384)


def test_the_proxy_is_the_one_that_is_trusted_and_alone_has_the_ports(service: dict[str, Any]) -> None:
    """deploy/compose.https.yml: Caddy's address is the trusted one, and it has no right but that of its two ports."""
    found = yaml.safe_load((ROOT / "deploy/compose.https.yml").read_text("utf-8"))
    gateway, proxy = found["services"]["parlour"], found["services"]["caddy"]
    assert proxy["networks"]["front"]["ipv4_address"] == gateway["environment"]["PARLOUR_WEB__TRUSTED_PROXIES"]
    assert set(gateway) == {"environment", "networks"}
    assert proxy["ports"] == ["80:80", "443:443", "443:443/udp"]
    assert proxy["cap_add"] == ["NET_BIND_SERVICE"]
    assert {"env_file", "environment", "secrets", "privileged", "network_mode"}.isdisjoint(proxy)
    for key in ("read_only", "cap_drop", "security_opt", "restart", "logging"):
        assert proxy[key] == service[key], key
    environment = {
        name: re.sub(r"\$\{DOMAIN:\?.*?\}", "chat.example.org", text) for name, text in gateway["environment"].items()
    }
    web = load_settings(environment | {"PARLOUR_HOME": "/nowhere"}).web
    assert str(web.public_url) == "https://chat.example.org/"


def test_a_server_beside_the_gateway_has_nothing_of_it(service: dict[str, Any]) -> None:
    """deploy/compose.mcp.yml: no file, key or port of the gateway, a network that leads nowhere, and no right."""
    found = yaml.safe_load((ROOT / "deploy/compose.mcp.yml").read_text("utf-8"))
    gateway, server = found["services"]["parlour"], found["services"]["mcp-time"]
    assert gateway == {"networks": ["default", "mcp"]}
    assert found["networks"] == {"mcp": {"internal": True}}
    assert server["networks"] == ["mcp"]
    widening = {"privileged", "cap_add", "devices", "network_mode", "pid", "ipc", "userns_mode", "volumes_from"}
    of_the_gateway = {"env_file", "environment", "ports", "secrets", "volumes", "extra_hosts", "configs"}
    assert (widening | of_the_gateway).isdisjoint(server)
    for key in ("read_only", "cap_drop", "security_opt", "restart", "logging", "init"):
        assert server[key] == service[key], key
    user = server["user"].split(":")[0]
    assert user not in ("0", UID)
    assert server["mem_limit"] == "256m"
    assert 0 < server["pids_limit"] <= 64
    (tmp,) = server["tmpfs"]
    assert {"noexec", "nosuid", "nodev"} <= set(tmp.split(":")[1].split(","))
    dockerfile = (ROOT / server["build"]["context"] / "Dockerfile").read_text("utf-8")
    assert f"USER {user}:{user}" in dockerfile
    assert "--require-hashes --only-binary :all:" in dockerfile


def test_the_database_s_password_is_in_files_alone(with_database: dict[str, Any]) -> None:
    """Each service reads one file, and the gateway waits until the server answers."""
    gateway, server = with_database["services"]["parlour"], with_database["services"]["postgres"]
    assert gateway["environment"] == {"PARLOUR_STORE__URL_FILE": "/run/secrets/store_url"}
    assert gateway["secrets"] == ["store_url"]
    assert gateway["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert server["secrets"] == ["postgres_password"]
    assert server["environment"]["POSTGRES_PASSWORD_FILE"] == "/run/secrets/postgres_password"
    assert set(with_database["secrets"]) == {"store_url", "postgres_password"}


def test_the_lines_at_its_head_make_an_address_that_the_gateway_takes(
    tmp_path: Path, with_database: dict[str, Any]
) -> None:
    """As printed: files of 0600 whose password is one, and the address of the service and its database."""
    head = (ROOT / "deploy/compose.postgres.yml").read_text("utf-8")
    (lines,) = re.findall(r"^#   (mkdir .*\n#     .*)$", head, re.MULTILINE)
    script = "set -e; umask 022; " + lines.replace("\n# ", "\n")
    subprocess.run(("/bin/bash", "-c", script), cwd=tmp_path, check=True, timeout=60)  # noqa: S603 -- ours
    password, address = ((tmp_path / "secrets" / name).read_text() for name in ("postgres_password", "store_url"))
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "secrets").iterdir()} == {0o600}
    settings = load_settings(
        {"PARLOUR_HOME": str(tmp_path / "home"), "PARLOUR_STORE__URL_FILE": str(tmp_path / "secrets/store_url")}
    )
    assert settings.store.address == address
    parts = conninfo_to_dict(address)
    server = with_database["services"]["postgres"]["environment"]
    assert parts == {"user": server["POSTGRES_USER"], "password": password, "host": "postgres", "dbname": "parlour"}
    assert len(password) == 48


def test_upgrade_and_roll_back_are_one_line_each_and_the_same_everywhere() -> None:
    """What the compose file says at its head is in the runbook and on the upgrade page, letter by letter."""
    head = (ROOT / "docker-compose.yml").read_text("utf-8")
    for name in ("Upgrade", "Roll back"):
        found = re.search(rf"^# {name}: +(.+)$", head, re.MULTILINE)
        assert found is not None
        for page in ("deploy/RUNBOOK.md", "docs/install.md"):
            assert f"`{found[1]}`" in (ROOT / page).read_text("utf-8"), (name, page)


def test_the_runbook_s_backup_works_every_time_and_is_nobody_elses_to_read(tmp_path: Path) -> None:
    """The lines as printed, twice under a loose umask: two archives of 0600, none left in the volume."""
    page = (ROOT / "deploy/RUNBOOK.md").read_text("utf-8")
    (lines,) = (block for block in re.findall(r"```\n(.*?)```", page, re.DOTALL) if "parlour backup" in block)
    stand_in = tmp_path / "docker"  # runs what would run in the container, with a folder in the volume's place
    program = Path(sys.executable).with_name("parlour")
    stand_in.write_text(f"""#!/bin/bash
[ "$1 $2 $3 $4" = "compose exec -T parlour" ] || exit 64
shift 4; [ "$1" = parlour ] && set -- {program} "${{@:2}}"
exec "${{@//\\/data/{tmp_path}/data}}"
""")
    stand_in.chmod(0o700)
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data" / "schema").write_text(f"{SCHEMA}\n")  # a gateway has run here
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PARLOUR_HOME": str(tmp_path / "data")}
    here = tmp_path / "operator"
    here.mkdir()
    for second in ("20261122-110000", "20261122-110001"):
        script = "set -e; umask 022\n" + lines.replace("$(date +%Y%m%d-%H%M%S)", second)
        subprocess.run(("/bin/bash", "-c", script), cwd=here, env=environment, check=True, timeout=60)  # noqa: S603 -- ours
    archives = sorted(here.iterdir())
    assert [each.name for each in archives] == [f"parlour-20261122-11000{n}.tar.gz" for n in (0, 1)]
    assert {stat.S_IMODE(each.stat().st_mode) for each in archives} == {0o600}
    assert list((tmp_path / "data/backups").iterdir()) == []


def test_no_page_and_no_line_asks_to_install_a_name_that_is_not_registered() -> None:
    """`pip install parlour` would bring whatever somebody else registered under that name."""
    tracked = [ROOT / name for name in links.tracked(ROOT) if not name.startswith("tests/")]
    texts = {path: path.read_text("utf-8", "replace") for path in tracked if path.suffix in {".md", ".py", ".yml", ""}}
    assert [path for path, text in texts.items() if re.search(r"pip3? install ['\"]?parlour", text)] == [
        ROOT / "gateway/installation.py"  # says why not
    ]


def test_setting_up_needs_no_other_place_than_data(tmp_path: Path) -> None:
    """`docker compose run --rm parlour init` on a read-only root: everything it writes is below PARLOUR_HOME."""
    home, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    home.mkdir(mode=0o700)
    elsewhere.mkdir(mode=0o500)
    environment = {
        "PATH": os.environ["PATH"],
        "PARLOUR_HOME": str(home),
        "HOME": str(elsewhere),
        "TMPDIR": str(elsewhere),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PARLOUR_TIMEZONE": "Europe/Berlin",
    }
    command = (str(Path(sys.executable).with_name("parlour")), "init", "--yes", "--model", "none")
    run = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 -- ours
    assert run.returncode == 0, run.stderr
    assert (home / "parlour.yaml").is_file()
    assert list(elsewhere.iterdir()) == []


def test_compose_keeps_tmp_in_memory_and_gives_nothing_away(service: dict[str, Any]) -> None:
    """The only other writable place is a small /tmp where nothing can be executed; no key that widens the container."""
    (tmp,) = service["tmpfs"]
    assert tmp.startswith("/tmp:")  # noqa: S108 -- the container's own
    assert {"noexec", "nosuid", "nodev"} <= set(tmp.split(":")[1].split(","))
    widening = {"privileged", "cap_add", "devices", "network_mode", "pid", "ipc", "userns_mode", "volumes_from"}
    assert widening.isdisjoint(service)


def test_compose_holds_no_key_and_overrides_what_is_the_containers(service: dict[str, Any]) -> None:
    """Whatever .env says for a gateway outside, inside the home is /data and the port open; no key is inline."""
    assert service["environment"] == {
        "PARLOUR_HOME": "/data",
        "PARLOUR_WEB__HOST": "0.0.0.0",  # noqa: S104 -- published on 127.0.0.1 only
        "PARLOUR_WEB__PORT": "8787",
        "PARLOUR_WEB__PUBLISHED_PORT": "${PARLOUR_WEB__PUBLISHED_PORT:-8787}",
        "PARLOUR_LOG__FORMAT": "${PARLOUR_LOG__FORMAT:-text}",  # readable by `docker compose logs`, and still theirs
    }


def test_compose_and_image_check_health_alike(service: dict[str, Any]) -> None:
    """Both use the standard-library probe, in time, and after litellm had time to be imported."""
    check = service["healthcheck"]
    (image,) = values(stages()[-1], "HEALTHCHECK")
    assert check["test"] == ["CMD", "python", "-I", "/opt/parlour/healthcheck.py"]
    assert image.endswith('CMD ["python", "-I", "/opt/parlour/healthcheck.py"]')
    for name in ("interval", "timeout", "start_period", "retries"):
        assert f"--{name.replace('_', '-')}={check[name]}" in image
    assert "start-interval" not in image  # Podman 4 and Docker before 25 end the build at a flag they do not know
    assert int(check["start_period"].removesuffix("s")) >= 60
    assert check["start_interval"] == "2s"  # the first probe comes after it, not after 30 s


def test_every_stage_starts_from_the_one_base_that_can_be_replaced() -> None:
    """`--build-arg PYTHON_IMAGE=…` swaps the base (say, a digest) in one place; no syntax line asks elsewhere."""
    assert instructions()[0] == ("ARG", "PYTHON_IMAGE=python:3.12-slim-bookworm")
    assert [stage[0][1] for stage in stages()] == ["${PYTHON_IMAGE} AS build", "${PYTHON_IMAGE}"]
    assert not re.search(r"^#\s*(syntax|escape)\s*=", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)


def test_final_stage_runs_as_nobody_in_particular() -> None:
    """A fixed uid without a shell; /data is its own before it becomes a volume, so that named volumes inherit it."""
    final = stages()[-1]
    words = [name for name, _ in final]
    assert values(final, "USER") == [f"{UID}:{UID}"]
    assert values(final, "VOLUME") == ['["/data"]']
    assert f"install -d -o {UID} -g {UID} -m 0700 /data" in values(final, "RUN")[0]
    assert words.index("RUN") < words.index("VOLUME") < words.index("USER")
    assert values(final, "ENTRYPOINT") == ['["parlour"]']
    assert values(final, "CMD") == ['["run"]']
    assert any("PARLOUR_HOME=/data" in env for env in values(final, "ENV"))


def test_final_stage_installs_nothing() -> None:
    """What runs was installed by hash in the stage before; the last one fetches nothing."""
    for line in values(stages()[-1], "RUN"):
        assert not re.search(r"\b(apt-get|apt|pip|curl|wget)\b", line)


def test_every_install_is_by_hash_or_of_our_own_wheel() -> None:
    """A changed wheel, a new transitive package or a .pth file fails the build (attack 89)."""
    build = values(stages()[0], "RUN")
    installs = [step for line in build for step in line.split("&&") if " install " in step]
    assert len(installs) == 3
    for step in installs:
        by_hash = "--require-hashes" in step and "--only-binary :all:" in step
        assert by_hash or ("--no-index" in step and "--no-deps" in step)
    assert any("-name '*.pth'" in line for line in build)


def test_an_upgrade_adds_a_layer_of_our_own_files_alone() -> None:
    """Packages are installed and compiled before a source is copied, and nothing is written beside them afterwards."""
    build, final = stages()
    sources = build.index(("COPY", "gateway ./gateway"))
    (packages,) = (
        i for i, (word, rest) in enumerate(build) if word == "RUN" and "venv --without-pip /opt/parlour" in rest
    )
    assert packages < sources
    assert "compileall" in build[packages][1]
    own = [rest for word, rest in build[packages + 1 :] if word == "RUN" and "/opt/parlour" in rest]
    assert len(own) == 1
    assert "--prefix /opt/own" in own[0]
    assert "compileall" in own[0]
    copied = [rest.removeprefix("--from=build ") for rest in values(final, "COPY") if "--from" in rest]
    assert copied == ["/opt/parlour /opt/parlour", "/opt/own /opt/parlour"]


def test_no_instruction_holds_a_secret() -> None:
    """Layers are readable by whoever has the image: no ARG or ENV is named like a key."""
    named = [rest for name, rest in instructions() if name in {"ARG", "ENV"}]
    assert not [rest for rest in named if re.search(r"key|token|secret|password", rest, re.IGNORECASE)]


def test_build_context_is_an_allow_list_that_covers_every_copy() -> None:
    """Nothing reaches a build unless named; what the Dockerfile copies is named and exists."""
    lines = [line for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line and line[0] != "#"]
    assert lines[0] == "*"
    allowed = [line[1:] for line in lines if line.startswith("!")]
    copied = [
        path
        for stage in stages()
        for rest in values(stage, "COPY")
        if "--from" not in rest
        for path in rest.split()[:-1]
    ]
    for path in copied:
        assert path in allowed
        assert (ROOT / path).exists(), path
    assert not any(fnmatch(name, pattern) for name in (".env", ".git", "secrets") for pattern in allowed)


@pytest.mark.skipif(sys.platform != "linux", reason="hadolint's wheel is for Linux")
@pytest.mark.parametrize("file", ["Dockerfile", "deploy/mcp/Dockerfile"])
def test_dockerfile_passes_hadolint(file: str) -> None:
    """The linter for Dockerfiles finds nothing."""
    run = tool(str(Path(sys.executable).with_name("hadolint")), str(ROOT / file))
    assert (run.returncode, run.stdout) == (0, "")


def tool(*command: str) -> subprocess.CompletedProcess[str]:
    """Run an installed tool to its end."""
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 -- tools named in this file


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_unit_is_understood_and_hardened(tmp_path: Path) -> None:
    """Systemd itself reads the unit without a word of complaint; its program is not here, so another stands in."""
    unit = (ROOT / "deploy/systemd/parlour.service").read_text("utf-8")
    (tmp_path / "parlour.service").write_text(
        re.sub(r"^ExecStart=.*$", "ExecStart=/bin/true", unit, flags=re.MULTILINE)
    )
    run = tool("systemd-analyze", "verify", str(tmp_path / "parlour.service"))
    assert (run.returncode, run.stderr) == (0, "")


def test_the_systemd_unit_lets_children_confine_themselves() -> None:
    """The calls are named one by one: systemd's own sets are older than Landlock, and none has mounts alone."""
    lines = (ROOT / "deploy/systemd/parlour.service").read_text("utf-8").splitlines()
    assert "RestrictNamespaces=user mnt" in lines
    filters = [line.partition("=")[2].split() for line in lines if line.startswith("SystemCallFilter=")]
    landlock = ["landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"]
    assert filters[-1] == [*landlock, "mount", "umount2", "pivot_root"]  # behind what is taken away


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_the_backup_timer_is_understood_and_its_line_names_a_new_archive(tmp_path: Path) -> None:
    """Systemd reads both units; the line, as systemd hands it to the shell, asks for one archive with a date."""
    folder = ROOT / "deploy/systemd"
    unit = (folder / "parlour-backup.service").read_text("utf-8")
    (line,) = [each.partition("=")[2] for each in unit.splitlines() if each.startswith("ExecStart=")]
    here = re.sub(r"^ExecStart=.*$", "ExecStart=/bin/true", unit, flags=re.MULTILINE)
    (tmp_path / "parlour-backup.service").write_text(here)
    (tmp_path / "parlour-backup.timer").write_text((folder / "parlour-backup.timer").read_text("utf-8"))
    for name in ("parlour-backup.service", "parlour-backup.timer"):
        run = tool("systemd-analyze", "verify", str(tmp_path / name))
        assert (run.returncode, run.stderr) == (0, "")
    typed = line.replace("%%", "%").replace("$$", "$").replace("/opt/parlour/.venv/bin/parlour", "echo")
    run = tool(*shlex.split(typed))
    assert re.fullmatch(r"backup /var/lib/parlour-backups/parlour-\d{8}-\d{6}\.tar\.gz\n", run.stdout)
    gateway = (folder / "parlour.service").read_text("utf-8")
    assert "StateDirectory=parlour parlour-backups" in unit  # the gateway writes there, or nobody may
    assert "StateDirectory=parlour parlour-backups" in gateway


@pytest.mark.parametrize(
    "line",
    [
        "NoNewPrivileges=yes",
        "CapabilityBoundingSet=",
        "ProtectSystem=strict",
        "ProtectHome=yes",
        "PrivateTmp=yes",
        "UMask=0077",
        "StateDirectoryMode=0700",
        "TimeoutStopSec=30",
        "RestartPreventExitStatus=2",
        "StartLimitIntervalSec=0",
    ],
)
def test_systemd_unit_holds_the_same_line(line: str) -> None:
    """Outside of a container the service is as confined as inside."""
    assert line in (ROOT / "deploy/systemd/parlour.service").read_text("utf-8").splitlines()
