"""Checks of a Telegram channel's settings by real calls, which change nothing at Telegram."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from telegram import Bot, User
from telegram.error import Conflict, EndPointNotFound, Forbidden, InvalidToken, TelegramError

from channels.telegram.api import (
    OTHER_POLLER,
    WEBHOOK_SET,
    copy_the_token,
    describe_error,
    is_token_refused,
    make_bot,
    make_requests,
    not_telegram,
)
from channels.telegram.inbound import TokenLock
from gateway.ports.setup import Finding, fail, ok, warn

_TIMEOUT = 14.0  # seconds for everything
_PROBE = 2  # seconds in which another poller would poll again
_GROUPS = 5  # groups of allow_from that are checked

PRIVACY_CLICKS = (
    "in @BotFather: /mybots, the bot, Bot Settings, Group Privacy, Turn off; then remove the bot from its groups and"
    " add it again"
)


async def verify(settings: Any, environment: Mapping[str, str]) -> Sequence[Finding]:
    """Return the findings of real calls with the token."""
    proxy, token = environment.get("PARLOUR_PROXY", ""), settings.token.get_secret_value()
    calls, polling = make_requests(proxy)
    bot = make_bot(token, settings.base_url, settings.file_url, calls, polling)
    findings: list[Finding] = []
    try:
        async with asyncio.timeout(_TIMEOUT):
            await _verify(bot, settings, findings)
    except TimeoutError:
        findings.append(fail(f"{_host(settings)} did not answer in time; check the network, or set PARLOUR_PROXY"))
    finally:
        await calls.shutdown()
        await polling.shutdown()
    return tuple(findings)


async def _verify(bot: Bot, settings: Any, findings: list[Finding]) -> None:
    try:
        account = await bot.get_me()
    except TelegramError as error:
        if is_token_refused(error):
            findings.append(fail(f"Telegram rejects the token; {copy_the_token(error, settings.base_url)}"))
            return
        if isinstance(error, InvalidToken | EndPointNotFound):
            findings.append(fail(not_telegram(settings.base_url)))
            return
        mend = "check the network; behind a proxy, set PARLOUR_PROXY; for your own Bot API server, set base_url"
        findings.append(fail(f"{_host(settings)} cannot be reached ({describe_error(error)}); {mend}"))
        return
    findings.append(ok(f"the token belongs to @{account.username}, id {account.id}"))
    findings.extend(_check_groups(account, settings))
    try:
        findings.extend(await _check_transport(bot, settings))
        findings.extend(await _check_members(bot, account, settings))
    except TelegramError as error:
        findings.append(warn(f"some checks failed: {describe_error(error)}; try again"))


def _check_groups(account: User, settings: Any) -> Sequence[Finding]:
    """Return findings on privacy mode and on whether the bot can be added to groups."""
    named = [entry for entry in settings.allow_from if entry.startswith("chat:-")]
    findings: list[Finding] = []
    if named and not account.can_join_groups:
        clicks = "in @BotFather: /mybots, the bot, Bot Settings, Allow Groups?, Turn on"
        findings.append(warn(f"allow_from names a group, but this bot cannot be added to groups; {clicks}"))
    if settings.group_policy == "open" and not account.can_read_all_group_messages:
        findings.append(
            warn(f"group_policy is open, but privacy mode hides messages that do not mention the bot; {PRIVACY_CLICKS}")
        )
    elif settings.group_policy == "mention" and not account.can_read_all_group_messages:
        text = "privacy mode is on: in groups the bot receives only mentions, replies to it and commands"
        findings.append(ok(text))
    return findings


async def _check_transport(bot: Bot, settings: Any) -> Sequence[Finding]:
    """Return findings on the webhook, or on other programs that poll."""
    info = await bot.get_webhook_info()
    if settings.mode == "webhook":
        if info.url and info.url != settings.webhook_url:
            host = urlsplit(info.url).hostname
            return [warn(f"the webhook now points to {host}; the next start sets it to webhook_url")]
        if info.url and info.last_error_message:
            said = info.last_error_message[:200]
            mend = (
                "check that webhook_url reaches this gateway from the internet, and that web.public_url names its host"
            )
            return [warn(f"Telegram's last call to the webhook failed: {said}; {mend}")]
        return []
    if info.url:
        return [fail(f"{WEBHOOK_SET} (it points to {urlsplit(info.url).hostname})")]
    lock = TokenLock(settings.token.get_secret_value(), settings.base_url)
    if not await asyncio.to_thread(lock.acquire):
        running = f"a gateway on this machine is receiving its messages (process {lock.holder()})"
        return [ok(running)]
    try:
        # Without an offset nothing is confirmed, and without kinds nothing is set.
        await bot.get_updates(limit=1, timeout=_PROBE, read_timeout=_PROBE + 5.0)
    except Conflict:
        return [fail(OTHER_POLLER)]
    finally:
        lock.release()
    return []


async def _check_members(bot: Bot, account: User, settings: Any) -> Sequence[Finding]:
    """Return findings on groups of allow_from that the bot is not in."""
    findings: list[Finding] = []
    for entry in [entry for entry in settings.allow_from if entry.startswith("chat:-")][:_GROUPS]:
        chat = entry.removeprefix("chat:")
        try:
            member = await bot.get_chat_member(int(chat), account.id)
        except TelegramError as error:
            if not isinstance(error, Forbidden) and "chat not found" not in error.message.lower():
                findings.append(warn(f"the group {chat} in allow_from could not be checked: {describe_error(error)}"))
                continue
            is_there = False
        else:
            is_there = member.status not in ("left", "kicked")
        if not is_there:
            findings.append(
                warn(f"the bot is not a member of the group {chat} in allow_from; add it, or correct the id")
            )
    return findings


def _host(settings: Any) -> str:
    return str(urlsplit(settings.base_url).hostname)
