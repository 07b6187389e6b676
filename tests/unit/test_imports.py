"""Imports point down (docs/architecture.md): the contracts hold, and they can fail."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("gateway", "channels", "agent")


def imported(path: Path) -> Iterator[str]:
    """Yield the modules a file imports."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports out in full"
            yield node.module or ""


def test_seams_need_only_the_standard_library() -> None:
    """Events, errors and ports can be read, and built against, without installing anything."""
    seams = [ROOT / "gateway/events.py", ROOT / "gateway/errors.py", ROOT / "gateway/installation.py"]
    seams += (ROOT / "gateway/ports").glob("*.py")
    for path in seams:
        for module in imported(path):
            inside = module.startswith(("gateway.events", "gateway.errors", "gateway.installation", "gateway.ports"))
            assert inside or module.partition(".")[0] in sys.stdlib_module_names, f"{path.name} imports {module}"


# One import each that a contract of pyproject.toml forbids, and a word of that contract's name.
FORBIDDEN = [
    ("channels/planted/__init__.py", "import gateway.supervisor", "channels see of the gateway"),
    ("channels/planted/codec.py", "import agent", "channels see of the gateway"),
    ("agent/planted.py", "import gateway.intake", "agent sees of the gateway"),
    ("agent/planted_too.py", "import channels", "agent sees of the gateway"),
    ("gateway/planted.py", "import agent.base.locks", "only gateway.app and the CLI"),
    ("channels/planted_too/__init__.py", "import channels.planted", "channels never see each other"),
    ("gateway/ports/planted.py", "import gateway.i18n", "the CLI is above"),
    ("agent/memory/storage/planted.py", "import agent.memory.editing.text_operations", "memory in layers"),
    ("agent/tools/planted.py", "import agent.turns.turn", "agent in layers"),
    ("agent/base/planted.py", "import agent.llm.chat_model", "agent in layers"),
    ("agent/memory/editing/planted.py", "import agent.memory.update.consolidator", "memory in layers"),
]


def test_import_contracts_bite(tmp_path: Path) -> None:
    """Each forbidden import breaks its contract: a linter that cannot fail guards nothing."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for where, line, _ in FORBIDDEN:
        (tmp_path / where).parent.mkdir(exist_ok=True)
        (tmp_path / where).with_name("__init__.py").touch()
        (tmp_path / where).write_text(f"{line}\n")
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    wide = os.environ | {"COLUMNS": "200"}
    run = subprocess.run(command, cwd=tmp_path, env=wide, capture_output=True, text=True, check=False)  # noqa: S603 -- our own tool
    assert run.returncode == 1, run.stdout
    broken = run.stdout.partition("Broken contracts")[2]
    _, *sections = re.split(r"^(.+)\n-+$", broken, flags=re.MULTILINE)
    found = dict(zip(sections[::2], sections[1::2], strict=True))
    for where, line, contract in FORBIDDEN:
        module = ".".join(Path(where).with_suffix("").parts).removesuffix(".__init__")
        (section,) = [text for name, text in found.items() if name.startswith(contract)]
        assert f"{module} -> {line.removeprefix('import ')} (l.1)" in section, run.stdout


LONGEST_CHAIN = 18  # modules


def module_imports(path: Path) -> Iterator[str]:
    """Yield what a file imports when it is loaded itself: not inside functions, and not for types alone."""
    waiting: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.expr):
            is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            waiting += () if is_for_types else ast.iter_child_nodes(node)


def test_import_chains_are_short() -> None:
    """Whoever reads a module follows few steps: no chain of imports at run time is longer than eighteen modules."""
    files = {path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if "vendor" not in path.parts}
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files}
    longest: dict[str, list[str]] = {}

    def chain(module: str) -> list[str]:
        if module not in longest:
            found = (each if each in names else each.rpartition(".")[0] for each in module_imports(names[module]))
            below = sorted({each for each in found if each in names} - {module})
            longest[module] = [module, *max(map(chain, below), key=len, default=[])]
        return longest[module]

    worst = max(map(chain, sorted(names)), key=len)
    assert len(worst) > LONGEST_CHAIN // 2, "the imports are not found"
    assert len(worst) <= LONGEST_CHAIN, " imports ".join(worst)
