"""The wheel where somebody installs it: a venv of its own, outside the checkout, beside packages of the same names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import cache_from_source
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
import pytest
from hatchling.builders.wheel import WheelBuilder

from tests.fakes.gateway import GatewayProcess, free_port

ROOT = Path(__file__).resolve().parents[2]

# The reader is an interpreter of its own, isolated, which imports our packages by itself.
CHILDREN = """
import asyncio, parlour
from agent.attachments.document_reader import SandboxedReader
print(asyncio.run(SandboxedReader().document(b"<p>a page</p>", "html", 100)).text)
"""


def link_package(name: str, site: Path) -> None:
    """Link an installed package, compiled, into another venv's *site*; one that is for another system is not here."""
    with suppress(PackageNotFoundError):
        for file in distribution(name).files or ():
            source, target = Path(file.locate()), site / file
            if ".." in file.parts or not source.exists() or target.exists():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(source, target)
            if source.suffix == ".py" and (compiled := Path(cache_from_source(str(source)))).exists():
                target = Path(cache_from_source(str(target)))
                target.parent.mkdir(exist_ok=True)
                if not target.exists():
                    os.link(compiled, target)


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """A venv's `bin` with the wheel, what the small image has, and a stranger's `channels`, `gateway` and `agent`."""
    # Inside the tests' own venv, so that its packages are linked: a child process may read its own prefix only.
    with TemporaryDirectory(prefix="wheel-", dir=sys.prefix) as name:
        folder = Path(name)
        (wheel,) = WheelBuilder(str(ROOT)).build(directory=name, versions=["standard"])
        venv.create(folder / "venv", symlinks=True)
        programs = folder / "venv/bin"
        site = Path(sysconfig.get_path("purelib", vars={"base": name + "/venv"}))
        for need in set(re.findall(r"^([a-z0-9._-]+)==", (ROOT / "deploy/small.lock").read_text(), re.MULTILINE)):
            link_package(need, site)
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(programs / "python"))
        subprocess.run((*pip, "install", "--quiet", "--no-deps", "--no-index", wheel), check=True, timeout=60)  # noqa: S603
        for package in ("channels", "gateway", "agent"):
            (site / package).mkdir()
            (site / package / "__init__.py").write_text("OWNER = 'a stranger'\n")
        yield programs


def python(installed: Path, code: str, folder: Path) -> str:
    """Run a script in the venv, somewhere else; return what it printed."""
    command = (str(installed / "python"), "-c", code)
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    assert run.returncode == 0, run.stderr
    return run.stdout


async def test_the_gateway_runs_outside_a_checkout(installed: Path, tmp_path: Path) -> None:
    """`parlour run` serves the page, and `parlour doctor` finds nothing missing; every module is the wheel's."""
    process = GatewayProcess(tmp_path / "home", free_port())
    process.program = (str(installed / "parlour"),)
    try:
        await process.start()
        async with aiohttp.ClientSession(process.url) as http, http.get("/") as page:
            assert page.status == 200
            assert "<title>" in await page.text()
        code, doctor = await process.run_to_its_end("doctor", "--offline")
        assert code == 0, doctor
        assert (await process.run_to_its_end("--version"))[1].startswith("parlour ")
        assert await process.stop() == 0
    finally:
        await process.close()


def test_child_processes_find_the_wheel_s_packages(installed: Path, tmp_path: Path) -> None:
    """A document is read, although a stranger's `agent` lies on the path."""
    assert python(installed, CHILDREN, tmp_path) == "a page\n"


def test_the_wheel_s_modules_are_its_own_and_the_strangers_stay(installed: Path, tmp_path: Path) -> None:
    """A program of the venv imports the strangers' packages as before; Parlour's process imports Parlour's."""
    theirs = python(installed, "import channels, gateway, agent; print(channels.OWNER, gateway.OWNER)", tmp_path)
    assert theirs == "a stranger a stranger\n"
    ours = python(installed, "import parlour, channels.web as web; print(web.__file__)", tmp_path)
    assert "/venv/lib/" in ours
    assert ours.endswith("site-packages/parlour/packages/channels/web/__init__.py\n")


def test_a_process_that_uses_the_stranger_s_is_told_so(installed: Path, tmp_path: Path) -> None:
    """Two packages of one name cannot be in one process: importing Parlour then says which one is in the way."""
    code = "import channels\ntry: import parlour\nexcept ImportError as error: print(error)"
    told = python(installed, code, tmp_path)
    assert told.startswith("channels of ")
    assert told.endswith("is in use; Parlour needs a process of its own\n")


async def test_a_model_that_needs_litellm_says_so_where_there_is_none(installed: Path, tmp_path: Path) -> None:
    """The small set of packages leaves litellm out; the start ends with one line that says what to do."""
    models = {"LLM__MODEL": "anthropic/claude-sonnet-4-5", "LLM__TRANSCRIPTION_MODEL": "openai/whisper-1"}
    for setting, model in models.items():
        process = GatewayProcess(tmp_path / "home", free_port(), **{f"PARLOUR_{setting}": model})
        process.program = (str(installed / "parlour"),)
        code, printed = await process.run_to_its_end("run")
        assert code == 2, printed
        assert f"the model '{model}' is called with litellm, which is not installed" in printed


def test_the_wheel_has_its_commit_and_the_files_for_operators(installed: Path, tmp_path: Path) -> None:
    """`--version` names the commit, and `parlour deploy` prints units that start this installation."""
    program = installed / "parlour"

    def printed(*words: str) -> str:
        run = subprocess.run((program, *words), capture_output=True, text=True, check=True, cwd=tmp_path)  # noqa: S603
        return run.stdout

    assert re.fullmatch(r"parlour \d+\.\d+\.\d+(\.dev\d+)?\+[0-9a-f]{8}\n", printed("--version"))
    assert f"ExecStart={program} run\n" in printed("deploy", "systemd", "parlour.service")
    assert "# ---- parlour-backup.timer\n" in printed("deploy", "systemd")
    assert "services:" in printed("deploy", "compose", "docker-compose.yml")
    assert "ParlourStoreUnwritable" in printed("deploy", "monitoring", "alerts.yml")
