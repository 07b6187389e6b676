"""Write .env.example from docs/settings.md: `python deploy/env_example.py > .env.example`. Standard library only.

The page is tested against the settings model, and .env.example against this, so that neither can lag.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap

PAGE = Path(__file__).resolve().parents[1] / "docs" / "settings.md"
WIDTH = 118
HEAD = """\
# Copy to .env; docker compose reads it at `up`. Nothing here is needed to start: without a model, the built-in
# `offline` answers and says so. `docker compose run --rm parlour init` asks for what most people want instead, and
# writes it into the data volume; what stands here wins. Secrets are better files: deploy/compose.secrets.yml.
# (A gateway outside of a container reads its environment and <home>/parlour.yaml, not this file.)
# Every setting there is, with its default. docs/settings.md says more; deploy/env_example.py writes this file.

# -- The image ------------------------------------------------------------------------------------------------------

# What containers, image and data volume are called after, instead of this folder: each bot needs a name of its own.
#COMPOSE_PROJECT_NAME=parlour
# Where the image is pulled from; where it cannot be pulled it is built from this folder.
#IMAGE=localhost/parlour
# What it is built on.
#PYTHON_IMAGE=python:3.12-slim-bookworm
"""
# The container's own, whatever stands here (docker-compose.yml).
FIXED = ("PARLOUR_HOME", "PARLOUR_WEB__HOST", "PARLOUR_WEB__PORT")
BLOCKS = ("TELEGRAM", "SLACK", "DISCORD")
# What to write where the default is nothing.
EXAMPLES = {
    "PARLOUR_OWNERS": "telegram:42,slack:U012AB3CD",
    "PARLOUR_LLM__MODEL": "openai/gpt-5",
    "PARLOUR_LLM__API_BASE": "http://my-model-server:11434/v1",
    "PARLOUR_LLM__FALLBACKS": "openai/gpt-5-mini,anthropic/claude-sonnet-4-5",
    "PARLOUR_TIMEZONE": "Europe/Berlin",
    "PARLOUR_TOOLS__WEB__SEARCH": "searxng",
    "PARLOUR_TOOLS__WEB__SEARCH_URL": "http://searxng:8080",
    "PARLOUR_TOOLS__WEB__PORTS": "8080,8443",
    "PARLOUR_WEB__PUBLISHED_PORT": "8787",
    "PARLOUR_WEB__PUBLIC_URL": "https://chat.example.org",
    "PARLOUR_LOG__FORMAT": "text",
    "PARLOUR_ALERT_URL": "https://monitoring.example.org/hooks/long-and-secret",
}


def render(page: str) -> str:
    """Return the file."""
    return HEAD + "".join(_lines(page))


def _lines(page: str) -> Iterator[str]:
    section = written = ""
    for line in page.splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ")
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
        name = cells[0].strip("`")
        if len(cells) != 3 or name in FIXED or name == "kind":
            continue
        in_blocks = section == "Channel blocks" and re.fullmatch(r"`[a-z_]+`", cells[0])
        if not name.startswith("PARLOUR_") and not in_blocks:
            continue
        if section != written:
            written = section
            yield f"\n# -- {section} {'-' * (WIDTH - 5 - len(section))}\n"
        names = [f"PARLOUR_CHANNELS__{block}__{name.upper()}" for block in BLOCKS] if in_blocks else [name]
        # A kind's own default stands in the kind's own row.
        yield from _knob([each for each in names if f"`{each}`" not in page or not in_blocks], cells[1], cells[2])


def _knob(names: list[str], default: str, text: str) -> Iterator[str]:
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("`", "").replace("\\|", "|")
    yield "\n"
    for row in wrap(plain[:1].upper() + plain[1:], WIDTH - 2):
        yield f"# {row}\n"
    given = default.strip("`") if default.startswith("`") else ""
    for name in names:
        yield f"#{name}={EXAMPLES.get(name, given)}\n"


if __name__ == "__main__":
    sys.stdout.write(render(PAGE.read_text("utf-8")))
