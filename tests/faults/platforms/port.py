"""What a scenario needs of a platform: let people write, look at what stands there, and lose replies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import ClassVar

from gateway.i18n import translate


@dataclass(frozen=True, slots=True, kw_only=True)
class SceneOptions:
    """What is special about the platform this time."""

    is_thread: bool = False  # a mention in a thread of a group; else a direct chat
    is_long: bool = False  # the answer is too long for a group: its beginning and a file
    knows_keys: bool = True  # the relay only: a repeated key is the same message
    forgets_acks: bool = False  # the relay only: everything is handed out again after a restart
    is_strict: bool = False  # `delivery.once: strict`
    lose: int = 0  # the reply to this one of our sends and edits never arrives, although it was done


@dataclass(frozen=True, slots=True)
class SeenMessage:
    """A message of ours as people see it; the mark of a repeat is not part of its text."""

    text: str
    is_marked: bool
    file: str = ""  # what the file says that it brings

    @property
    def words(self) -> str:
        """Everything that it says."""
        return self.file or self.text


class ReplyLosses:
    """Counts what we post and edit, and says whose reply is to be lost."""

    def __init__(self, lose: int) -> None:
        self.sends = 0
        self.lost = ""
        self._lose = lose

    def is_lost(self, name: str) -> bool:
        """Count a send; say whether its reply never arrives."""
        self.sends += 1
        if self.sends == self._lose:
            self.lost = f"{self.sends} reply to {name}"
        return self.sends == self._lose


class PlatformSide(ABC):
    """One platform with the people of a scenario. Its chats are called c0, c1 and so on."""

    name: ClassVar[str]  # of the channel
    two_parts: ClassVar[int]  # sentences that make an answer of two parts
    may_mark: bool  # it has no send key and cannot be asked, so that a second one may be marked

    def __init__(self, scene: SceneOptions) -> None:
        self.scene = scene
        self.base = ""
        self.names: dict[str, str] = {}  # session key -> what the scenario calls the chat
        self.replies = ReplyLosses(scene.lose)

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[object]:
        """Serve until the block ends; `base` is known in it."""

    @abstractmethod
    def write(self, chat: str, text: str, sender: str) -> str:
        """Let somebody write in *chat*; return its session key."""

    @abstractmethod
    def shown(self, chat: str) -> list[SeenMessage]:
        """Return our messages in *chat*, oldest first."""

    @abstractmethod
    def count_shown(self) -> int:
        """Return how many messages of ours stand anywhere."""

    def count_orphans(self) -> int:
        """Return how many placeholders stand that nothing was put into; they are no messages."""
        return 0

    @abstractmethod
    def parts(self, text: str) -> Sequence[str]:
        """Return what the parts of an answer look like, in order."""

    @abstractmethod
    def is_told(self) -> bool:
        """Say whether the platform was told that it need not hand the message out again."""

    @abstractmethod
    def is_settled(self) -> bool:
        """Say whether the platform holds nothing back for us."""

    @abstractmethod
    async def wait_changed(self) -> None:
        """Return at the next thing that happens."""

    @property
    def sentences(self) -> int:
        """How many sentences the answer has."""
        return 4 * self.two_parts if self.scene.is_long else self.two_parts

    @property
    def notes(self) -> Mapping[str, str]:
        """What the channel had noted before the first life."""
        return {}

    def say(self, chat: str, text: str, sender: str = "ann") -> None:
        """Let somebody write in *chat*."""
        self.names[self.write(chat, text, sender)] = chat

    def chat_of(self, key: str) -> str:
        """Return what the scenario calls the chat with this session key."""
        return self.names.get(key, key)


def seen(text: str, file: bytes = b"") -> SeenMessage:
    """Return a message without the line that marks a repeat, wherever the platform puts it."""
    mark = translate("delivery.may_repeat")
    is_marked = mark in text
    return SeenMessage(text.replace(f"_{mark}_", "").replace(mark, "").strip(), is_marked, file.decode())
