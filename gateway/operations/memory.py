"""Operations on memory: the functions of the chat commands, over any scope, and the files that it is written to."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from agent.memory.search.search_unit import MEMORY, SearchOptions
from gateway.control import Line
from gateway.control.registry import (
    AuditRule,
    Call,
    CommandConfirmation,
    Show,
    argument,
    operation,
    option,
    plain,
    rows,
)
from gateway.errors import UserError
from gateway.events import PlatformAccount, Role, SessionKey
from gateway.i18n import FALLBACK
from gateway.operations.group import OperationGroup
from gateway.ports.access import ACTING, OPERATOR
from gateway.ports.journal import Job
from gateway.ports.memory import PURGE, DocumentChange

if TYPE_CHECKING:
    from agent.memory.erasure.word_eraser import ErasureRequester, WordErasureResult
    from agent.memory.erasure.word_match import ErasurePattern

_MOST_CHANGES = 1_000
_MOST_ORIGINS = 20
_MOST_HITS = 100
_ROUNDS = 4  # of purge and scrub, which follow from one another
_ELSEWHERE = "copies at platforms, the model's provider and in backups, rewordings"

Rebuild: TypeAlias = Callable[[str], Awaitable[int]]  # rebuilds data of a scope; returns the number of items
Scope = Annotated[str, option("Memory scope: telegram:42, a person's id, a chat's key, or shared.")]
Person = Annotated[str, option("The same, but only a person.")]
Chat = Annotated[str, option("The same, but only a chat.")]


# -- rows of a terminal ------------------------------------------------------------------------------


def _blocks(format_line: Callable[[Line], str], *, empty: str = "") -> Show:
    """Show the lines with an empty row between them."""

    def show(lines: Sequence[Line], _: Line) -> Iterable[str]:
        return ["\n\n".join(map(format_line, lines)) or empty]

    return show


def _scope_table(lines: Sequence[Line], _: Line) -> Iterable[str]:
    if not lines:
        return ["nothing is remembered yet"]
    numbers = ("remembered", "entries", "conversations", "waiting", "bytes")
    table: list[tuple[str, ...]] = [("", "remembers", *numbers[1:], "scope")]
    table += [
        (str(line["name"]), *(f"{line[name]:,}" for name in numbers), str(line["scope"]) or "(the home itself)")
        for line in lines
    ]
    widths = [max(len(row[n]) for row in table) for n in range(len(table[0]))]
    return ["  ".join(_cell(row, n, width) for n, width in enumerate(widths)).rstrip() for row in table]


def _cell(row: Sequence[str], n: int, width: int) -> str:
    return row[n].ljust(width) if n in (0, len(row) - 1) else row[n].rjust(width)


def _change_row(line: Line) -> str:
    by = f" (by {line['by']})" if line["by"] else ""
    return f"{line['sha']}  {line['at'][:19]}Z  {', '.join(line['documents'])}: {line['why']}{by}"


def _logged(line: Line) -> str:
    """Return a change with its first changed line below."""
    return f"{_change_row(line)}\n    {line['first']}" if line["first"] else _change_row(line)


def _origin(line: Line) -> str:
    parts = [f"{line['document']}: {line['line']}", f"  changed by  {_change_row(line['change'])}"]
    if said := line["said"]:
        parts.append(f"  said        {said['at'][:19]}Z {said['name'] or 'unknown'}: {said['text']}")
    if summary := line["summary"]:
        parts.append(f"  summary of  {summary['session']}, {summary['timestamp']}: {summary['text']}")
    return "\n".join(parts)


def _confirm_erasure(call: Call, arguments: Line) -> CommandConfirmation:
    (found,) = call("memory preview-erasure", arguments)
    total = sum(int(found[name]) for name in ("remembered", "summaries", "messages", "files"))
    text = f"nothing matches; similar words: {', '.join(found['near'])}" if found["near"] else "nothing matches"
    if total:
        more = total - len(found["examples"])
        examples = [f"  {each}" for each in found["examples"]] + ([f"  and {more} more"] if more > 0 else [])
        text = "\n".join([f"would be removed: {_amounts_of(found)}", *examples])
    if arguments["purge"]:
        return CommandConfirmation("Remove permanently, with every copy?", text)
    return CommandConfirmation("Remove?" if total else "", text)


def _erasure_rows(lines: Sequence[Line], arguments: Line) -> Iterable[str]:
    yield from (f"removed: {_amounts_of(line)}" for line in lines)
    if arguments["purge"]:
        yield from (f"purge of versions, journal and archives: {line['purge']}" for line in lines)
        yield f"not removed: {_ELSEWHERE}, your shell's history"
    else:
        yield f"not removed: {_ELSEWHERE}, earlier versions"


def _amounts_of(line: Line) -> str:
    amounts = (
        f"{line['remembered']} remembered, {line['summaries']} in summaries and notes, {line['messages']} messages"
    )
    return f"{amounts}, {line['files']} files" if line["files"] else amounts


def _dreamed(line: Line) -> str:
    changes = line["changes"]
    return "\n".join([f"{line['entries']} new entries reviewed, {len(changes)} changes", *map(_change_row, changes)])


def _hit(line: Line) -> str:
    who = line["who"] or {"assistant": "the bot", "user": "a person"}.get(str(line["role"]), "")
    when = f"{line['at'][:16].replace('T', ' ')}Z" if line["at"] and line["role"] else ""
    parts = "  ".join(part for part in (f"{line['source']}:{line['line']}", f"{line['score']:.2f}", when, who) if part)
    return f"{parts}\n    {' '.join(str(line['text']).split())}"


# -- operations --------------------------------------------------------------------------------------


class MemoryOperations(OperationGroup):
    """The operations `memory …` and `mirror rebuild`; each takes scope, person or chat as `find_scope` reads them."""

    @operation("memory list", command="memory", show=_scope_table)
    async def list_scopes(self) -> AsyncIterator[Line]:
        """List whose memory there is, and how much of it."""
        from agent.base.scopes import measure

        for scope in (await self.names()).all():
            file_bytes = sum(each.size for each in (await self._app.store.files.totals(scope)).values())
            size = await asyncio.to_thread(measure, self._app.home.path, scope, file_bytes=file_bytes)
            waits = await self._app.commands.staging.pending_changes(scope)
            yield {**plain(size), "waiting": len(waits)}

    @operation(
        "memory show",
        Role.ADMIN,
        audit=AuditRule.CALL,
        show=_blocks(
            lambda line: f"{line['document']}\n{'-' * len(line['document'])}\n{line['text']}",
            empty="nothing is remembered here yet",
        ),
    )
    async def show(self, scope: Scope = "", person: Person = "", chat: Chat = "") -> AsyncIterator[Line]:
        """Show what is remembered: USER.md and MEMORY.md."""
        scope = await self._scope(scope, person, chat)
        for name, text in (await self._app.commands.documents.displayed_documents(scope)).items():
            yield {"scope": scope, "document": name, "text": text}

    @operation("memory log", Role.ADMIN, {"limit"}, show=rows(_logged, empty="this memory has no changes yet"))
    async def log(
        self,
        scope: Scope = "",
        person: Person = "",
        chat: Chat = "",
        limit: Annotated[int, option("How many of the newest changes to show.", least=1, most=_MOST_CHANGES)] = 20,
    ) -> AsyncIterator[Line]:
        """List the changes, the newest first."""
        from agent.commands.memory_lists import first_change

        scope = await self._scope(scope, person, chat)
        limit = max(1, min(limit, _MOST_CHANGES))
        documents = self._app.commands.documents
        changes = await documents.log(scope, limit=limit)
        for version, text in zip(changes, await documents.diffs(scope, changes), strict=True):
            yield {**_change(version), "first": first_change(text)}

    @operation("memory why", show=_blocks(_origin))
    async def why(
        self,
        text: Annotated[str, argument("Words in the remembered line.")],
        scope: Scope = "",
        person: Person = "",
        chat: Chat = "",
    ) -> AsyncIterator[Line]:
        """Say where remembered lines came from: the change, and what was said."""
        scope = await self._scope(scope, person, chat)
        origins = await self._app.commands.documents.why(scope, text, limit=_MOST_ORIGINS)
        if not origins:
            raise UserError(f"no remembered line contains {text!r}; `parlour memory show` shows all of them")
        for origin in origins:
            said, entry = origin.message, origin.entry
            yield {
                "line": origin.line,
                "document": origin.name,
                "change": _change(origin.change),
                "said": {"name": said.name, "at": plain(said.at), "text": said.text} if said else None,
                "summary": {"session": entry.session, "timestamp": entry.timestamp, "text": entry.content}
                if entry
                else None,
            }

    @operation(
        "memory diff",
        Role.ADMIN,
        {"sha"},
        audit=AuditRule.CALL,
        show=_blocks(lambda line: f"{_change_row(line)}\n\n{line['diff']}"),
    )
    async def diff(
        self,
        sha: Annotated[str, argument("Its id in `parlour memory log`; the newest by default.", "[CHANGE]")] = "",
        scope: Scope = "",
        person: Person = "",
        chat: Chat = "",
    ) -> AsyncIterator[Line]:
        """Show what a change changed."""
        scope = await self._scope(scope, person, chat)
        change = await self._app.commands.documents.diff(scope, sha)
        if change is None:
            raise _no_such_change(sha) if sha else UserError("this memory has no changes yet")
        version, text = change
        yield {**_change(version), "diff": text}

    @operation(
        "memory undo", show=rows(lambda line: f"{line['sha']} is undone; this takes effect with the next message")
    )
    async def undo(
        self,
        sha: Annotated[str, argument("Its id in `parlour memory log`.", "CHANGE")],
        scope: Scope = "",
        person: Person = "",
        chat: Chat = "",
    ) -> AsyncIterator[Line]:
        """Take one change back and keep the later ones."""
        from agent.memory.editing.memory_versions import UndoResult

        scope = await self._scope(scope, person, chat)
        done = await self._app.commands.documents.undo(scope, sha, by=OPERATOR)
        if done is UndoResult.UNKNOWN:
            raise _no_such_change(sha)
        if done is UndoResult.CONFLICT:
            raise UserError(f"later changes depend on {sha}; undo those first")
        yield {"scope": scope, "sha": sha}

    @operation("memory preview-erasure")
    async def preview_erasure(
        self, text: str = "", scope: str = "", person: str = "", chat: str = "", purge: bool = False
    ) -> AsyncIterator[Line]:
        """Yield what `forget` would remove now: numbers, a few of the lines, and similar words if nothing matches."""
        scope, pattern = await self._scope(scope, person, chat), _pattern(text)
        eraser = self._app.commands.erasure.word_eraser
        found = await eraser.preview(scope, pattern, _requester(), turn="", whole=purge)
        near = [] if found.result.total else await eraser.near_words(scope, pattern)
        yield {"scope": scope, **_amounts(found.result), "examples": list(found.examples), "near": near}

    @operation("memory forget", show=_erasure_rows, confirm=_confirm_erasure)
    async def forget(
        self,
        text: Annotated[str, argument("The words; everything that contains them is removed.")],
        scope: Scope = "",
        person: Person = "",
        chat: Chat = "",
        purge: Annotated[
            bool, option("Also remove them from versions, the journal, archives and the quarantine.")
        ] = False,
    ) -> AsyncIterator[Line]:
        """Clear words from what is remembered, summarised and said, after a preview and a confirmation.

        Yields the amounts, without the words. A running gateway purges in the background.
        """
        scope, pattern = await self._scope(scope, person, chat), _pattern(text)
        turn = f"{OPERATOR}.{secrets.token_hex(8)}"
        forgetter, line = self._app.commands.erasure, {"scope": scope}
        if purge:
            removed, job = await forgetter.purge(
                scope, pattern, _requester(), key=SessionKey(OPERATOR, OPERATOR), upto=0, turn=turn
            )
            await self._app.store.jobs.advance(job.job, job.next)
            line["purge"] = "under way" if self._app.channels else await self._finish(scope)
        else:
            removed = await forgetter.forget(scope, pattern, _requester(), turn=turn)
        yield {**line, **_amounts(removed)}

    async def _finish(self, scope: str) -> str:
        """Run the pending jobs of a purge in this process, and return its state."""
        from agent.memory.erasure.scope_files import SCRUB

        jobs, left = self._app.store.jobs, True
        for _ in range(_ROUNDS):
            mine = [each for each in await jobs.pending_in(scope) if each.kind in (PURGE, SCRUB)]
            for each in mine:
                if await self._app.background.do(each) is None:
                    await jobs.finish(each)
            left = bool(mine)
            if not left:
                break
        return "continues when a gateway runs" if left else "done"

    @operation("memory dream", show=rows(_dreamed))
    async def dream(self, scope: Scope = "", person: Person = "", chat: Chat = "") -> AsyncIterator[Line]:
        """Run Dream now: new entries of the history become lasting memory. Calls the model."""
        scope = await self._scope(scope, person, chat)
        if not self._app.commands.dreams.can_run:
            raise UserError("the offline model cannot run Dream; set llm.model")
        history = self._app.store.history
        before = await history.dream_cursor(scope)
        before_run = {version.id for version in await self._app.commands.dreams.log(scope)}
        job = Job(
            id=f"dream:{OPERATOR}.{secrets.token_hex(8)}",
            kind="dream",
            scope=scope,
            payload={},
            due_at=self._app.store.journal.now(),
        )
        later = await self._app.dreamer.run(job)
        if later is not None:
            raise UserError(f"Dream was postponed ({later.reason}); its results so far are kept, run it again")
        new = [version for version in await self._app.commands.dreams.log(scope) if version.id not in before_run]
        entries = await history.dream_cursor(scope) - before
        yield {"scope": scope, "entries": entries, "changes": [_change(version) for version in new]}

    @operation(
        "mirror rebuild",
        show=rows(
            lambda line: f"{line['scope'] or 'home'}: {line['name']}, {line['count']} entries",
            empty="nothing needs rebuilding",
        ),
    )
    async def rebuild(self, scope: Scope = "", person: Person = "", chat: Chat = "") -> AsyncIterator[Line]:
        """Write every file of one scope or of all again from the store, and the search index."""
        is_named = bool(scope or person or chat)
        scopes = [await self._scope(scope, person, chat)] if is_named else (await self.names()).all()
        for scope in scopes:
            for name, rebuild in self._derived().items():
                yield {"scope": scope, "name": name, "count": await rebuild(scope)}

    @operation("memory search", command="search", show=rows(_hit, empty="nothing was found"))
    async def search(
        self,
        text: Annotated[str, argument("A question, or keywords.")],
        scope: Scope = "",
        person: str = "",
        chat: str = "",
        project: Annotated[str, option("Search this project (a folder in docs/) instead.")] = "",
        limit: Annotated[int, option("How many results.", least=1, most=_MOST_HITS)] = 10,
    ) -> AsyncIterator[Line]:
        """Search messages and memory, or the documents of a project."""
        project, limit = project or MEMORY, max(1, min(limit, _MOST_HITS))
        scope = await self._scope(scope, person, chat) if project == MEMORY else ""
        projects = await self._app.recall.projects(scope)
        if project not in (MEMORY, *projects):
            there = f"projects: {', '.join(projects)}" if projects else "there are none; a project is a folder in docs/"
            raise UserError(f"no project is called {project}; {there}")
        for hit in await self._app.recall.search(scope, text, SearchOptions(project=project, limit=limit)):
            yield {
                "source": hit.source,
                "line": hit.line,
                "end": hit.end,
                "score": hit.score,
                "at": plain(hit.at),
                "who": hit.who,
                "role": hit.role,
                "text": hit.text,
            }

    # -- inside ------------------------------------------------------------------------------------

    async def _scope(self, scope: str, person: str, chat: str) -> str:
        """Return the scope that the arguments name, after the pending memory writes of its turns."""
        scope = await self.find_scope(scope=scope, person=person, chat=chat)
        if ACTING.get() and not scope.startswith("chats/"):
            raise UserError("the console shows the memory of shared chats only; use `parlour memory` on the machine")
        await self._app.memory.jobs.settle(scope)
        return scope

    def _derived(self) -> Mapping[str, Rebuild]:
        """Return the rebuild function of each kind of derived data, by name."""
        return {
            "sessions": self._app.session_files.rebuild,
            "documents": self._documents,
            "history": self._history,
            "index.db": self._app.recall.rebuild,
        }

    async def _documents(self, scope: str) -> int:
        """Write the files and the repository of the documents again; return the number of documents."""
        await self._app.memory_files.rebuild_documents(scope)
        return len(await self._app.store.documents.texts(scope))

    async def _history(self, scope: str) -> int:
        await self._app.memory_files.settle_history(scope)
        return len(await self._app.store.history.after(scope))


def _pattern(text: str) -> ErasurePattern:
    """Return the words to erase. Raises UserError."""
    from agent.memory.erasure.word_match import SHORTEST, ErasurePattern

    pattern = ErasurePattern.of(text, FALLBACK)
    if pattern is None:
        raise UserError(f"give the words to forget, at least {SHORTEST} characters")
    return pattern


def _requester() -> ErasureRequester:
    """Return the operator, who may erase everything: access to the control socket means ownership of the home."""
    from agent.memory.erasure.word_eraser import ErasureRequester

    return ErasureRequester(account=PlatformAccount(kind="", id=OPERATOR), sender="", may_all=True)


def _change(version: DocumentChange) -> dict[str, Any]:
    return {
        "sha": version.short,
        "at": plain(version.at),
        "why": version.why,
        "by": version.by,
        "documents": list(version.names),
    }


def _no_such_change(sha: str) -> UserError:
    return UserError(f"no change has the id {sha!r}; `parlour memory log` lists them")


def _amounts(result: WordErasureResult) -> Line:
    return {name: getattr(result, name) for name in ("remembered", "summaries", "messages", "files")}
