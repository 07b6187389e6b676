"""The project itself: what is locked, what the wheel holds, what its entry points name."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests import links

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("gateway", "channels", "agent")
LOCKS = ("requirements.lock", "deploy/image.lock", "deploy/small.lock", "deploy/build.lock")

_PIN = re.compile(r"^(?P<name>[a-z0-9][a-z0-9._-]*)==(?P<version>[^\s;]+)(?: ; (?P<marker>[^\\]+?))? \\$")
_HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$")
_COMMENT = re.compile(r"^ *#")


def project() -> dict[str, Any]:
    """Read pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def pins(lock: str) -> dict[str, str]:
    """Return name -> version of a lock; fail on any line that is neither pin, hash nor comment."""
    found: dict[str, str] = {}
    hashes: dict[str, int] = {}
    name = ""
    for number, line in enumerate((ROOT / lock).read_text("utf-8").splitlines(), 1):
        if pin := _PIN.match(line):
            name = pin["name"]
            found[name] = pin["version"]
        elif _HASH.match(line):
            hashes[name] = hashes.get(name, 0) + 1
        elif not _COMMENT.match(line):
            pytest.fail(f"{lock}:{number}: {line!r} is neither a pin, a hash nor a comment")
    assert hashes.keys() == found.keys(), "every pin has a hash"
    return found


def asked_for(*groups: str, extras: bool) -> Iterator[Requirement]:
    """Yield what pyproject.toml asks for: always, by extras, and in the *groups*."""
    data = project()
    yield from map(Requirement, data["project"]["dependencies"])
    if extras:
        for extra in data["project"]["optional-dependencies"].values():
            yield from (need for need in map(Requirement, extra) if need.name != "parlour")
    for group in groups:
        yield from map(Requirement, data["dependency-groups"][group])


@pytest.mark.parametrize("lock", LOCKS)
def test_locks_are_pins_and_hashes_without_addresses(lock: str) -> None:
    """A lock names versions and hashes; where they come from is the reader's own registry."""
    assert pins(lock)
    text = (ROOT / lock).read_text("utf-8")
    assert not re.search(
        r"https?:|file:|ftp:|//|--index|--extra-index|--find-links|--trusted-host|^-i ", text, re.MULTILINE
    )


@pytest.mark.parametrize(
    ("lock", "groups", "extras"),
    [("requirements.lock", ("dev", "build"), True), ("deploy/image.lock", (), True)],
    ids=["requirements", "image"],
)
def test_everything_asked_for_is_locked_within_its_bounds(lock: str, groups: tuple[str, ...], extras: bool) -> None:
    """A dependency that pyproject.toml gains is in the locks, at a version it allows."""
    locked = pins(lock)
    for need in asked_for(*groups, extras=extras):
        name = canonicalize_name(need.name)
        assert name in locked, f"{name} is not in {lock}: make lock"
        assert need.specifier.contains(locked[name], prereleases=True), f"{name} {locked[name]} in {lock}: make lock"


def test_image_and_build_install_what_was_tested() -> None:
    """The image's and the build's pins are the same versions the tests run on."""
    everything = pins("requirements.lock")
    for lock in LOCKS[1:]:
        assert pins(lock).items() <= everything.items()
    assert {"pytest", "mypy", "playwright", "hatchling"}.isdisjoint(pins("deploy/image.lock"))
    assert {"litellm", "onnxruntime", "pydantic-monty"}.isdisjoint(pins("deploy/small.lock"))
    assert pins("deploy/small.lock").items() <= pins("deploy/image.lock").items()


def test_running_installs_no_browser_type_checker_or_test_tool() -> None:
    """`make run` installs the image's packages and what builds a checkout; `make test` the rest as well."""
    assert {"requirements.lock"}.isdisjoint(_installed_by("run"))
    assert _installed_by("run") == {"deploy/image.lock", "deploy/build.lock"}
    assert _installed_by("test") == {"deploy/image.lock", "deploy/build.lock", "requirements.lock"}


def _installed_by(target: str) -> set[str]:
    """Return the locks that `make` *target* installs where nothing is installed yet."""
    command = ("make", "--dry-run", "VENV=/nowhere/at/all", target)
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603 -- ours
    return set(re.findall(r"-r (\S+\.lock)", run.stdout))


def test_compromised_litellm_can_never_be_chosen() -> None:
    """1.82.7 and 1.82.8 stole credentials: neither the bounds nor the lock admit them, nor the proxy extra."""
    litellm = next(need for need in asked_for(extras=True) if need.name == "litellm")
    for version in ("1.82.7", "1.82.8"):
        assert not litellm.specifier.contains(version)
        assert Version(pins("requirements.lock")["litellm"]) != Version(version)
    assert not litellm.extras
    # The bounds as such already exclude them; the explicit words keep that true when somebody lowers the floor.
    assert "!=1.82.7" in str(litellm.specifier)
    assert "!=1.82.8" in str(litellm.specifier)


def test_no_unknown_code_runs_at_every_start() -> None:
    """Python runs .pth files at each start: only our editable install and setuptools' own may be in the venv."""
    site = Path(sys.prefix) / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    known = {"_parlour.pth", "distutils-precedence.pth"}
    assert {path.name for path in site.glob("*.pth")} <= known


