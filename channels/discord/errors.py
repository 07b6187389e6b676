"""What Discord's and the network's failures mean for the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import aiohttp
import discord

from channels.discord.ratelimit import LONGEST_WINDOW
from gateway.errors import FormatRefused, OutcomeUnknown, RetryLater, SendFailed, SendRefused

# docs.discord.com/developers/topics/opcodes-and-status-codes, JSON error codes
CANNOT_DIRECT = 50007  # the person takes no direct messages from us
CANNOT_REPLY = 160002  # without the right to read the history
_INVALID_BODY = 50035
_TOO_LARGE = 40005
_TOKEN_OF_INTERACTION = 50027  # invalid webhook token: its fifteen minutes are over
_UNREACHABLE_FOR = timedelta(seconds=5)
_TOKEN_REFUSED_FOR = timedelta(minutes=5)
_BANNED_FOR = timedelta(minutes=1)  # a 429 of Cloudflare's, which may name no time


class DiscordRefusal(SendRefused):
    """Discord said no, and why: the HTTP status and its JSON error code."""

    def __init__(self, reason: str, code: int, status: int = 0) -> None:
        super().__init__(reason)
        self.code = code
        self.status = status


@contextmanager
def map_send_errors() -> Iterator[None]:
    """Turn what a call to Discord raises into SendFailed; a bug stays what it is."""
    try:
        yield
    except SendFailed:
        raise
    except discord.RateLimited as error:
        raise RetryLater(_bounded(error.retry_after), "rate limited by Discord") from error
    except discord.HTTPException as error:
        raise describe_refusal(error) from error
    except aiohttp.ClientConnectorError as error:
        raise RetryLater(_UNREACHABLE_FOR, "no connection to Discord") from error
    except (OSError, aiohttp.ClientError, TimeoutError) as error:
        raise OutcomeUnknown(f"the connection broke: {type(error).__name__}") from error
    except RuntimeError as error:
        if "closed" not in str(error):
            raise
        raise RetryLater(_UNREACHABLE_FOR, "our connection is closed") from error


def describe_refusal(error: discord.HTTPException) -> SendFailed:
    """Say what an answer that is no success means. Its code is named, its words are not."""
    reason = f"Discord answered {error.status}, code {error.code}"
    if error.status == 429:
        return RetryLater(_retry_after(error), reason)
    if error.status >= 500:
        return OutcomeUnknown(reason)
    if error.status == 401 and error.code != _TOKEN_OF_INTERACTION:
        return RetryLater(_TOKEN_REFUSED_FOR, reason)
    if error.code == _INVALID_BODY:
        return FormatRefused(reason)
    if error.code == _TOO_LARGE or error.status == 413:
        return DiscordRefusal("the file is larger than Discord takes there", _TOO_LARGE)
    return DiscordRefusal(reason, error.code, error.status)


def _bounded(seconds: float) -> timedelta:
    return timedelta(seconds=min(seconds, LONGEST_WINDOW.total_seconds()))


def _retry_after(error: discord.HTTPException) -> timedelta:
    try:
        return _bounded(max(float(error.response.headers["Retry-After"]), 1.0))
    except (KeyError, ValueError):
        return _BANNED_FOR
