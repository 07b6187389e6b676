"""Queuing a job, within whatever transaction makes it due."""

from __future__ import annotations

import sqlite3
from typing import Any

from gateway.ports.journal import Job
from gateway.store.row_codec import micros, quote, write_json


def encode_job(job: Job) -> tuple[Any, ...]:
    """Return a job's columns."""
    return (quote(job.id), job.kind, quote(job.scope), write_json(job.payload), micros(job.due_at), job.attempts)


def put_job(database: sqlite3.Connection, columns: tuple[Any, ...]) -> None:
    """Queue a job once."""
    database.execute(
        "INSERT OR IGNORE INTO job (id, kind, scope, payload, due_at, attempts) VALUES (?, ?, ?, ?, ?, ?)", columns
    )
