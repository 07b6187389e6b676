"""YAML as people mean it: `off` is a word, `0123` is an id, and only `null` is nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import yaml

from gateway.settings.setting_types import DuplicateKey


class _PlainTextLoader(yaml.SafeLoader):
    """Loads every plain scalar as text; pydantic parses numbers and booleans."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the library's own class attribute
        first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] in ("null", "merge")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _mapping(loader: _PlainTextLoader, node: yaml.MappingNode) -> dict[object, object]:
    names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
    for name in names:
        if names.count(name) > 1:
            raise DuplicateKey(name)
    loader.flatten_mapping(node)
    return {
        loader.construct_object(key, deep=True): loader.construct_object(value, deep=True) for key, value in node.value
    }


_PlainTextLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


class InvalidYaml(ValueError):
    """The text is not valid YAML at line *lineno*."""

    def __init__(self, lineno: int | None) -> None:
        super().__init__("no YAML")
        self.lineno = lineno


def parse_yaml(text: str) -> object:
    """Return the parsed *text*; raise InvalidYaml, a ValueError with the line."""
    try:
        return yaml.load(text, Loader=_PlainTextLoader)  # noqa: S506 - a SafeLoader with fewer resolvers
    except yaml.MarkedYAMLError as wrong:
        mark = wrong.problem_mark
        raise InvalidYaml(mark.line + 1 if mark else None) from None
    except yaml.YAMLError:
        raise InvalidYaml(None) from None


def find_lines(text: str, names: Sequence[str]) -> frozenset[int] | None:
    """Return the numbers, from 0, of the lines of the setting *names* in *text*, a name for each level.

    Lines of comments and blanks between the items of a group are not among them. None = it shares a line with others
    within braces. Raises KeyError if the setting is not there, and yaml.YAMLError for invalid YAML.
    """
    # A literal text that ends with the file ends on the line after it, as any other.
    node, line = yaml.compose(f"{text}\n", Loader=_PlainTextLoader), 0
    for name in names:
        if not isinstance(node, yaml.MappingNode):
            raise KeyError(name)
        if node.flow_style:
            return None
        pairs = {key.value: (key.start_mark.line, value) for key, value in node.value}
        line, node = pairs[name]
    return frozenset({line, *_lines_of(node)})


def _lines_of(node: yaml.Node | None) -> Iterator[int]:
    if isinstance(node, yaml.CollectionNode) and not node.flow_style:
        for child in node.value:
            for each in child if isinstance(child, tuple) else (child,):
                yield from _lines_of(each)
        return
    if node is None:
        return
    # The end of a literal or folded text is the beginning of the line after it.
    is_block = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")
    yield from range(node.start_mark.line, node.end_mark.line + (0 if is_block else 1))
