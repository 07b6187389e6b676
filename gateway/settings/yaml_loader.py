"""YAML as people mean it: `off` is a word, `0123` is an id, and only `null` is nothing."""

from __future__ import annotations

import yaml

from gateway.settings.error_messages import DuplicateKey


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
