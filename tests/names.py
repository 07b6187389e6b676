"""Count ambiguous names, metaphors and translated-sounding prose.

A module is a noun that names its main type, and a class name exists once in the tree. The same role has the same name
in every channel. A function is a verb of the field. No metaphors of houses, people, bodies or shops.

Run from the project root; standard library only:

    python tests/names.py                   # a table for people
    python tests/names.py --check           # what exceeds its limit; exit code 1 when something does
    python tests/names.py --list homonyms   # the items that one number counts

Tests and translations are not counted. A leading underscore does not make a class name another one.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PACKAGES = ("gateway", "channels", "agent", "deploy")
CATALOGUE = "gateway/i18n/locales/en.pot"

# One concept has one file name in each of these layers; elsewhere a file name is unique.
LAYERS = (
    "gateway/ports/",
    "gateway/store/",
    "gateway/app/",
    "gateway/commands/",
    "agent/commands/",
    "agent/tools/",
    "channels/",
)

# Nouns of the field that happen to end in -ing.
ING_NOUNS = set("chunking embedding logging matching pairing polling ranking routing string testing versioning".split())  # noqa: SIM905 - a paragraph

# Words of names that are metaphors: houses, people, bodies, shops.
METAPHORS = set(
    """
    alone aside ballast beyond board books briefly courier desk desks door doors doorkeeper ear ears errand errands
    fate gesture gestures habits heir heirs house inside knock leftovers manner manners meet mirror neighbour patience
    patient patiently pen play playing postman purse room rooms scribe seat shelf sign signs sitting sittings speaker
    speaking steward stewards talk talks teller thinker thinking thought twins watch ways wish
    """.split()  # noqa: SIM905 - a paragraph
)

# Participles used as a whole name: `told`, `heard`, `shown`.
PARTICIPLES = set(
    """
    asked begun behind bound buried came cleared counted cut decided declared done drawn ended erased explained found
    forgotten gathered given gone heard held issued joined judged kept known lapsed learned left linked listed live
    located locked lost made marked merged missed moved named newer noted offered opened overheard overtaken own packed
    passed past placed played posted pressed put read reached reconciled refused restored said seen sent settled shared
    shown spent spoken staged standing stopped stored styled taken taught told trimmed turned typed unheard unsent
    untold unusable waiting wanted watched without woven written wrong
    """.split()  # noqa: SIM905 - a paragraph
) - {"read", "put", "cut", "bound"}  # these are verbs as well

TICS = {
    "stands, stood (for: is, is stored)": r"\b(?:stands|stood)\b(?! (?:for|in for)\b)",
    "whoever, somebody, nobody, anybody, everybody": r"\b(?:whoever|somebody|nobody|anybody|everybody)\b",
    "a question word as subject or object": r"(?:\A|[.!?:;]\s+)"
    r"(?:what|who|whose|whom|how (?:far|much|many|long)|whether)\b"
    r"|\A(?:when|where)\b|\b(?:says?|tells?|knows?) (?:what|who|whose|whom|how|whether)\b"
    r"|\b(?:returns?|reads?) (?:what|who|whose|whom|how)\b",
    "told (for: notified, acknowledged, logged)": r"\b(?:told|tells of|tell of)\b",
    "of ours, of theirs, of its own": r"\bof (?:ours|theirs|yours|its own|one's own|his own|their own)\b",
    "of late, anew, afresh, meanwhile, in force": r"\b(?:of late|anew|afresh|meanwhile|in force|as everywhere)\b",
    "shall": r"\bshall\b",
    "is none, is no X": r"\b(?:is|are|was|were) none\b|\b(?:is|are|was) no (?!longer\b)[a-z]+\b",
    "for it is (for: because)": r"\bfor (?:it|they|he|this|that) (?:is|was|are|has|have)\b",
    "mend, came of, becomes of, goes on, under way": r"\bmend(?:s|ed|ing)?\b|\bunder way\b|\bgoes on\b"
    r"|\bon (?:its|their) way\b|\b(?:came|comes) of\b|\b(?:becomes|became) of\b|\b(?:came|comes|come) to\b",
    "heard, hears (for: received, connected)": r"\b(?:heard|hears|hear|hearing|unheard|deaf)\b",
    "house, door, desk, purse, room": r"\b(?:house|house's|door|desk|desk's|purse|rooms?)\b",
}
_TICS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in TICS.items()}
_WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*")
_CAMEL = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+")


@dataclass
class SourceNames:
    """Names and texts collected in one pass over the source files."""

    modules: list[str] = field(default_factory=list)
    classes: list[tuple[str, str]] = field(default_factory=list)  # (module, name)
    functions: list[tuple[str, str]] = field(default_factory=list)  # (module, qualified name)
    arguments: Counter[str] = field(default_factory=Counter)
    docstrings: list[tuple[str, str]] = field(default_factory=list)
    pages: list[tuple[str, str]] = field(default_factory=list)  # docs/*.md, README.md
    catalogue: list[tuple[str, str]] = field(default_factory=list)  # (key, sentence) of the English catalogue


def words_of(name: str) -> list[str]:
    """Return the lower-case words of a snake_case or CamelCase identifier."""
    return [word.lower() for piece in name.strip("_").split("_") for word in _CAMEL.findall(piece)]


def read_tree(root: Path) -> SourceNames:
    """Parse every counted file below *root*."""
    tree = SourceNames()
    for package in PACKAGES:
        for file in sorted((root / package).rglob("*.py")):
            path = file.relative_to(root).as_posix()
            parsed = ast.parse(file.read_text(encoding="utf-8"))
            if file.name != "__init__.py":
                tree.modules.append(path)
            _collect(tree, path, parsed, "")
    tree.catalogue = [(key, text) for key, text in _messages((root / CATALOGUE).read_text(encoding="utf-8"))]
    for page in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        if page.exists():
            prose = re.sub(r"```.*?```|`[^`\n]*`", " ", page.read_text(encoding="utf-8"), flags=re.DOTALL)
            tree.pages.append((page.relative_to(root).as_posix(), prose))
    return tree


def _collect(tree: SourceNames, path: str, node: ast.AST, prefix: str) -> None:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        text = ast.get_docstring(node)
        if text:
            tree.docstrings.append((f"{path}:{prefix or 'module'}", text))
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            tree.classes.append((path, child.name))
            _collect(tree, path, child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            tree.functions.append((path, prefix + child.name))
            arguments = child.args
            names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
            tree.arguments.update(name for name in names if name not in ("self", "cls"))
            _collect(tree, path, child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.If | ast.Try | ast.With):
            _collect(tree, path, child, prefix)


def _messages(template: str) -> Iterator[tuple[str, str]]:
    """Yield key and English text of each entry of a gettext template."""
    for key, quoted in re.findall(r'^msgctxt "(.+)"\nmsgid ((?:".*"\n)+)', template, re.MULTILINE):
        yield key, "".join(re.findall(r'^"(.*)"$', quoted, re.MULTILINE)).replace("\\n", "\n").replace('\\"', '"')


def tics_in(texts: list[tuple[str, str]]) -> tuple[int, int, Counter[str], list[str]]:
    """Return the number of words, the number of tics, tics by kind, and one line per tic."""
    words, kinds, where = 0, Counter[str](), []
    for place, text in texts:
        words += len(_WORD.findall(text))
        for kind, pattern in _TICS.items():
            for hit in pattern.finditer(text):
                kinds[kind] += 1
                where.append(f"{place}: {hit.group().strip()!r} ({kind.split(' (')[0]})")
    return words, sum(kinds.values()), kinds, where


def measure(tree: SourceNames) -> tuple[dict[str, float], dict[str, list[str]], dict[str, int]]:
    """Return the numbers, the items counted by each, and the docstring tics by kind."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path, name in tree.classes:
        places[name.lstrip("_")].append(path)
    total = len(tree.classes)
    one_word = [f"{p}: {n}" for p, n in tree.classes if len(words_of(n)) == 1]
    homonyms = {name: where for name, where in places.items() if len(where) > 1}
    sharing = sum(len(where) for where in homonyms.values())

    basenames: defaultdict[str, list[str]] = defaultdict(list)
    for path in tree.modules:
        if not path.startswith(LAYERS):
            basenames[path.rpartition("/")[2]].append(path)
    shared = {name: where for name, where in basenames.items() if len(where) > 1}
    ing = [p for p in tree.modules if (s := Path(p).stem.split("_")[-1]).endswith("ing") and s not in ING_NOUNS]
    stems = [(p, Path(p).stem) for p in tree.modules]
    metaphors = [
        *(p for p, stem in stems if METAPHORS & set(words_of(stem))),
        *(f"{p}: {n}" for p, n in tree.classes if METAPHORS & set(words_of(n))),
    ]
    participles = [
        *(f"{p}: {n}" for p, n in tree.classes if n.strip("_").lower() in PARTICIPLES),
        *(f"{p}: {n}()" for p, n in tree.functions if n.rpartition(".")[2].strip("_") in PARTICIPLES),
    ]
    arguments = {n: c for n, c in tree.arguments.items() if n in PARTICIPLES or METAPHORS & set(words_of(n))}

    words, tics, kinds, where = tics_in(tree.docstrings)
    page_words, page_tics, _, page_where = tics_in(tree.pages)
    line_words, line_tics, _, line_where = tics_in(tree.catalogue)
    numbers: dict[str, float] = {
        "modules": len(tree.modules),
        "classes": total,
        "one_word_classes": len(one_word),
        "one_word_share": round(100 * len(one_word) / max(total, 1), 1),
        "homonyms": len(homonyms),
        "homonym_classes": sharing,
        "homonym_share": round(100 * sharing / max(total, 1), 1),
        "shared_basenames": len(shared),
        "ing_modules": len(ing),
        "metaphors": len(metaphors),
        "participles": len(participles),
        "argument_names": sum(arguments.values()),
        "docstring_words": words,
        "docstring_tics": round(1000 * tics / max(words, 1), 1),
        "page_tics": round(1000 * page_tics / max(page_words, 1), 1),
        "catalogue_tics": round(1000 * line_tics / max(line_words, 1), 1),
    }
    lists = {
        "one_word_classes": one_word,
        "homonyms": [f"{name}: {', '.join(where)}" for name, where in sorted(homonyms.items())],
        "shared_basenames": [f"{name}: {', '.join(where)}" for name, where in sorted(shared.items())],
        "ing_modules": ing,
        "metaphors": metaphors,
        "participles": participles,
        "argument_names": [f"{name}: {count}" for name, count in Counter(arguments).most_common()],
        "docstring_tics": where,
        "page_tics": page_where,
        "catalogue_tics": line_where,
    }
    return numbers, lists, dict(kinds.most_common())


