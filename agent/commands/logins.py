"""/login and /logout: a person's own logins at services whose tools the bot uses.

The link to sign in is sent to the person's direct chat alone. It may have been forwarded to another person who opens
it, so the page behind it shows a code, and the login is stored when the person of the link sends it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.commands.command import CommandContext, CommandReply, command
from gateway.errors import UserError
from gateway.events import OutboundMessage
from gateway.i18n import translate
from gateway.i18n.formats import format_moment

if TYPE_CHECKING:
    from agent.mcp.logins import LoginSummary

_LONGEST_NAME = 24


@command("login")
async def login(context: CommandContext) -> CommandReply:
    """List the services and logins; `NAME` sends the link to sign in, `NAME CODE` finishes."""
    name, _, code = context.args.strip("` ").partition(" ")
    name, code = name.lower()[:_LONGEST_NAME], code.strip("` ")
    servers = context.services.mcp.login_names
    if not name or name not in servers:
        return CommandReply(text=await _list(context), is_private=True)
    try:
        if code:
            is_done = await context.services.mcp.logins.finish(name, context.account, code)
            return context.private_reply("logins.done" if is_done else "logins.wrong_code", server=name)
        return await _send_link(context, name)
    except UserError as error:
        return CommandReply(text=str(error), is_private=True)


async def _send_link(context: CommandContext, name: str) -> CommandReply:
    chat = None
    if context.turn.is_shared:
        chat = await context.services.find_direct_chat(context.key.channel, context.account)
        if chat is None:
            return context.private_reply("logins.write_first", server=name)
    language = context.language if chat is None else context.services.locales.language(chat)
    url = await context.services.mcp.logins.begin(name, context.account, language=language)
    text = context.translate("logins.link", server=name, url=url)
    if chat is None:
        return CommandReply(text=text, is_secret=True)
    notice = OutboundMessage(id=f"{context.turn.id}.2", key=chat, text=text)
    return CommandReply(text=context.translate("logins.sent"), is_private=True, also=(notice,))


@command("logout")
async def logout(context: CommandContext) -> CommandReply:
    """End the sender's login at the service `NAME`."""
    name = context.args.strip("` ").lower()[:_LONGEST_NAME]
    if not name:
        return context.private_reply("logins.logout_usage")
    is_out = await context.services.mcp.logins.sign_out(name, context.account.name)
    return context.private_reply("logins.out" if is_out else "logins.not_in", server=name)


async def _list(context: CommandContext) -> str:
    mcp = context.services.mcp
    servers = mcp.login_names
    if not servers:
        return context.translate("logins.none")
    zone = context.services.locales.zone(context.scope)
    found = {each.server: each for each in await mcp.logins.of_person(context.account.name)}
    rows = (f"- {login_words(name, found.get(name), zone, context.language)}" for name in servers)
    return "\n".join([context.translate("logins.list"), *rows])


def login_words(server: str, login: LoginSummary | None, zone: str, language: str) -> str:
    """Return the state of a person's *login* at *server*, None if they have none."""
    if login is None:
        return translate("logins.row_out", language, server=server)
    if login.is_over:
        return translate("logins.row_over", language, server=server)
    return translate("logins.row_in", language, server=server, at=format_moment(login.at, zone, language))
