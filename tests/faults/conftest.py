"""The shim, once per test session and worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import missing
from tests.faults.shim import NoCompiler, build


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled shim."""
    try:
        return build(tmp_path_factory.mktemp("shim"))
    except NoCompiler as error:
        missing(str(error))
        raise
