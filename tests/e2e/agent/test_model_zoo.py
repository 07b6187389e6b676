"""Many providers and model servers behind one gateway: nothing is stuck, shown raw, or refused twice."""

from __future__ import annotations

import pytest

from tests.model_zoo import PAGE, page_with, run, table

pytestmark = [pytest.mark.xdist_group("litellm"), pytest.mark.timeout(300)]


async def test_every_server_of_the_zoo_is_answered_and_on_the_page() -> None:
    """Every step with every profile is answered or refused in the right words, and docs/models.md says which."""
    result = await run()
    assert "\n".join(result.faults()) == ""
    page = PAGE.read_text("utf-8")
    assert page_with(table(result), page) == page, "python -m tests.model_zoo writes the page"
