"""Cases on Slack: what the model gets, and what people see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.i18n import translate
from tests.fakes.platform_cases import CaseModel, load_case
from tests.fakes.slack_gateway import open_gateway
from tests.fakes.slack_server import DM, ROOM, SlackFault, SlackServer, slack_server


@asynccontextmanager
async def run_case(
    case: dict[str, Any], server: SlackServer | None = None, *, environment: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[SlackServer, CaseModel, list[str]]]:
    """Run a gateway, let what the case holds arrive one after the other; the list has the messages' ts."""
    model, said, named = CaseModel(), list[str](), dict[str, str]()
    async with slack_server(server) as workspace:
        for method, errors in case.get("fail", {}).items():
            workspace.faults[method] = [SlackFault(error=error) for error in errors]
        async with open_gateway(workspace, model=model, environment=environment) as up:
            await workspace.until(lambda: bool(workspace.called("auth.test")))
            for message in case.get("messages", ()):
                fields = dict(message)
                thread = named.get(fields.pop("thread", ""), "")
                name = fields.pop("as", "")
                said.append(
                    workspace.say(fields.pop("place"), fields.pop("user"), fields.pop("text"), thread=thread, **fields)
                )
                named[name] = said[-1]
                await asyncio.sleep(0)  # the event is on its way
                await workspace.until(lambda: not workspace.pending)
                await up.idle()
            yield workspace, model, said
            await up.idle()
            await workspace.until(lambda: not workspace.reactions)


@pytest.mark.parametrize("reply_in", ["channel", "thread"])
@pytest.mark.parametrize("error", ["thread_not_found", "restricted_action_thread_locked", "cannot_reply_to_message"])
async def test_the_answer_of_a_thread_that_is_gone_is_not_lost(error: str, reply_in: str) -> None:
    """It stands at the channel's top level below its question, and no reaction stays."""
    case = load_case("16_slack_thread_gone") | {"fail": {"chat.postMessage": [error]}}
    settings = {"PARLOUR_CHANNELS__SLACK__REPLY_IN": reply_in}
    async with run_case(case, environment=settings) as (server, _, _said):
        if server.shown(DM):
            assert server.shown(DM) == [translate("delivery.place_gone")]
        else:
            assert server.shown(ROOM) == ["> Ann: @parlour hi\n\nAnswer 1."]
        assert len(server.shown(DM)) + len(server.shown(ROOM)) == 1


@pytest.mark.parametrize("error", ["is_archived", "not_in_channel", "restricted_action_read_only_channel"])
async def test_a_channel_that_takes_no_message_costs_a_line_to_the_asker(error: str) -> None:
    """Neither the thread nor the channel takes it: one line in the direct chat."""
    case = load_case("16_slack_thread_gone") | {"fail": {"chat.postMessage": [error, error]}}
    async with run_case(case) as (server, _, _said):
        assert server.shown(DM) == [translate("delivery.place_gone")]
        assert server.shown(ROOM) == []
