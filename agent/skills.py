"""The operator's skills: one folder each with a SKILL.md, in the form of https://agentskills.io/specification.

The prompt has a line for each skill; the model reads the rest with the tool `skill`. Nothing in a folder is ever run,
and nothing here writes one. Whatever the folder holds, reading it is bounded, and happens in a thread.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import structlog
import yaml

from agent.tools.tool import SkillTool, Tool, ToolContext, ToolKind, tool
from gateway.errors import ToolFailed
from gateway.text.message_text import one_line, show_escapes

log = structlog.get_logger(__name__)

MAIN = "SKILL.md"
MOST_SKILLS = 50
MAIN_BYTES = 64_000
FILE_BYTES = 256_000
FRONT_BYTES = 8_000
LONGEST_NAME = 64  # characters; this and the next by the specification
LONGEST_DESCRIPTION = 1_024
LONGEST_CATALOGUE = 12_000  # characters of all names and descriptions: they are in every prompt
MOST_LISTED = 100  # files of a skill
MOST_LEVELS = 4
_MOST_ENTRIES = 1_000  # that are looked at in a folder
_MOST_EVENTS = 500  # of YAML
_DEEPEST = 3  # levels of YAML
_MOST_BRACKETS = 50
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_EVERY = 5.0  # seconds between two looks at the folder
_PATIENCE = 1.0  # seconds that a turn waits for a slow disk
_HEADING = (
    "Skills are instructions of this bot's operator for certain work. Where one fits what you are asked for, read it"
    " with the tool skill before you begin:"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """A skill that can be used."""

    name: str
    description: str  # one line
    body: str  # of its SKILL.md, without the front matter
    digest: str  # SHA-256 of its SKILL.md


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillFault:
    """The reason why a skill is not used, and its remedy."""

    skill: str  # name of its folder; "" for the folder of all
    text: str
    remedy: str


class InvalidSkill(Exception):
    """A skill cannot be used, for the reason *text*; *remedy* is an instruction to the operator."""

    def __init__(self, text: str, remedy: str) -> None:
        super().__init__(f"{text}; {remedy}")
        self.text = text
        self.remedy = remedy


class SkillLibrary:
    """The skills of one folder, as they were at the last look."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.skills: Sequence[Skill] = ()  # by name
        self.faults: Sequence[SkillFault] = ()
        self.tool: SkillTool | None = None  # None without skills; another object once they have changed
        self._survey: object = ()
        self._look: asyncio.Task[None] | None = None
        self._looked_at = float("-inf")

    async def refresh(self) -> None:
        """Look again at a folder that may have changed, at most every five seconds.

        A slow disk is waited for a second; its answer counts from the next turn on.
        """
        now = asyncio.get_running_loop().time()
        if self._look is None and now - self._looked_at >= _EVERY:
            self._looked_at = now
            self._look = asyncio.create_task(self.reload(), name="skills")
            self._look.add_done_callback(self._end_look)
            await asyncio.wait({self._look}, timeout=_PATIENCE)

    def _end_look(self, look: asyncio.Task[None]) -> None:
        self._look = None
        if not look.cancelled() and (error := look.exception()) is not None:
            log.warning("skills.unread", error=type(error).__name__)

    async def reload(self) -> None:
        """Read the folder if it has changed. One that cannot be read has no skills, and a fault."""
        survey = await asyncio.to_thread(survey_folder, self.folder)
        if survey == self._survey:
            return
        skills, faults = await asyncio.to_thread(read_skills, self.folder)
        self._survey, self.skills, self.faults = survey, skills, faults
        self.tool = self._build_tool() if skills else None
        log.info("skills.read", skills=[each.name for each in skills])
        for each in faults:
            log.warning("skill.refused", skill=each.skill, reason=each.text, mend=each.remedy)

    def find(self, name: str) -> Skill | None:
        """Return the skill called *name*."""
        return next((each for each in self.skills if each.name == name), None)

    async def read(self, name: str, file: str = MAIN) -> str:
        """Return the instructions of a skill with the names of its files, or the text of one of them.

        Raises ToolFailed.
        """
        if (skill := self.find(name)) is None:
            raise ToolFailed(f"no such skill; there are: {', '.join(each.name for each in self.skills) or 'none'}")
        try:
            if file != MAIN:
                return await asyncio.to_thread(read_skill_file, self.folder, name, file)
            files = await asyncio.to_thread(list_skill_files, self.folder, name)
        except InvalidSkill as wrong:
            raise ToolFailed(wrong.text) from None
        listed = "\n".join(f"- {each}" for each in files)
        return f"{skill.body}\n\nFiles of this skill, which you can read:\n{listed}" if files else skill.body

    def _build_tool(self) -> SkillTool:
        lines = [f"- {each.name}: {each.description}" for each in self.skills]
        return SkillTool(
            tool=_build_tool(self),
            catalogue="\n".join([_HEADING, *lines]),
            digests={f"skill {each.name}": each.digest for each in self.skills},
        )


