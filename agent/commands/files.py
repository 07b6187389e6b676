"""/files: list the workspace of this chat's scope, restore deleted files, and remove them for good."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import structlog

from agent.commands.command import CommandContext, CommandNeed, CommandReply, command, first_word
from gateway.errors import ToolFailed
from gateway.events import Role
from gateway.i18n.formats import format_file_size, format_moment
from gateway.ports.memory import ScopeFile

log = structlog.get_logger(__name__)

_MOST_FILES = 30
_MOST_DELETED = 10
_LONGEST_ID = 20


@command("files", words={"empty": CommandNeed(shared=Role.ADMIN, single=Role.OWNER)})
async def files(context: CommandContext) -> CommandReply:
    """List files; `restore <id>` brings a deleted one back, `empty` removes the deleted ones for good."""
    workspace = context.services.workspaces.of(context.scope)
    word, rest = first_word(context.args), context.args.partition(" ")[2].strip()
    try:
        if word == "restore" and rest:
            name = await workspace.restore(rest.strip("`").lower()[:_LONGEST_ID])
            if name is None:
                return context.private_reply("files.unknown")
            return context.reply("files.restored", name=_as_code(name))
        if word == "empty" and not rest:
            return context.private_reply("files.emptied", files=await workspace.empty_trash())
        if word:
            return context.private_reply("files.usage")
        current, deleted = await workspace.list_files(), await workspace.deleted_files()
    except (OSError, ToolFailed) as error:
        log.warning("workspace.failed", error=type(error).__name__)
        return context.private_reply("files.failed")
    return CommandReply(text="\n".join(_list(context, current, deleted)), is_private=True)


def _list(context: CommandContext, current: Sequence[ScopeFile], deleted: Sequence[ScopeFile]) -> list[str]:
    if not current:
        lines = [context.translate("files.none")]
    else:
        size = format_file_size(sum(each.size for each in current), context.language)
        lines = [context.translate("files.title", files=len(current), size=size)]
        lines += [f"- {_facts(context, each.name, each.size, each.at)}" for each in current[:_MOST_FILES]]
    if len(current) > _MOST_FILES:
        lines.append(context.translate("files.more", files=len(current) - _MOST_FILES))
    if deleted:
        lines += ["", context.translate("files.deleted")]
        for each in deleted[:_MOST_DELETED]:
            restore = context.translate("files.restore", id=each.name)
            lines.append(f"- {_facts(context, each.original, each.size, each.at)} · {restore}")
    return lines


def _facts(context: CommandContext, name: str, size: int, at: datetime) -> str:
    moment = format_moment(at, context.turn.zone, context.language)
    return f"{_as_code(name)} · {format_file_size(size, context.language)} · {moment}"


def _as_code(name: str) -> str:
    """Return a file's name as code: models and other people choose names, which are never markup."""
    plain = name.replace("`", "'")
    return f"`{plain}`"
