"""Many providers and model servers behind one gateway: nothing is stuck, shown raw, or refused twice.

Every fourth profile is played here, and all of them with `CROSSINGS=full`.
"""

from __future__ import annotations

import pytest

from tests.fakes.model_zoo import PROFILES
from tests.faults.matrix import IS_FULL
from tests.model_zoo import PAGE, page_with, run, table

pytestmark = [pytest.mark.xdist_group("litellm"), pytest.mark.timeout(300)]


async def test_servers_of_the_zoo_are_answered_and_on_the_page() -> None:
    """Every step with a profile is answered or refused in the right words, and docs/models.md says which."""
    names = list(PROFILES)[:: 1 if IS_FULL else 4]
    result = await run({name: PROFILES[name] for name in names})
    assert "\n".join(result.faults()) == ""
    page = PAGE.read_text("utf-8")
    assert set(table(result).splitlines()) <= set(page.splitlines()), "python -m tests.model_zoo writes the page"
    assert all(f"| {profile.title} | `{profile.model}` |" in page for profile in PROFILES.values())
    if IS_FULL:
        assert page_with(table(result), page) == page
