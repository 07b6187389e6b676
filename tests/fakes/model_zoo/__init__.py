"""Model servers of many makers in one process: `PROFILES` is what they are, `server.open_zoo` serves them."""

from __future__ import annotations

from collections.abc import Mapping

from tests.fakes.model_zoo.host_profiles import HOSTS
from tests.fakes.model_zoo.maker_profiles import MAKERS
from tests.fakes.model_zoo.own_profiles import OWN
from tests.fakes.model_zoo.profile import ModelProfile

PROFILES: Mapping[str, ModelProfile] = {each.name: each for each in (*MAKERS, *HOSTS, *OWN)}