def _build_tool(library: SkillLibrary) -> Tool:
    @tool("Read the instructions of a skill, or one of its files.", kind=ToolKind.LOOK, name="skill", page=16_000)
    async def skill(
        context: ToolContext,  # noqa: ARG001 - the same for everybody
        name: str,
        file: Annotated[str, "as the skill names it"] = MAIN,
    ) -> str:
        """Return the text. Raises ToolFailed."""
        return await library.read(name, file)

    return skill


# -- folders -----------------------------------------------------------------------------------------
# What follows blocks.


def survey_folder(folder: Path) -> object:
    """Return a value that changes with the names in *folder*, who may write to it, and each SKILL.md."""
    found: list[object] = []
    try:
        names = _folder_names(folder)
        found += [folder.stat().st_mode] if names else []
    except OSError as error:
        return (error.errno,)
    for name in names:
        try:
            state = (folder / name / MAIN).stat()
            found.append((name, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns))
        except (OSError, ValueError) as error:
            found.append((name, type(error).__name__))
    return tuple(found)


def read_skills(folder: Path) -> tuple[Sequence[Skill], Sequence[SkillFault]]:
    """Return the skills in *folder* by name, and why others there cannot be used."""
    skills: list[Skill] = []
    faults: list[SkillFault] = []
    try:
        names = _folder_names(folder)
        is_open = bool(names) and bool(folder.stat().st_mode & stat.S_IWOTH)
    except OSError as error:
        return (), [SkillFault(skill="", text=f"{folder} cannot be read ({error.strerror})", remedy=_READABLE)]
    if is_open:
        text = f"everybody on this machine can write to {folder}, so its skills are not used"
        return (), [SkillFault(skill="", text=text, remedy=f"run chmod o-w {folder}")]
    left = LONGEST_CATALOGUE
    for name in names:
        shown = show_escapes(one_line(name, 80))
        try:
            skill = _read_skill(folder, name)
        except InvalidSkill as wrong:
            faults.append(SkillFault(skill=shown, text=wrong.text, remedy=wrong.remedy))
            continue
        size = len(name) + len(skill.description)
        if len(skills) == MOST_SKILLS or size > left:
            most = f"{MOST_SKILLS} skills, and {LONGEST_CATALOGUE:,} characters of names and descriptions"
            text = f"does not fit into the prompt, which takes {most}"
            faults.append(SkillFault(skill=shown, text=text, remedy="shorten or remove some"))
            continue
        left -= size
        skills.append(skill)
    return skills, faults


_READABLE = "make it readable for the user who runs Parlour"


def _folder_names(folder: Path) -> Sequence[str]:
    """Return the names of the folders in *folder*, sorted; none where it does not exist. Raises OSError."""
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        found = [each for each, _ in zip(entries, range(_MOST_ENTRIES), strict=False)]
        return sorted(each.name for each in found if not each.name.startswith(".") and _is_folder(each))
    return ()


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):  # of links in a circle
        return entry.is_dir()
    return False


def _read_skill(folder: Path, name: str) -> Skill:
    """Return the skill in the folder called *name*. Raises InvalidSkill."""
    if len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        raise InvalidSkill(
            "the name of its folder cannot be a skill's",
            f"use small letters a to z, digits and single hyphens, at most {LONGEST_NAME} characters",
        )
    if not os.path.lexists(folder / name / MAIN):
        raise InvalidSkill(f"has no {MAIN}", "add one (its name is in capitals), or remove the folder")
    data = _read_bytes(folder, f"{name}/{MAIN}", MAIN_BYTES)
    text = _decode(data)
    fields, body = parse_front_matter(text)
    if fields.get("name") != name:
        raise InvalidSkill(
            "its front matter has another name than its folder", f"write name: {name}, or rename the folder"
        )
    description = show_escapes(" ".join(fields.get("description", "").split()))
    if not description:
        raise InvalidSkill("its description is missing", "write what it does and when to use it, as description:")
    if len(description) > LONGEST_DESCRIPTION:
        raise InvalidSkill(f"its description has {len(description)} characters", f"shorten it to {LONGEST_DESCRIPTION}")
    return Skill(name=name, description=description, body=body.strip(), digest=hashlib.sha256(data).hexdigest())


