"""The refusals of every scripted server: a long prompt, a rate limit, a wrong key, an ability that it lacks."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from agent.llm.completion_stream import error_in_body
from agent.llm.provider_errors import ProviderHttpError, map_provider_error
from gateway.errors import (
    AbilityMissing,
    ContextOverflow,
    ModelAbility,
    ModelFailed,
    ModelRateLimited,
    ModelRefused,
    ModelUnreachable,
)
from tests.fakes.model_zoo import PROFILES
from tests.fakes.model_zoo.profile import ErrorForm, ModelProfile, Refusal
from tests.fakes.strict_requests import RequestRule as R

NOW = datetime(2026, 11, 28, tzinfo=UTC)
ALL = pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
ABILITIES = {
    R.TOOLS: ModelAbility.TOOLS,
    R.PICTURES: ModelAbility.PICTURES,
    R.STREAM: ModelAbility.STREAM,
    R.STREAM_OPTIONS: ModelAbility.STREAM_OPTIONS,
    R.SYSTEM: ModelAbility.SYSTEM,
    R.NO_REASONING: ModelAbility.REASONING,
    R.REASONING: ModelAbility.FOREIGN_CALLS,
    R.DETAILS: ModelAbility.FOREIGN_CALLS,
    R.SIGNATURE: ModelAbility.FOREIGN_CALLS,
}


def read(refusal: Refusal) -> ModelFailed:
    """Return what the error of a server becomes, as `OpenAIConnection` hands it over."""
    text = refusal.body if isinstance(refusal.body, str) else json.dumps(refusal.body or "")
    if refusal.body is None or refusal.content_type == "text/html":
        text = ""
    for name, value in {"window": "4096", "tokens": "6000", "key": "sk-SECRET"}.items():
        text = text.replace(f"%{name}%", value)
    if refusal.status != 200 and refusal.form is ErrorForm.STATUS:
        return map_provider_error(ProviderHttpError(refusal.status, text, refusal.headers), "m", NOW)
    body = json.loads(text)
    return map_provider_error(error_in_body(body.get("error", body)), "m", NOW)


@ALL
def test_a_long_prompt(profile: ModelProfile) -> None:
    """It is recognised in every server's words; where they name the limit in tokens, it is that."""
    if profile.overflow is None:
        return
    error = read(profile.overflow)
    assert isinstance(error, ContextOverflow)
    assert error.window in (0, 4096)


@ALL
def test_a_rate_limit(profile: ModelProfile) -> None:
    """It is waited for as long as the header or the text says, or with a back-off where neither does."""
    if profile.limit is None:
        return
    error = read(profile.limit)
    assert isinstance(error, ModelRateLimited)
    if profile.limit.wait:
        assert error.delay is not None
        assert error.delay >= timedelta(seconds=profile.limit.wait)
    else:
        assert error.delay is None


@ALL
def test_a_wrong_key(profile: ModelProfile) -> None:
    """It is about the account, whatever the status, and the key is not in the error."""
    error = read(profile.bad_key)
    assert isinstance(error, ModelRefused)
    assert not isinstance(error, AbilityMissing)
    assert error.is_about_account
    assert "SECRET" not in str(error)


@ALL
def test_what_it_lacks_and_what_it_does_not(profile: ModelProfile) -> None:
    """An ability is read from the refusal of it; a history that is not valid is no lack and no long prompt."""
    for rule, refusal in profile.refuses.items():
        error = read(refusal)
        if rule in ABILITIES:
            assert isinstance(error, AbilityMissing), rule
            assert error.ability is ABILITIES[rule], rule
        else:
            assert isinstance(error, ModelRefused | ModelUnreachable), rule
