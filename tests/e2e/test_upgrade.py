"""`parlour upgrade` in an installation from a wheel: tried on a copy of the home, put in place, and undone."""

from __future__ import annotations

import json
import subprocess
import zipfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from gateway.commands import upgrade
from gateway.commands.upgrade import NO_GATEWAY, TrialReport, exchange, report_rows
from gateway.home import Home
from tests.e2e.test_wheel import installed, link_package
from tests.fakes.gateway import GatewayProcess, free_port

__all__ = ["installed"]  # the fixture


def changed_wheel(wheel: Path, folder: Path, **changes: str) -> Path:
    """Return a copy of *wheel* in *folder* with text in place of, or (+) behind, that of some of its files."""
    target = folder / wheel.name
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w") as copy:
        for entry in source.infolist():
            data = source.read(entry)
            text = changes.get(entry.filename.removeprefix("parlour/packages/"))
            if text is not None:
                data = data + text[1:].encode() if text.startswith("+") else text.encode()
            copy.writestr(entry, data)
    return target


@pytest_asyncio.fixture(loop_scope="module")
async def process(installed: Path, tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    """Run the gateway of a wheel, whose environment has pip."""
    (site,) = installed.parent.glob("lib/python*/site-packages")
    if not (site / "pip").exists():
        link_package("pip", site)
    process = GatewayProcess(tmp_path / "home", free_port())
    process.program = (str(installed / "parlour"),)
    try:
        await process.start()
        yield process
    finally:
        await process.close()


async def version(process: GatewayProcess) -> str:
    """Return the version of the program that is in place."""
    return (await process.run_to_its_end("--version"))[1].removeprefix("parlour ").strip()


async def is_ready(process: GatewayProcess) -> bool:
    """Return True if the gateway answers."""
    try:
        async with aiohttp.ClientSession(process.url) as http, http.get("/readyz") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


@pytest.mark.timeout(400)
@pytest.mark.asyncio(loop_scope="module")
async def test_an_upgrade_is_tried_put_in_place_and_undone(
    process: GatewayProcess, installed: Path, tmp_path: Path
) -> None:
    """What cannot be tried changes nothing; what works takes over until it is put back."""
    (wheel,) = installed.parents[1].glob("*.whl")
    for name in ("broken", "newer"):
        (tmp_path / name).mkdir()
    newer = changed_wheel(wheel, tmp_path / "newer", commit="bbbbbbbb\n")
    broken = tmp_path / "broken" / wheel.name
    broken.write_bytes(wheel.read_bytes()[:100_000])
    first = await version(process)
    said = await process.run_to_its_end("send", "web:owner", "remember: I like oolong")
    assert said[0] == 0, said

    code, printed = await process.run_to_its_end("upgrade", str(broken), "--yes")
    assert (code, f"{wheel.name} cannot be installed" in printed) == (2, True), printed
    code, printed = await process.run_to_its_end("upgrade", str(tmp_path / "missing.whl"))
    assert (code, "there is no file" in printed) == (2, True), printed
    code, printed = await process.run_to_its_end("upgrade", "--back")
    assert (code, "no earlier program is kept" in printed) == (2, True), printed
    assert await version(process) == first

    code, printed = await process.run_to_its_end("upgrade", str(newer), "--yes", "--watch", "2")
    assert code == 0, printed
    second = await version(process)
    assert second.endswith("+bbbbbbbb")
    assert f"{first} -> {second}" in printed
    assert "doctor: no new errors" in printed
    assert "turns run again: 1, of which differ:\n  none" in printed
    assert "the home keeps its schema" in printed
    assert "All is well" in printed
    assert await is_ready(process)
    code, printed = await process.run_to_its_end("upgrade", "--back")
    assert (code, await version(process)) == (0, first), printed
    assert "The earlier program is back: the gateway starts again" in printed

    await process.wait_logged("app.ready", times=3)
    assert await is_ready(process)
    assert "oolong" in (await process.run_to_its_end("sessions", "show", "web:owner"))[1]
    left = [each.name for each in installed.parent.rglob("*upgrade*") if each.is_dir() and each.name != "upgrade"]
    assert left == [], "neither the trial nor the program that was replaced is kept"


async def test_a_shared_store_is_not_tried(tmp_path: Path) -> None:
    """A trial would migrate the tables of the running gateways."""
    url = "postgresql://parlour@127.0.0.1:1/parlour"
    process = GatewayProcess(tmp_path / "home", free_port(), PARLOUR_STORE__URL=url)
    code, printed = await process.run_to_its_end("upgrade", "HEAD", "--try")
    assert (code, "a trial must not change" in printed) == (2, True), printed


async def test_a_checkout_and_a_container_get_the_commands(tmp_path: Path) -> None:
    """Neither is replaced by the program in it."""
    process = GatewayProcess(tmp_path / "home", free_port())
    code, printed = await process.run_to_its_end("upgrade", "HEAD")
    assert (code, "git checkout ORIG_HEAD && make run" in printed) == (0, True), printed
    process = GatewayProcess(tmp_path / "home", free_port(), BUILD_COMMIT="0123456789abcdef")
    code, printed = await process.run_to_its_end("upgrade", "HEAD")
    assert (code, "docker compose up --detach --build" in printed) == (0, True), printed


def test_a_report_says_what_differs_and_what_going_back_costs() -> None:
    """Errors, differences by kind and turns that cannot be run again are named; a migration is said beforehand."""
    report = TrialReport(
        version="0.4.0",
        schema_before="13/27",
        schema_after="14/28",
        errors=("model: it has no key",),
        replayed=9,
        skipped=3,
        different={"prompt": 2},
        failures={"tabc": "KeyError"},
    )
    rows = "\n".join(report_rows(report))
    assert "doctor: 1 new error\n  model: it has no key" in rows
    assert "turns run again: 9, of which differ:\n  prompt: 2\n  nothing to run again: 3" in rows
    assert "\n  tabc cannot be run again: KeyError" in rows
    assert "going back restores the snapshot of before, and messages since then are unknown to the bot" in rows


class WatchedGateway:
    """What the watch of an upgrade sees: a status every two seconds, or None where nothing answers."""

    def __init__(self, *statuses: dict[str, object] | None) -> None:
        self._statuses = statuses
        self.seconds = 0.0

    def monotonic(self) -> float:
        """Return the seconds so far."""
        return self.seconds

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.seconds += seconds

    @property
    def status(self) -> dict[str, object] | None:
        """The status at this time; the last one stays."""
        return self._statuses[min(int(self.seconds / 2), len(self._statuses) - 1)]

    def ask(self, _: str) -> subprocess.CompletedProcess[str]:
        """Answer as `parlour ask` does."""
        code = NO_GATEWAY if self.status is None else 0
        return subprocess.CompletedProcess((), code, json.dumps(self.status), "")


OLD = {"version": "1", "since": "a", "oldest_seconds": 0}
NEW = {"version": "2", "since": "b", "oldest_seconds": 0}


@pytest.mark.parametrize(
    ("seen", "trouble"),
    [
        ((OLD, None, None, NEW), ""),
        ((OLD, None, NEW, None, NEW), ""),  # one look that failed
        ((None,), "the new program ended"),
        ((OLD,), "the new program has not answered for 90 seconds"),
        ((NEW, NEW, None), "the new program ended"),
        ((NEW, None, {**NEW, "since": "c"}), "the new program ended and was started again"),
        ((NEW, {**NEW, "oldest_seconds": 61}), "a message waits for 61 seconds"),
    ],
)
def test_a_new_program_that_fails_within_the_watch_is_found(
    seen: Sequence[dict[str, object] | None], trouble: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Up for the whole time is well, but for one look; an end, a start again, silence and a queue are not."""
    watched = WatchedGateway(*seen)
    monkeypatch.setattr(upgrade, "time", watched)
    monkeypatch.setattr(upgrade, "_ask_process", watched.ask)
    monkeypatch.setattr(upgrade, "is_held", lambda _: watched.status is not None)
    assert upgrade._await_trouble("2", Home(tmp_path), OLD, 30) == trouble


def test_programs_change_places_and_one_is_kept(tmp_path: Path) -> None:
    """The one of before is beside the new one; an earlier one that was kept is gone."""
    site = tmp_path / "site-packages"
    for name in ("first", "second", "third"):
        fresh = tmp_path / name
        fresh.mkdir()
        (fresh / "name").write_text(name)
        if site.exists():
            exchange(site, fresh)
        else:
            fresh.rename(site)
    assert (site / "name").read_text() == "third"
    assert (tmp_path / "site-packages.before-upgrade" / "name").read_text() == "second"
    assert {each.name for each in tmp_path.iterdir()} == {"site-packages", "site-packages.before-upgrade"}
