"""Every figure the gateway reports is in the one table, with the labels the table gives it, and none is for show."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from gateway.web.metrics import DEPTH, METRICS, MetricKind

ROOT = Path(__file__).resolve().parents[2]
ROWS = {metric.name: metric for metric in METRICS}
KINDS = {"count": MetricKind.COUNT, "gauge": MetricKind.GAUGE, "time": MetricKind.TIME}


def reports() -> Iterator[tuple[str, MetricKind, str, frozenset[str | None]]]:
    """Yield place, kind, name and labels of every call of a Meter that names its figure."""
    for package in ("gateway", "channels", "agent"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                match node:
                    case ast.Call(
                        func=ast.Attribute(
                            value=ast.Attribute(attr="_meter" | "meter") | ast.Name(id="_meter" | "meter"),
                            attr="count" | "gauge" | "time" as kind,
                        ),
                        args=[ast.Constant(value=str(name)), *_],
                        keywords=labels,
                    ):
                        place = f"{path.relative_to(ROOT)}:{node.lineno}"
                        yield place, KINDS[kind], name, frozenset(label.arg for label in labels)


def test_every_reported_figure_is_in_the_table() -> None:
    """A name or label that is not in the table is dropped when it is reported: nobody would ever see it."""
    wrong = [
        f"{place}: {name}({', '.join(sorted(map(str, labels)))})"
        for place, kind, name, labels in reports()
        if name not in ROWS or ROWS[name].kind is not kind or set(ROWS[name].labels) != labels
    ]
    assert wrong == []


def test_every_figure_of_the_table_is_reported() -> None:
    """A metric that never moves is a lie to whoever watches it."""
    reported = {name for _, _, name, _ in reports()} | set(DEPTH.values())
    assert sorted(ROWS.keys() - reported) == []
