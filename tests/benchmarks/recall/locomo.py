"""LoCoMo (snap-research/LoCoMo, CC BY-NC 4.0) as chats and questions. The set is no part of this repository."""

from __future__ import annotations

import hashlib
import json
import re
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

SHA256 = "79fa87e90f04081343b8c8debecb80a9a6842b76a7aa537dc9fdf651ea698ff4"
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
_TURN = re.compile(r"D(\d+):(\d+)")


@dataclass(frozen=True, slots=True)
class DialogueMessage:
    """One message; a photo's caption belongs to it."""

    id: str  # unique in its conversation
    session: str
    who: str
    text: str
    at: datetime


@dataclass(frozen=True, slots=True)
class RecallQuestion:
    """A question and the turns that hold its answer."""

    text: str
    gold: frozenset[str]
    category: str


@dataclass(frozen=True, slots=True)
class LocomoChat:
    """One conversation over many sessions."""

    name: str
    speakers: tuple[str, ...]
    turns: tuple[DialogueMessage, ...]
    questions: tuple[RecallQuestion, ...]


def load(place: str) -> tuple[LocomoChat, ...]:
    """Return the conversations of the file at *place*, a path or an http(s) address, with every usable question."""
    raw = _read(place)
    if hashlib.sha256(raw).hexdigest() != SHA256:
        print("note: these are not the bytes of the published LoCoMo file; figures do not compare")
    return tuple(_chat(each) for each in json.loads(raw))


def _read(place: str) -> bytes:
    if not place.startswith(("https://", "http://")):
        return Path(place).read_bytes()
    with urllib.request.urlopen(place, timeout=60) as answer:  # noqa: S310 - the scheme was looked at
        body: bytes = answer.read()
        return body


def _chat(sample: Mapping[str, Any]) -> LocomoChat:
    said = sample["conversation"]
    turns = tuple(_turns(said))
    known = {turn.id for turn in turns}
    questions = []
    for each in sample["qa"]:
        # Some evidence holds several ids in one string, or a leading zero; a few name no turn at all.
        ids = {f"D{int(day)}:{int(n)}" for text in each["evidence"] for day, n in _TURN.findall(text)}
        if gold := frozenset(ids & known):
            questions.append(RecallQuestion(each["question"], gold, CATEGORIES[each["category"]]))
    return LocomoChat(sample["sample_id"], (said["speaker_a"], said["speaker_b"]), turns, tuple(questions))


def _turns(said: Mapping[str, Any]) -> Iterator[DialogueMessage]:
    n = 1
    while f"session_{n}_date_time" in said:
        at = datetime.strptime(said[f"session_{n}_date_time"], "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
        for each in said.get(f"session_{n}", ()):
            caption = f" [photo: {each['blip_caption']}]" if each.get("blip_caption") else ""
            yield DialogueMessage(each["dia_id"], f"D{n}", each["speaker"], each["text"] + caption, at)
        n += 1
