"""Jobs that a person set: they run with the access and the role that the person has when they are due."""

from __future__ import annotations

from datetime import UTC, datetime

from agent.tasks.task import Task, TaskState
from gateway.admission import AdmissionPolicy, AllowEntry
from gateway.events import ChatKind, InboundKind, InboundMessage, Role, Sender, SessionKey
from gateway.ports.journal import SET_BY_PERSON
from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel, gateway

HALL = SessionKey("pocket", "-hall")
TASK = Task(
    id="k1",
    key=HALL,
    by="ann",
    person="pocket%3aann",
    goal="look",
    set_at=datetime(2026, 11, 29, tzinfo=UTC),
    chat_kind=ChatKind.GROUP,
)
POLICY = AdmissionPolicy(channel="pocket", entries=frozenset({AllowEntry.parse("ann")}), owners=frozenset({"boss"}))


async def accept_job(inside: InProcessGateway, message_id: str, sender: str) -> None:
    """Accept a job as the owner's, whoever set it."""
    message = InboundMessage(
        key=HALL,
        message_id=message_id,
        sender=Sender(id=sender),
        text="stand-up",
        sent_at=datetime.now(UTC),
        kind=InboundKind.JOB,
        chat_kind=ChatKind.GROUP,
    )
    await inside.app.store.journal.accept(message, role=Role.OWNER, is_control=False)
    await inside.idle()


async def test_a_job_of_an_unknown_sender_is_not_served_and_the_owner_reads_one_line() -> None:
    """Three jobs of whom nobody let in: no model call, nothing in the chat, one line to the owner in their own chat."""
    model = InstantModel()
    async with gateway(model=model, policy=POLICY) as inside:
        await inside.channel.ask("boss", "hello", sender="boss")
        calls = model.calls
        for n, prefix in enumerate(SET_BY_PERSON):
            await accept_job(inside, f"{prefix}{n}", "mallory")
        assert (model.calls - calls, inside.channel.posts.get("-hall")) == (0, None)
        lines = [post.text for post in inside.channel.posts["boss"][1:]]
        assert lines == [
            "`pocket:mallory` no longer has access in `pocket:-hall`."
            " Their scheduled requests there are not carried out."
        ]
        ended = TASK.end(TaskState.DONE, TASK.set_at, "found")
        await inside.app.store.jobs.put(ended.to_job(f"chats/pocket%3a{HALL.chat}"))
        await accept_job(inside, "job:task/k1", "ann")
        assert model.calls == calls  # the end of a task is said as it is
        assert ["found" in post.text for post in inside.channel.posts["-hall"]] == [True]
