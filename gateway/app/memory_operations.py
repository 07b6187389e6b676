"""Operator commands for memory: the functions of the chat commands, over any scope."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from agent.commands.memory_lists import first_change
from agent.memory.erasure.purge_jobs import SCRUB
from agent.memory.erasure.word_eraser import ErasureRequester, WordErasureResult
from agent.memory.erasure.word_match import SHORTEST, ErasurePattern
from agent.memory.scope_names import ScopeNames, ScopeSelector, find_scopes, measure
from agent.memory.storage.transcript_lines import format_time
from agent.memory.versioning.memory_service import UndoResult
from gateway.app.operation_group import OperationGroup, by_admin, operation, plain
from gateway.control import Line
from gateway.errors import UserError
from gateway.events import PlatformAccount, SessionKey
from gateway.i18n.languages import FALLBACK
from gateway.ports import MEMORY, DocumentChange, Job, SearchOptions
from gateway.ports.access import ACTING
from gateway.ports.erasure import PURGE
from gateway.web_console.console_routes import AuditRule

OPERATOR = "operator"  # access to the control socket means ownership of the home
_OPERATOR = ErasureRequester(account=PlatformAccount(kind="", id=OPERATOR), sender="", may_all=True)
_MOST_CHANGES = 1_000
_MOST_ORIGINS = 20
_MOST_HITS = 100
_ROUNDS = 4  # of purge and scrub, which follow from one another

Rebuild: TypeAlias = Callable[[str], Awaitable[int]]  # rebuilds data of a scope; returns the number of items


class MemoryOperations(OperationGroup):
    """The operations `memory …` and `mirror rebuild`; each takes scope, person or chat as `ScopeNames` reads them."""

    @operation("memory list")
    async def list_scopes(self) -> AsyncIterator[Line]:
        """Yield one line per scope, with its size."""
        for scope in (await self.names()).all():
            file_bytes = sum(each.size for each in (await self._app.store.files.totals(scope)).values())
            size = await asyncio.to_thread(measure, self._app.home.path, scope, file_bytes=file_bytes)
            waits = await self._app.commands.staging.pending_changes(scope)
            yield {**plain(size), "waiting": len(waits)}

    @operation("memory show", by_admin(audit=AuditRule.CALL))
    async def show(self, arguments: Line) -> AsyncIterator[Line]:
        """Yield one line per document that is not empty."""
        scope = await self._scope(arguments)
        for name, text in (await self._app.commands.documents.displayed_documents(scope)).items():
            yield {"scope": scope, "document": name, "text": text}

    @operation("memory log", by_admin("limit"))
    async def log(self, arguments: Line) -> AsyncIterator[Line]:
        """Yield one line per change, the newest first."""
        scope = await self._scope(arguments)
        limit = max(1, min(int(arguments.get("limit", 20)), _MOST_CHANGES))
        documents = self._app.commands.documents
        changes = await documents.log(scope, limit=limit)
        for version, text in zip(changes, await documents.diffs(scope, changes), strict=True):
            yield {**_change(version), "first": first_change(text)}

    @operation("memory why")
    async def why(self, arguments: Line) -> AsyncIterator[Line]:
        """Yield one line per remembered line that contains the words, with its change and the messages it came from."""
        scope, text = await self._scope(arguments), str(arguments.get("text", ""))
        origins = await self._app.commands.documents.why(scope, text, limit=_MOST_ORIGINS)
        if not origins:
            raise UserError(f"no remembered line contains {text!r}; `parlour memory show` shows all of them")
        for origin in origins:
            said, entry = origin.message, origin.entry
            yield {
                "line": origin.line,
                "document": origin.name,
                "change": _change(origin.change),
                "said": {"name": said.name, "at": format_time(said.at), "text": said.text} if said else None,
                "summary": {"session": entry.session, "timestamp": entry.timestamp, "text": entry.content}
                if entry
                else None,
            }

    @operation("memory diff", by_admin("sha", audit=AuditRule.CALL))
    async def diff(self, arguments: Line) -> AsyncIterator[Line]:
        """Yield one change with its diff."""
        scope, sha = await self._scope(arguments), str(arguments.get("sha", ""))
        change = await self._app.commands.documents.diff(scope, sha)
        if change is None:
            raise _no_such_change(sha) if sha else UserError("this memory has no changes yet")
        version, text = change
        yield {**_change(version), "diff": text}

    @operation("memory undo")
    async def undo(self, arguments: Line) -> AsyncIterator[Line]:
        """Undo one change and keep later ones. Raises UserError when a later change touches the same lines."""
        scope, sha = await self._scope(arguments), str(arguments.get("sha", ""))
        done = await self._app.commands.documents.undo(scope, sha, by=OPERATOR)
        if done is UndoResult.UNKNOWN:
            raise _no_such_change(sha)
        if done is UndoResult.CONFLICT:
            raise UserError(f"later changes depend on {sha}; undo those first")
        yield {"scope": scope, "sha": sha}

    @operation("memory preview-erasure")
    async def preview_erasure(self, arguments: Line) -> AsyncIterator[Line]:
        """Yield what `forget` would remove now: numbers, a few of the lines, and similar words if nothing matches."""
        scope, pattern = await self._erasure_of(arguments)
        eraser = self._app.commands.erasure.word_eraser
        found = await eraser.preview(scope, pattern, _OPERATOR, turn="", whole=bool(arguments.get("purge")))
        near = [] if found.result.total else await eraser.near_words(scope, pattern)
        yield {"scope": scope, **_amounts(found.result), "examples": list(found.examples), "near": near}

    @operation("memory forget")
    async def forget(self, arguments: Line) -> AsyncIterator[Line]:
        """Remove words from documents, summaries, messages and files; yield the amounts, without the words.

        `purge` also removes them from every stored version. A running gateway does this in the background.
        """
        scope, pattern = await self._erasure_of(arguments)
        turn = f"{OPERATOR}.{secrets.token_hex(8)}"
        forgetter, line = self._app.commands.erasure, {"scope": scope}
        if arguments.get("purge"):
            removed, job = await forgetter.purge(
                scope, pattern, _OPERATOR, key=SessionKey(OPERATOR, OPERATOR), upto=0, turn=turn
            )
            await self._app.store.jobs.advance(job.job, job.next)
            line["purge"] = "under way" if self._app.channels else await self._finish(scope)
        else:
            removed = await forgetter.forget(scope, pattern, _OPERATOR, turn=turn)
        yield {**line, **_amounts(removed)}

    async def _erasure_of(self, arguments: Line) -> tuple[str, ErasurePattern]:
        """Return the scope and the words to erase. Raises UserError."""
        scope, pattern = await self._scope(arguments), ErasurePattern.of(str(arguments.get("text", "")), FALLBACK)
        if pattern is None:
            raise UserError(f"give the words to forget, at least {SHORTEST} characters")
        return scope, pattern

    async def _finish(self, scope: str) -> str:
        """Run the pending jobs of a purge in this process, and return its state."""
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

    @operation("memory dream")
    async def dream(self, arguments: Line) -> AsyncIterator[Line]:
        """Run Dream once and wait for it; yield the number of entries that it read, and its changes."""
        scope = await self._scope(arguments)
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

    @operation("mirror rebuild")
    async def rebuild(self, arguments: Line) -> AsyncIterator[Line]:
        """Write every file of the mirror and the search index again, of every scope when none is given.

        Yield one line per kind of them.
        """
        is_named = any(arguments.get(name) for name in ("scope", "person", "chat"))
        scopes = [await self._scope(arguments)] if is_named else (await self.names()).all()
        for scope in scopes:
            for name, rebuild in self._derived().items():
                yield {"scope": scope, "name": name, "count": await rebuild(scope)}

    @operation("memory search")
    async def search(self, arguments: Line) -> AsyncIterator[Line]:
        """Yield one line per hit, the best first; among the documents of a project when one is given."""
        text, project = str(arguments.get("text", "")), str(arguments.get("project") or MEMORY)
        limit = max(1, min(int(arguments.get("limit", 10)), _MOST_HITS))
        scope = await self._scope(arguments) if project == MEMORY else ""
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
                "at": format_time(hit.at) if hit.at else None,
                "who": hit.who,
                "role": hit.role,
                "text": hit.text,
            }

    async def names(self) -> ScopeNames:
        """Return the current scopes by name."""
        store, kinds = self._app.store, self._app.platforms
        sessions = await store.records.sessions()
        return ScopeNames(
            await find_scopes(
                self._app.home.path,
                sessions=sessions,
                documents=store.documents,
                history=store.history,
                files=store.files,
            ),
            sessions=sessions,
            person=store.links.person,
            kind=lambda channel: kinds.get(channel, channel),
            has_teams=kinds.has_teams,
        )

    # -- inside ------------------------------------------------------------------------------------

    async def _scope(self, arguments: Line) -> str:
        """Return the scope that the arguments name, after the pending memory writes of its turns."""
        wish = ScopeSelector(**{name: str(arguments.get(name) or "") for name in ("scope", "person", "chat")})
        scope = (await self.names()).find(wish)
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
        await self._app.document_files.rebuild(scope)
        return len(await self._app.store.documents.texts(scope))

    async def _history(self, scope: str) -> int:
        await self._app.history_files.settle(scope)
        return len(await self._app.store.history.after(scope))


def _change(version: DocumentChange) -> dict[str, Any]:
    return {
        "sha": version.short,
        "at": format_time(version.at),
        "why": version.why,
        "by": version.by,
        "documents": list(version.names),
    }


def _no_such_change(sha: str) -> UserError:
    return UserError(f"no change has the id {sha!r}; `parlour memory log` lists them")


def _amounts(result: WordErasureResult) -> Line:
    return {name: getattr(result, name) for name in ("remembered", "summaries", "messages", "files")}