LABELS = {
    "modules": "modules (no __init__)",
    "classes": "classes, private ones included",
    "one_word_classes": "  named by one word",
    "one_word_share": "  the same in percent",
    "homonyms": "class names that exist more than once",
    "homonym_classes": "  classes that bear one",
    "homonym_share": "  the same in percent",
    "shared_basenames": "file names in several packages (layers excepted)",
    "ing_modules": "modules named by a gerund",
    "metaphors": "modules and classes named by a metaphor",
    "participles": "classes and functions named by a bare participle",
    "argument_names": "parameters named by a metaphor or participle",
    "docstring_words": "words in docstrings",
    "docstring_tics": "  tics per 1,000 of them",
    "page_tics": "tics per 1,000 words of README and docs",
    "catalogue_tics": "tics per 1,000 words of the English catalogue",
}
# What was reached: a number may fall, and then its limit with it. It never rises.
LIMITS = {
    "one_word_share": 3.5,
    "homonyms": 0,
    "shared_basenames": 0,
    "ing_modules": 0,
    "metaphors": 0,
    "participles": 0,
    "argument_names": 0,
    "docstring_tics": 0.6,
    "page_tics": 1.0,
    "catalogue_tics": 1.3,
}
LISTED = ["one_word_classes", *(name for name in LIMITS if name != "one_word_share")]


def main() -> int:
    """Print the report; with --check return 1 when a limit is exceeded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="print only the numbers over their limit")
    parser.add_argument(
        "--list", metavar="NAME", choices=LISTED, help=f"print what one number counts: {', '.join(LISTED)}"
    )
    options = parser.parse_args()
    numbers, lists, kinds = measure(read_tree(Path()))
    if options.list:
        print("\n".join(lists[options.list]))
        return 0
    exceeded = {name for name, limit in LIMITS.items() if numbers[name] > limit}
    for name, label in LABELS.items():
        if not options.check or name in exceeded:
            mark = f"   over {LIMITS[name]:g}: python tests/names.py --list {name}" if name in exceeded else ""
            print(f"{label.strip():58}{numbers[name]:>9g}{mark}")
    if not options.check:
        print("\nDocstring tics by kind:")
        for kind, count in kinds.items():
            print(f"  {kind:56}{count:>9}")
    return int(options.check and bool(exceeded))


if __name__ == "__main__":
    sys.exit(main())