def test_one_extra_per_channel_and_all_is_their_sum() -> None:
    """`parlour[telegram]` brings one platform, `parlour[all]` all of them; the other extras are asked for by name."""
    extras = project()["project"]["optional-dependencies"]
    (everything,) = map(Requirement, extras.pop("all"))
    assert everything.name == "parlour"
    assert everything.extras == set(extras) - {"code", "ddgs", "mcp", "otel", "postgres", "push", "s3", "sheets"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """Our wheel, built from this tree."""
    target = tmp_path_factory.mktemp("wheel")
    (path,) = WheelBuilder(str(ROOT)).build(directory=str(target), versions=["standard"])
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_wheel_holds_every_file_of_the_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    """What is installed is what was tested: modules, the page's files, py.typed; no tests, no papers."""
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    tracked = links.tracked(ROOT)
    here = {f"parlour/packages/{name}" for name in tracked if name.split("/", 1)[0] in PACKAGES and "/" in name}
    for_operators = {
        f"parlour/packages/deploy/{name.removeprefix('deploy/') if kind != 'compose' else f'compose/{Path(name).name}'}"
        for kind, pattern in (("", "deploy/systemd/*"), ("", "deploy/monitoring/*"), ("compose", "*compose*.yml"))
        for name in tracked
        if Path(name).match(pattern) and name.split("/")[0] in ("deploy", "docker-compose.yml")
    }
    own = {"parlour/__init__.py", "parlour/__main__.py", "parlour/py.typed", "parlour/packages/commit"}
    assert packed == here | own | for_operators
    assert {f"parlour/packages/{package}/py.typed" for package in PACKAGES} <= packed


def test_wheel_carries_license_and_command(wheel: zipfile.ZipFile) -> None:
    """The wheel has its license and makes the command `parlour`."""
    names = {name.rpartition("/")[2]: name for name in wheel.namelist() if ".dist-info/" in name}
    assert "LICENSE" in names
    assert "parlour = parlour:main" in wheel.read(names["entry_points.txt"]).decode()


@pytest.mark.parametrize("folder", ["channels/web/page/vendor", "tests/e2e/axe"])
def test_the_page_s_libraries_are_the_pinned_files_with_their_licences(folder: str) -> None:
    """Each vendored file is what its row says, byte for byte, and nothing else lies beside them."""
    vendor = ROOT / folder
    rows = [
        [cell.strip() for cell in line.strip("| \n").split("|")]
        for line in (vendor / "README.md").read_text().splitlines()
        if ".js |" in line
    ]
    for name, _package, version, _source, _licence, digest in rows:
        data = (vendor / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == digest.strip("`")
        assert version in data.decode()
    licences = {row[0].replace(".js", ".LICENSE") for row in rows}
    assert {path.name for path in vendor.iterdir()} == {"README.md", *licences, *(row[0] for row in rows)}


def test_the_list_of_components_has_licences_and_the_page_s_libraries(tmp_path: Path) -> None:
    """A package keeps its hashes, and has the licence of the installed version only; each vendored file is listed."""
    listed = tmp_path / "listed.json"
    locked = [{"name": name, "version": "2", "description": "its line", "hashes": [name]} for name in ("a-b", "c")]
    listed.write_text(json.dumps({"components": locked}))
    installed = [{"name": "A.b", "version": "2", "licenses": ["MIT"]}, {"name": "c", "version": "1", "licenses": ["X"]}]
    command = (sys.executable, str(ROOT / "deploy/component_list.py"), str(listed))
    text = json.dumps({"components": [*installed, {"name": "no licence", "version": "1"}]})
    subprocess.run(command, input=text, text=True, check=True, timeout=60)  # noqa: S603
    first, second, *page = json.loads(listed.read_text())["components"]
    assert first == {"name": "a-b", "version": "2", "hashes": ["a-b"], "licenses": ["MIT"]}
    assert second == {"name": "c", "version": "2", "hashes": ["c"]}
    files = (ROOT / "channels/web/page/vendor").glob("*.js")
    hashes = {hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    assert {each["hashes"][0]["content"] for each in page} == hashes
    assert all(each["licenses"][0]["expression"] and each["purl"].startswith("pkg:npm/") for each in page)


def test_every_entry_point_leads_to_something() -> None:
    """A line in an entry-point table that names nothing would only be noticed by whoever needs it."""
    tables = {"console_scripts": project()["project"]["scripts"]} | project()["project"]["entry-points"]
    for group, lines in tables.items():
        installed = {
            point.name: point for point in entry_points(group=group) if point.dist and point.dist.name == "parlour"
        }
        assert installed.keys() == lines.keys(), f"{group}: make install"
        for point in installed.values():
            assert point.load() is not None


def test_the_modules_and_tests_of_make_mutants_are_there() -> None:
    """A module or a test that was moved is moved in the lists of pyproject.toml too."""
    mutants = project()["tool"]["mutmut"]
    for listed in (*mutants["only_mutate"], *mutants["pytest_add_cli_args_test_selection"]):
        pattern = listed.replace("/*", "/**/")
        assert list(ROOT.glob(pattern)), listed
