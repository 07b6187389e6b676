"""The shim and the forking process, once per test session and worker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.nursery import Zygote, open_zygote
from tests.faults.shim import NoCompiler, build


def missing(why: str) -> None:
    """Skip where somebody just has no compiler, but never in CI."""
    if os.environ.get("CI"):
        pytest.fail(f"{why}; in CI these tests never skip", pytrace=False)
    pytest.skip(why)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled shim."""
    try:
        return build(tmp_path_factory.mktemp("shim"))
    except NoCompiler as error:
        missing(str(error))
        raise


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """The process that has imported everything and forks gateways."""
    try:
        with open_zygote() as zygote:
            yield zygote
    except NoCompiler as error:
        missing(str(error))
