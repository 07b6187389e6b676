"""Operator commands for the data of one person: export and forgetting."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

from agent.memory.erasure.erase_service import has_downloads
from agent.memory.erasure.scope_eraser import PEOPLE
from agent.memory.scope_names import ScopeSelector
from gateway.app.access_operations import operator
from gateway.app.channels import accounts_of
from gateway.app.memory_operations import MemoryOperations
from gateway.app.operation_group import OperationGroup, operation, target_file
from gateway.control import Line
from gateway.errors import UserError
from gateway.events import PlatformAccount

REMAINS = (
    "their messages on the platforms",
    "what the model's provider stores",
    "earlier backups, until you delete them",
    "what others said about them, and summaries of groups that mention them: `/forget NAME --purge` there",
    "messages quoted from groups where they never wrote to the bot: they are stored by name only, with the message that"
    " mentioned the bot; `/forget NAME --purge` there removes them",
    "usage totals without a name, and ids of handled messages for up to 30 days, so that none is answered twice",
    "their entries in PARLOUR_OWNERS and allow_from: remove them, or the person can write again",
    "decisions about them (`parlour people list`), and for a year the audit lines with their id",
)
_KIND = re.compile(r"[a-z][a-z0-9-]*\Z")
DOWNLOADED = "files that `parlour chat` saved in downloads/: delete them yourself"


class PeopleOperations(OperationGroup):
    """The operations `people forget|export|look`."""

    @operation("people export")
    async def export(self, person: str = "", file: str = "") -> AsyncIterator[Line]:
        """Write all data of a person into a zip file. The client makes the path absolute."""
        target = target_file(file)
        await self._app.session_files.flush()  # a scope is there once something of it is in a file
        wish = ScopeSelector(person=person)
        scope = (await MemoryOperations(self._app).names()).find(wish)
        await self._app.memory_jobs.settle(scope)
        try:
            language = self._app.commands.chats.preferences.preferences(scope).get(
                "language", self._app.settings.language
            )
            exports = self._app.commands.memory.privacy.exports
            packed = await exports.write(scope, scope.rpartition("/")[2], target, language=language)
        except FileExistsError:
            raise UserError(f"{target} already exists; name another file") from None
        except OSError as error:
            raise UserError(f"{target} cannot be written: {error.strerror or error}") from error
        yield {"file": str(target), "scope": scope, "files": packed.files}

    @operation("people look")
    async def look(self, person: str = "") -> AsyncIterator[Line]:
        """Yield whether any data of a person is stored. Raises UserError for a malformed account."""
        account = self._account(person)
        yield {"person": account.label, "is_known": await self._is_known(account)}

    @operation("people forget")
    async def forget(self, person: str = "") -> AsyncIterator[Line]:
        """Erase a person everywhere; yield one line with what was erased and what remains. Idempotent.

        Raises UserError for an account without any stored data, which is most likely misspelt.
        """
        account = self._account(person)
        is_known = await self._is_known(account)
        if is_known:
            await self._note(account)
        try:
            erased = await self._app.commands.memory.erasure.scope_eraser.erase_person(account)
        except OSError as error:
            raise UserError(f"not everything was deleted ({error.strerror or error}); run it again") from error
        if not is_known:
            if not erased.chats:
                raise UserError(
                    f"nothing is stored about {account.label}; `parlour memory` and `parlour people list` list people."
                    " In groups, `/forget NAME --purge` removes quoted messages of a person by name"
                )
            await self._note(account)
        kinds = {PlatformAccount.from_name(each.removeprefix(PEOPLE)).kind for each in erased.scopes}
        saves_files = not self._app.commands.memory.erasure.saving_platforms.isdisjoint(kinds)
        stays = saves_files and await asyncio.to_thread(has_downloads, self._app.home.path)
        remains = [*REMAINS, DOWNLOADED] if stays else list(REMAINS)
        yield {"person": erased.person, "scopes": list(erased.scopes), "chats": list(erased.chats), "remains": remains}

    async def _is_known(self, account: PlatformAccount) -> bool:
        """Return True if data of *account* is stored, or was before it was erased."""
        scopes = (await MemoryOperations(self._app).names()).all()
        if any(f"{PEOPLE}{each}" in scopes for each in (account.name, self._app.store.links.person(account))):
            return True
        accounts = self._accounts(account)
        named = {(each.channel, each.who) for each in self._app.access.decisions.list_access()}
        named |= {(each.channel, each.who) for each in self._app.access.pairing.pending_requests()}
        if any(self._app.access.roster.account(channel, who) in accounts for channel, who in named):
            return True
        return bool(await self._app.store.access.audit(about=account.label, limit=1))

    async def _note(self, account: PlatformAccount) -> None:
        """Record in the audit that *account* is to be erased, and drop its pairing requests."""
        accounts = self._accounts(account)
        await self._app.access.decisions.note_forgetting(account.label, accounts, operator())
        users = [
            (name, each.id) for name, kind in self._app.platforms.items() for each in accounts if each.kind == kind
        ]
        await self._app.access.pairing.forget(users)

    def _accounts(self, account: PlatformAccount) -> set[PlatformAccount]:
        return {account.user, *accounts_of(self._app.store.links, account)}

    def _account(self, name: str) -> PlatformAccount:
        """Return the account that is meant. Raises UserError for a text that names none."""
        account = PlatformAccount.from_input(name, has_teams=self._app.platforms.has_teams)
        if not _KIND.match(account.kind) or not account.id:
            raise UserError(f"{name!r} is not an account; write kind:id, such as telegram:42 or slack:T0TEAM:U0USER")
        return account
