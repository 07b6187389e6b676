"""Optional capabilities are asked for by `isinstance`: no type checker sees a class that no longer has the method."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pytest

import agent
import channels
import gateway


def classes() -> Iterator[type]:
    """Yield every class of the three packages."""
    for package in (gateway, channels, agent):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith(("__main__", "reader_process")):
                module = importlib.import_module(found.name)
                yield from (each for _, each in inspect.getmembers(module, inspect.isclass))


OURS = sorted(
    {each for each in classes() if each.__module__.startswith(("gateway.", "channels.", "agent."))},
    key=lambda each: f"{each.__module__}.{each.__name__}",
)
CAPABILITIES = [each for each in OURS if getattr(each, "_is_runtime_protocol", False) and "_is_protocol" in vars(each)]


@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda each: str(each.__name__))
def test_every_optional_capability_has_an_implementation(capability: type) -> None:
    """A class of ours has all its methods, or a rename has left the question without an answer."""
    members = {name for name in vars(capability) if not name.startswith("_")}
    assert members
    able = [each for each in OURS if not getattr(each, "_is_protocol", False) and members <= set(dir(each))]
    assert able, f"no class has {sorted(members)}"
