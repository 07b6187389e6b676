"""The backends of the object store's contract: a directory, and a bucket behind a server that checks signatures."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from gateway.settings.settings_model import ObjectStoreSettings
from gateway.store.objects import ObjectStore, open_objects
from tests.fakes.s3_server import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, S3Server, open_s3_server

PREFIX = "team/files"


class ObjectBackend(Protocol):
    """A place for objects that can be looked into, damaged and taken away."""

    settings: ObjectStoreSettings

    def open(self) -> ObjectStore:
        """Return a store as one gateway has it."""
        ...

    def contents(self) -> dict[str, bytes]:
        """Return the objects."""
        ...

    def change(self, name: str, data: bytes | None) -> None:
        """Replace or remove an object behind the gateways' backs."""
        ...

    def set_away(self, is_away: bool) -> None:
        """Take the place away, or bring it back."""
        ...


class DirectoryBackend:
    """A directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.settings = ObjectStoreSettings(url=f"file://{folder}")

    def open(self) -> ObjectStore:
        """Return a store."""
        return open_objects(self.settings)

    def contents(self) -> dict[str, bytes]:
        """Return the files."""
        return {path.name: path.read_bytes() for path in self._folder.glob("*")} if self._folder.is_dir() else {}

    def change(self, name: str, data: bytes | None) -> None:
        """Replace or remove a file."""
        if data is None:
            (self._folder / name).unlink()
        else:
            (self._folder / name).write_bytes(data)

    def set_away(self, is_away: bool) -> None:
        """Put a file in the place of the directory."""
        aside = self._folder.with_name("aside")
        if is_away:
            if self._folder.exists():
                self._folder.rename(aside)
            self._folder.touch()
        else:
            self._folder.unlink()
            if aside.exists():
                aside.rename(self._folder)


class BucketBackend:
    """A bucket."""

    def __init__(self, server: S3Server) -> None:
        self.server = server
        self.settings = bucket_settings(server)

    def open(self) -> ObjectStore:
        """Return a store."""
        return open_objects(self.settings)

    def contents(self) -> dict[str, bytes]:
        """Return the objects."""
        return {name.removeprefix(f"{PREFIX}/"): data for name, data in self.server.objects.items()}

    def change(self, name: str, data: bytes | None) -> None:
        """Replace or remove an object."""
        if data is None:
            del self.server.objects[f"{PREFIX}/{name}"]
        else:
            self.server.objects[f"{PREFIX}/{name}"] = data

    def set_away(self, is_away: bool) -> None:
        """Answer 503, or serve again."""
        self.server.is_away = is_away


def bucket_settings(server: S3Server, **changed: str) -> ObjectStoreSettings:
    """Return the settings for *server*'s bucket."""
    right = {
        "url": f"s3://{BUCKET}/{PREFIX}", "endpoint": server.address, "region": REGION,
        "access_key": ACCESS_KEY, "secret_key": SECRET_KEY,
    }  # fmt: skip
    return ObjectStoreSettings.model_validate(right | changed)


@asynccontextmanager
async def open_object_backend(kind: str, folder: Path) -> AsyncIterator[ObjectBackend]:
    """Make an empty place: a `directory` below *folder*, or a `bucket`."""
    if kind == "directory":
        yield DirectoryBackend(folder / "objects")
        return
    async with open_s3_server() as server:
        yield BucketBackend(server)
