"""Setting a bot up: what is asked, and what real calls say of the answers. Nothing is changed at Telegram."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from telegram import Bot, User
from telegram.error import Conflict, EndPointNotFound, Forbidden, InvalidToken, TelegramError

from channels.telegram.api import (
    copy_the_token,
    describe_error,
    is_token_refused,
    make_bot,
    make_poll_request,
    not_telegram,
)
from channels.telegram.retry import OTHER_POLLER, WEBHOOK_SET
from channels.telegram.token_lock import TokenLock
from gateway.ports import SetupFinding, SetupLevel

_AT_MOST = 14.0  # seconds for everything
_PROBE = 2  # seconds in which somebody else who polls would come back
_GROUPS = 5  # groups of allow_from that are looked at

PRIVACY_CLICKS = (
    "in @BotFather: /mybots, the bot, Bot Settings, Group Privacy, Turn off; then remove the bot from its groups and"
    " add it again"
)


async def verify(settings: Any, environment: Mapping[str, str]) -> Sequence[SetupFinding]:
    """Ask Telegram whether the block would work."""
    proxy, token = environment.get("PARLOUR_PROXY", ""), settings.token.get_secret_value()
    polling = make_poll_request(proxy)
    bot = make_bot(token, settings.base_url, settings.file_url, polling, proxy=proxy)
    found: list[SetupFinding] = []
    try:
        async with asyncio.timeout(_AT_MOST):
            await _verify(bot, settings, found)
    except TimeoutError:
        found.append(_wrong(f"{_host(settings)} did not answer in time; look at the network, or set PARLOUR_PROXY"))
    finally:
        await bot.request.shutdown()
        await polling.shutdown()
    return tuple(found)


async def _verify(bot: Bot, settings: Any, found: list[SetupFinding]) -> None:
    try:
        me = await bot.get_me()
    except TelegramError as error:
        if is_token_refused(error):
            found.append(_wrong(f"Telegram refuses the token; {copy_the_token(error, settings.base_url)}"))
            return
        if isinstance(error, InvalidToken | EndPointNotFound):
            found.append(_wrong(not_telegram(settings.base_url)))
            return
        mend = "look at the network; behind a proxy set PARLOUR_PROXY; for a server of your own, base_url"
        found.append(_wrong(f"{_host(settings)} is not reached ({describe_error(error)}); {mend}"))
        return
    found.append(SetupFinding(level=SetupLevel.GOOD, text=f"the token is @{me.username}'s, id {me.id}"))
    found.extend(_groups(me, settings))
    try:
        found.extend(await _ways(bot, settings))
        found.extend(await _members(bot, me, settings))
    except TelegramError as error:
        found.append(_warning(f"not everything could be asked: {describe_error(error)}; try again"))


def _groups(me: User, settings: Any) -> Sequence[SetupFinding]:
    """Privacy mode against the policy, and whether the bot may be added anywhere."""
    named = [entry for entry in settings.allow_from if entry.startswith("chat:-")]
    found: list[SetupFinding] = []
    if named and not me.can_join_groups:
        clicks = "in @BotFather: /mybots, the bot, Bot Settings, Allow Groups?, Turn on"
        found.append(_warning(f"allow_from names a group, but this bot cannot be added to groups; {clicks}"))
    if settings.group_policy == "open" and not me.can_read_all_group_messages:
        found.append(
            _warning(f"group_policy is open, but privacy mode hides what does not mention us; {PRIVACY_CLICKS}")
        )
    elif settings.group_policy == "mention" and not me.can_read_all_group_messages:
        text = "privacy mode is on: in groups we see mentions, answers to us and commands, and not what was said before"
        found.append(SetupFinding(level=SetupLevel.GOOD, text=text))
    return found


async def _ways(bot: Bot, settings: Any) -> Sequence[SetupFinding]:
    """How messages reach us: a webhook, or polling that nobody else does."""
    info = await bot.get_webhook_info()
    if settings.mode == "webhook":
        if info.url and info.url != settings.webhook_url:
            host = urlsplit(info.url).hostname
            return [_warning(f"the webhook leads to {host} now; the next start sets it to webhook_url")]
        if info.url and info.last_error_message:
            said = info.last_error_message[:200]
            mend = "see that webhook_url leads here from the internet, and that web.public_url names its host"
            return [_warning(f"Telegram's last call to the webhook failed: {said}; {mend}")]
        return []
    if info.url:
        return [_wrong(f"{WEBHOOK_SET} (it leads to {urlsplit(info.url).hostname})")]
    lock = TokenLock(settings.token.get_secret_value(), settings.base_url)
    if not await asyncio.to_thread(lock.acquire):
        running = f"a Parlour on this machine fetches its messages now (process {lock.holder()})"
        return [SetupFinding(level=SetupLevel.GOOD, text=running)]
    try:
        # Without an offset nothing is confirmed, and without kinds nothing is set.
        await bot.get_updates(limit=1, timeout=_PROBE, read_timeout=_PROBE + 5.0)
    except Conflict:
        return [_wrong(OTHER_POLLER)]
    finally:
        lock.release()
    return []


async def _members(bot: Bot, me: User, settings: Any) -> Sequence[SetupFinding]:
    """Whether the bot is in the groups that are let in."""
    found: list[SetupFinding] = []
    for entry in [entry for entry in settings.allow_from if entry.startswith("chat:-")][:_GROUPS]:
        chat = entry.removeprefix("chat:")
        try:
            member = await bot.get_chat_member(int(chat), me.id)
        except TelegramError as error:
            if not isinstance(error, Forbidden) and "chat not found" not in error.message.lower():
                found.append(
                    _warning(f"the group {chat} of allow_from could not be asked for: {describe_error(error)}")
                )
                continue
            is_there = False
        else:
            is_there = member.status not in ("left", "kicked")
        if not is_there:
            found.append(_warning(f"the bot is not in the group {chat} of allow_from; add it there, or correct the id"))
    return found


def _host(settings: Any) -> str:
    return str(urlsplit(settings.base_url).hostname)


def _wrong(text: str) -> SetupFinding:
    return SetupFinding(level=SetupLevel.WRONG, text=text)


def _warning(text: str) -> SetupFinding:
    return SetupFinding(level=SetupLevel.WARNING, text=text)
