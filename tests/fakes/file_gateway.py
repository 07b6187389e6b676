"""A whole gateway on a platform with files, in front of a model server that sees: what the tests of files share."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.admission import AdmissionPolicy
from gateway.events import SessionKey
from gateway.ports.memory import FileKind
from tests.fakes.inprocess_files import InProcessFileChannel, InProcessFilePlugin, PlatformFiles
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.openai_server import FakeOpenAI, Script, chatter, open_server
from tests.fakes.stored_files import stored_files

KEY = SessionKey("pocket", "c")
SCOPE = "people/pocket%3aann"


@dataclass(slots=True)
class FileGateway:
    """A gateway, its model server and the platform's shelf."""

    parlour: InProcessGateway
    server: FakeOpenAI
    sources: PlatformFiles

    @property
    def channel(self) -> InProcessFileChannel:
        """The platform."""
        assert isinstance(self.parlour.channel, InProcessFileChannel)
        return self.parlour.channel

    async def sends(self, text: str, name: str, data: bytes, **facts: Any) -> Any:
        """Send one file with a text; return the content of the message as the model was shown it."""
        await self.channel.ask("c", text, attachments=[self.sources.put(name, data, **facts)])
        return self.said()

    def said(self) -> Any:
        """Return the content of the last message of a user in the last request."""
        return next(
            each["content"] for each in reversed(self.server.requests[-1]["messages"]) if each["role"] == "user"
        )

    def lines(self) -> list[dict[str, Any]]:
        """Return the transcript."""
        (path,) = self.parlour.home.glob("people/*/sessions/*.jsonl")
        return [json.loads(line) for line in path.read_bytes().splitlines()]

    def kept(self) -> set[str]:
        """Return the digests of the files in the scope."""
        found = stored_files(self.parlour.home, FileKind.ATTACHMENT)
        return {name.rpartition("/")[2] for name in found if name.startswith("people/")}


@asynccontextmanager
async def open_gateway(
    script: Script = chatter, *, home: Path | None = None, policy: AdmissionPolicy | None = None, **environment: str
) -> AsyncIterator[FileGateway]:
    """Run a gateway whose model sees."""
    async with open_server(script) as server:
        settings = {
            "PARLOUR_LLM__MODEL": "openai/test",
            "PARLOUR_LLM__API_BASE": server.base,
            "PARLOUR_LLM__ATTEMPTS": "1",
            "PARLOUR_LLM__VISION": "on",
            **environment,
        }
        sources = PlatformFiles()
        kind = InProcessFilePlugin(sources)
        async with gateway(environment=settings, kind=kind, home=home, policy=policy) as parlour:
            yield FileGateway(parlour, server, sources)


def words(content: Any) -> str:
    """Return the text of a message's content."""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content if "text" in part)


def pictures(content: Any) -> list[bytes]:
    """Return the pictures of a message's content."""
    parts = content if isinstance(content, list) else []
    addresses = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    return [base64.b64decode(address.partition(";base64,")[2]) for address in addresses]


def folders_with(folder: Path, data: bytes) -> set[Path]:
    """Return the folders below *folder* where a file holds exactly *data*."""
    return {path.parent for path in folder.rglob("*") if path.is_file() and path.read_bytes() == data}