def parse_front_matter(text: str) -> tuple[Mapping[str, str], str]:
    """Return the texts of the front matter by name, and what comes below it. Raises InvalidSkill.

    Tags, anchors and aliases are refused: nothing needs them, and a small file could stand for a huge one.
    """
    lines = text.split("\n")
    ends = [n for n, line in enumerate(lines) if n and line.rstrip() == "---"]
    if lines[0].rstrip() != "---" or not ends:
        raise InvalidSkill("has no front matter", "begin it with a line ---, then name: and description:, then ---")
    front, body = "\n".join(lines[1 : ends[0]]), "\n".join(lines[ends[0] + 1 :])
    if len(front.encode()) > FRONT_BYTES:
        raise InvalidSkill(f"its front matter has more than {FRONT_BYTES} bytes", "move text below its second ---")
    try:
        for wrong in _forbidden_yaml(front):
            raise InvalidSkill(f"its front matter has {wrong}", "write plain fields, such as description: text")
        node = yaml.compose(front, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # of an escape that is no character, for example
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 2}" if mark is not None else ""
        raise InvalidSkill(
            f"its front matter is not valid YAML{where}", "put texts with a colon or other signs in quotes"
        ) from None
    if not isinstance(node, yaml.MappingNode):
        raise InvalidSkill("its front matter has no fields", "write name: and description: in lines of their own")
    names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
    for name in ("name", "description"):
        if names.count(name) > 1:
            raise InvalidSkill(f"its front matter has {name} twice", "remove one")
    # Every plain value is text: a name such as 42 is no number.
    return {key.value: value.value for key, value in node.value if _is_text(key) and _is_text(value)}, body


def _is_text(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode)


def _forbidden_yaml(text: str) -> Iterator[str]:
    """Yield what plain fields do not have. The parser makes one event at a time, so that nothing is built before."""
    if sum(map(text.count, "[{")) > _MOST_BRACKETS:  # the parser takes the square of their number
        yield "too many or too deep levels"
    depth = 0
    for n, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            yield "an anchor or an alias"
        elif getattr(event, "tag", None):
            yield "a tag"
        elif depth > _DEEPEST or n > _MOST_EVENTS:
            yield "too many or too deep levels"


def list_skill_files(folder: Path, name: str) -> Sequence[str]:
    """Return the names of the files of a skill but its SKILL.md, sorted; hidden ones and links out are left out."""
    found: list[str] = []
    waiting, looked = [""], 0
    while waiting:
        inside = waiting.pop()
        with suppress(OSError), os.scandir(folder / name / inside) as entries:
            for entry in entries:
                if (looked := looked + 1) > _MOST_ENTRIES:
                    return sorted(found)[:MOST_LISTED]
                path = f"{inside}{entry.name}"
                if entry.name.startswith(".") or not entry.name.isprintable() or path == MAIN:
                    continue
                if not entry.is_dir(follow_symlinks=False):
                    found += [path] * _is_file_inside(folder, f"{name}/{path}")
                elif path.count("/") + 2 <= MOST_LEVELS:
                    waiting.append(f"{path}/")
    return sorted(found)[:MOST_LISTED]


def read_skill_file(folder: Path, name: str, file: str) -> str:
    """Return the text of a file of the skill *name*. Raises InvalidSkill."""
    parts = file.split("/")
    if any(part in ("", ".", "..") or part.startswith(".") for part in parts) or not file.isprintable():
        raise InvalidSkill("a file is named as the skill names it, such as references/prices.md", "")
    if len(parts) > MOST_LEVELS:
        raise InvalidSkill(f"a file of a skill is at most {MOST_LEVELS} folders deep", "")
    return _decode(_read_bytes(folder, f"{name}/{file}", FILE_BYTES))


def _is_file_inside(folder: Path, path: str) -> bool:
    real = os.path.realpath(folder / path)  # of links in a circle, one that is no file
    return real.startswith(f"{os.path.realpath(folder)}/") and Path(real).is_file()


def _read_bytes(folder: Path, path: str, most: int) -> bytes:
    """Return the bytes of the regular file *path* in *folder*; links within it are followed. Raises InvalidSkill.

    The path without links is looked up once, and then opened part by part without following any.
    """
    root = os.path.realpath(folder)
    real = os.path.realpath(f"{root}/{path}")
    if not real.startswith(f"{root}/"):
        raise InvalidSkill("leads out of the folder of the skills by a link", "copy the files instead")
    inside = real.removeprefix(f"{root}/")
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for n, part in enumerate(parts := inside.split("/")):
            kind = os.O_NONBLOCK if n == len(parts) - 1 else os.O_DIRECTORY  # a pipe must not be waited for
            outer = descriptor
            try:
                descriptor = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind, dir_fd=outer)
            finally:
                os.close(outer)
        with os.fdopen(descriptor, "rb") as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise InvalidSkill("there is no such file", "remove what is no file")
            data = opened.read(most + 1)
    except FileNotFoundError:
        raise InvalidSkill("there is no such file", "add it") from None
    except OSError as error:
        raise InvalidSkill(f"cannot be read ({error.strerror})", _READABLE) from None
    if len(data) > most:
        raise InvalidSkill(f"has more than {most:,} bytes", "move parts of it to files of their own")
    return data


def _decode(data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise InvalidSkill("is not text", "save it as UTF-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")
