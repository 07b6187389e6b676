"""One memory for everything is for one person: the doctor says where it would be read by several, or not at all."""

from __future__ import annotations

from pathlib import Path

from gateway.health.checks import CheckContext
from gateway.health.settings_checks import check_isolation
from gateway.settings import check_settings

TELEGRAM = {"PARLOUR_CHANNELS__TELEGRAM__TOKEN": f"123456789:AA{'x' * 33}", "PARLOUR_OWNERS": "telegram:42"}


def isolation_findings(tmp_path: Path, **settings: str) -> list[str]:
    """Return what the doctor says about isolation."""
    environment = {"PARLOUR_HOME": str(tmp_path), "PARLOUR_WEB__PORT": "0", **TELEGRAM, **settings}
    context = CheckContext(report=check_settings(environment), environment=environment)
    return [each.text for each in check_isolation(context)]


def test_one_memory_for_several_people_is_warned_of(tmp_path: Path) -> None:
    """Two accounts of one platform, or a whole guild, are several people; strict is right for any number."""
    assert not isolation_findings(tmp_path, PARLOUR_CHANNELS__TELEGRAM__ALLOW_FROM="43")
    shared = {"PARLOUR_MEMORY__ISOLATION": "shared"}
    assert not isolation_findings(tmp_path, **shared)
    assert "tell each of them" in isolation_findings(tmp_path, PARLOUR_CHANNELS__TELEGRAM__ALLOW_FROM="43", **shared)[0]
    assert (
        "tell each of them"
        in isolation_findings(tmp_path, PARLOUR_CHANNELS__TELEGRAM__ALLOW_FROM="chat:-100", **shared)[0]
    )


def test_memory_that_nobody_reads_is_named(tmp_path: Path) -> None:
    """What people had of their own before is not merged, and not forgotten either."""
    (tmp_path / "people/telegram%3a42/memory").mkdir(parents=True)
    assert "the memories in people are not used" in isolation_findings(tmp_path, PARLOUR_MEMORY__ISOLATION="shared")[0]
