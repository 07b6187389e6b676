"""A receiver of OTLP over HTTP: decodes and keeps what arrives, as a collector does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.fakes.loopback import serve_app


class OtlpReceiver:
    """Spans and metrics in the order of their arrival."""

    def __init__(self) -> None:
        self.base = ""
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.metrics: dict[str, Any] = {}
        self.bytes = b""
        self._arrived = asyncio.Condition()
        self.is_held = False  # True: requests are taken and not answered
        self._released = asyncio.Event()

    async def take_traces(self, request: web.Request) -> web.Response:
        """Keep the spans of a request."""
        body = await request.read()
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.services |= {each.value.string_value for each in resource.resource.attributes}
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        return await self._answer(body)

    async def take_metrics(self, request: web.Request) -> web.Response:
        """Keep the metrics of a request; the newest of a name replaces the one before."""
        body = await request.read()
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            self.metrics |= {each.name: each for scope in resource.scope_metrics for each in scope.metrics}
        return await self._answer(body)

    async def _answer(self, body: bytes) -> web.Response:
        self.bytes += body
        async with self._arrived:
            self._arrived.notify_all()
        if self.is_held:
            await self._released.wait()
        return web.Response(content_type="application/x-protobuf")

    def release(self) -> None:
        """Answer all requests that are held."""
        self.is_held = False
        self._released.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Return once *is_so* of what has arrived."""
        async with self._arrived:
            await self._arrived.wait_for(is_so)

    def trace(self, name: str) -> list[Any]:
        """Return the spans of the trace in which the newest span called *name* is."""
        found = [span for span in self.spans if span.name == name]
        return [span for span in self.spans if found and span.trace_id == found[-1].trace_id]


def attributes_of(span: Any) -> dict[str, Any]:
    """Return the attributes of a span as plain values."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


@asynccontextmanager
async def open_receiver() -> AsyncIterator[OtlpReceiver]:
    """Serve until the block ends."""
    receiver = OtlpReceiver()
    app = web.Application(client_max_size=16 << 20)
    app.router.add_post("/v1/traces", receiver.take_traces)
    app.router.add_post("/v1/metrics", receiver.take_metrics)
    async with serve_app(app) as place:
        receiver.base = f"http://{place}"
        yield receiver
