"""LoCoMo (snap-research/LoCoMo, CC BY-NC 4.0) as chats and questions. The set is no part of this repository."""

from __future__ import annotations

import hashlib
import json
import re
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from agent.memory.search.search_unit import SearchUnit, UnitSource
from tests.benchmarks.recall.sets import RecallQuestion, RecallSet

SHA256 = "79fa87e90f04081343b8c8debecb80a9a6842b76a7aa537dc9fdf651ea698ff4"
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
_TURN = re.compile(r"D(\d+):(\d+)")


def load(place: str, *, is_one: bool = False) -> list[RecallSet]:
    """Return each conversation of the file at *place*, a path or an http(s) address, or all of them in one index."""
    raw = _read(place)
    if hashlib.sha256(raw).hexdigest() != SHA256:
        print("note: these are not the bytes of the published LoCoMo file; figures do not compare")
    chats = [_chat(each) for each in json.loads(raw)]
    if not is_one:
        return chats
    units = {source: units for chat in chats for source, units in chat.units.items()}
    return [RecallSet(units, [question for chat in chats for question in chat.questions])]


def _read(place: str) -> bytes:
    if not place.startswith(("https://", "http://")):
        return Path(place).read_bytes()
    with urllib.request.urlopen(place, timeout=60) as answer:  # noqa: S310 - the scheme was looked at
        body: bytes = answer.read()
        return body


def _chat(sample: Mapping[str, Any]) -> RecallSet:
    name, said = f"sessions/{sample['sample_id']}", sample["conversation"]
    turns = dict(_turns(said))
    lines = {turn: n for n, turn in enumerate(turns, 1)}
    units = [replace(unit, line=lines[turn]) for turn, unit in turns.items()]
    now = max(unit.at for unit in units if unit.at) + timedelta(days=1)
    questions = []
    for each in sample["qa"]:
        # Some evidence holds several ids in one string, or a leading zero; a few name no turn at all.
        ids = {f"D{int(day)}:{int(n)}" for text in each["evidence"] for day, n in _TURN.findall(text)}
        if gold := {(name, lines[turn]): turn for turn in ids & {*turns}}:
            questions.append(RecallQuestion(each["question"], gold, CATEGORIES[each["category"]], now))
    return RecallSet({UnitSource(name=name): units}, questions)


def _turns(said: Mapping[str, Any]) -> Iterator[tuple[str, SearchUnit]]:
    """Yield the messages by their id; a photo's caption belongs to its message."""
    n = 1
    while f"session_{n}_date_time" in said:
        at = datetime.strptime(said[f"session_{n}_date_time"], "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
        for each in said.get(f"session_{n}", ()):
            caption = f" [photo: {each['blip_caption']}]" if each.get("blip_caption") else ""
            text, who = each["text"] + caption, each["speaker"]
            yield each["dia_id"], SearchUnit(text=text, line=0, at=at, who=who, role="user", group=f"D{n}")
        n += 1
