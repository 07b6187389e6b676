"""Folders of skills: which are used, what is wrong with the others, and that none of them can do harm."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.skills import (
    FILE_BYTES,
    LONGEST_CATALOGUE,
    MAIN_BYTES,
    MOST_LISTED,
    MOST_SKILLS,
    SkillLibrary,
    list_skill_files,
    read_skills,
)
from agent.tools.toolbox import Toolbox
from gateway.errors import ToolFailed
from tests.fakes.skill_folders import skill_text, write_skill

PLAIN = skill_text("invoices")


def _front(*fields: str) -> bytes:
    return "\n".join(["---", *fields, "---", "Do it."]).encode()


# What a SKILL.md holds, and words of what the operator reads about it.
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "has no front matter"),
    "no end": (b"---\nname: invoices\ndescription: x\n", "has no front matter"),
    "text alone": (b"# Invoices\n", "has no front matter"),
    "a list": (_front("- name", "- description"), "has no fields"),
    "nothing in it": (_front(), "has no fields"),
    "not YAML": (_front("name: invoices", "description: 'x"), "not valid YAML in line"),
    "a colon": (_front("name: invoices", "description: use when: asked"), "not valid YAML in line 3"),
    "a control character": (_front("name: invoices", "description: \x07"), "not valid YAML"),
    "no description": (_front("name: invoices"), "description is missing"),
    "a blank description": (_front("name: invoices", "description: ' '"), "description is missing"),
    "a list as description": (_front("name: invoices", "description: [a, b]"), "description is missing"),
    "a long description": (_front("name: invoices", f"description: {'x' * 1_025}"), "has 1025 characters"),
    "another name": (_front("name: orders", "description: x"), "another name than its folder"),
    "no name": (_front("description: x"), "another name than its folder"),
    "two names": (_front("name: orders", "name: invoices", "description: x"), "has name twice"),
    "a number": (_front("name: 42", "description: x"), "another name"),
    "a tag": (_front("name: invoices", "description: !!python/object/apply:os.system ['true']"), "a tag"),
    "an anchor": (_front("name: invoices", "description: &a x"), "an anchor or an alias"),
    "a bomb": (
        _front("a: &a [x, x, x, x, x, x, x, x, x]", *(f"b{n}: &b{n} [*a, *a, *a]" for n in range(20))),
        "an anchor or an alias",
    ),
    "deep": (_front("name: invoices", f"metadata: {'[' * 3_000}"), "too many or too deep levels"),
    "many fields": (_front("name: invoices", *(f"a{n}: b" for n in range(600))), "too many or too deep levels"),
    "a long front": (_front("name: invoices", f"description: {'x' * 9_000}"), "more than 8000 bytes"),
    "huge": (PLAIN.encode() + b"x" * MAIN_BYTES, "more than 64,000 bytes"),
    "binary": (b"\x7fELF" + bytes(range(256)) * 4, "is not text"),
    "zeros": (PLAIN.encode() + b"\0", "is not text"),
    "an escape that is no character": (_front("name: invoices", 'description: "\\UFFFFFFFF"'), "not valid YAML"),
    "an escape beyond all characters": (_front("name: invoices", 'description: "\\U00FFFFFF"'), "not valid YAML"),
    "a number of 5,000 digits": (_front(f"%YAML 1.{'9' * 5_000}", "name: invoices"), "not valid YAML"),
    "UTF-16": (PLAIN.encode("utf-16"), "is not text"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_wrong_file_is_named_with_what_mends_it(tmp_path: Path, case: str) -> None:
    """The other skills work, whatever is in one of them, and nothing takes long."""
    data, words = HOSTILE[case]
    write_skill(tmp_path, "invoices", data)
    write_skill(tmp_path, "letters")
    began = time.perf_counter()
    skills, faults = read_skills(tmp_path)
    assert time.perf_counter() - began < 1
    assert [each.name for each in skills] == ["letters"]
    assert [each.skill for each in faults] == ["invoices"]
    assert words in faults[0].text
    assert faults[0].remedy


def _no_file(folder: Path) -> None:
    (folder / "invoices").mkdir()
    (folder / "invoices" / "skill.md").write_text(PLAIN)


def _link_out(folder: Path) -> None:
    write_skill(folder, "invoices")
    secret = folder.parent / "secret.md"
    secret.write_text(PLAIN)
    (folder / "invoices" / "SKILL.md").unlink()
    (folder / "invoices" / "SKILL.md").symlink_to(secret)


def _folder_link_out(folder: Path) -> None:
    write_skill(folder.parent / "elsewhere", "invoices")
    folder.mkdir(exist_ok=True)
    (folder / "invoices").symlink_to(folder.parent / "elsewhere" / "invoices")


def _pipe(folder: Path) -> None:
    (folder / "invoices").mkdir()
    os.mkfifo(folder / "invoices" / "SKILL.md")


def _circle(folder: Path) -> None:
    (folder / "invoices").mkdir()
    (folder / "invoices" / "SKILL.md").symlink_to("SKILL.md")


def _capitals(folder: Path) -> None:
    write_skill(folder, "Invoices", skill_text("invoices").encode())


def _path_as_name(folder: Path) -> None:
    write_skill(folder, "a..b", skill_text("../../etc").encode())


FOLDERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "no SKILL.md": (_no_file, "has no SKILL.md"),
    "a link out": (_link_out, "leads out"),
    "a folder that is a link out": (_folder_link_out, "leads out"),
    "a pipe": (_pipe, "no such file"),
    "a link to itself": (_circle, "cannot be read"),
    "capitals": (_capitals, "name of its folder"),
    "a path as a name": (_path_as_name, "name of its folder"),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_a_wrong_folder_is_named(tmp_path: Path, case: str) -> None:
    """Links that leave the folder are not followed, and a pipe is not waited for."""
    build, words = FOLDERS[case]
    folder = tmp_path / "skills"
    folder.mkdir()
    build(folder)
    skills, faults = read_skills(folder)
    assert not skills
    assert [words in each.text for each in faults] == [True]


def test_links_within_the_folder_are_followed(tmp_path: Path) -> None:
    """As Kubernetes mounts the files of a ConfigMap."""
    inner = tmp_path / "..data" / "invoices"
    inner.mkdir(parents=True)
    (inner / "SKILL.md").write_text(PLAIN)
    (tmp_path / "invoices").mkdir()
    (tmp_path / "invoices" / "SKILL.md").symlink_to("../..data/invoices/SKILL.md")
    assert [each.name for each in read_skills(tmp_path)[0]] == ["invoices"]


def test_a_folder_that_everybody_can_write_to_is_not_used(tmp_path: Path) -> None:
    """Its text would be trusted like the operator's own."""
    write_skill(tmp_path, "invoices")
    tmp_path.chmod(0o777)
    skills, faults = read_skills(tmp_path)
    assert not skills
    assert faults[0].remedy == f"run chmod o-w {tmp_path}"


async def test_who_may_write_is_looked_at_again(tmp_path: Path) -> None:
    """The remedy of an open folder counts without a restart, and so does opening it."""
    write_skill(tmp_path, "letters")
    library = SkillLibrary(tmp_path)
    for mode, names in ((0o777, []), (0o755, ["letters"]), (0o777, [])):
        await asyncio.to_thread(tmp_path.chmod, mode)
        await library.reload()
        assert [each.name for each in library.skills] == names
        assert bool(library.faults) is not bool(names)


def test_links_in_a_circle_take_nothing_else_away(tmp_path: Path) -> None:
    """Neither the other skills beside them, nor the other files."""
    own = write_skill(tmp_path, "letters")
    (own / "prices.md").write_text("1")
    for folder in (tmp_path, own):
        (folder / "a").symlink_to("b")
        (folder / "b").symlink_to("a")
    assert [each.name for each in read_skills(tmp_path)[0]] == ["letters"]
    assert list_skill_files(tmp_path, "letters") == ["prices.md"]


def test_there_is_a_limit_of_skills_and_of_their_descriptions(tmp_path: Path) -> None:
    """They are in every prompt. Those that do not fit are named."""
    for n in range(MOST_SKILLS + 3):
        write_skill(tmp_path, f"skill-{n:02}", skill_text(f"skill-{n:02}", "x").encode())
    skills, faults = read_skills(tmp_path)
    assert len(skills) == MOST_SKILLS
    assert [each.skill for each in faults] == ["skill-50", "skill-51", "skill-52"]
    long = tmp_path / "long"
    for n in range(MOST_SKILLS):
        write_skill(long, f"skill-{n:02}", skill_text(f"skill-{n:02}", "x" * 1_000).encode())
    skills, faults = read_skills(long)
    assert sum(len(each.name) + len(each.description) for each in skills) <= LONGEST_CATALOGUE
    assert len(skills) == 11
    assert len(faults) == MOST_SKILLS - 11


async def test_a_description_is_one_visible_line(tmp_path: Path) -> None:
    """It can neither begin another line of the prompt nor hide a part of itself."""
    text = '---\nname: invoices\ndescription: "a\\n- b\\u200b\\u202e c"\n---\nx'
    write_skill(tmp_path, "invoices", text.encode())
    library = SkillLibrary(tmp_path)
    await library.reload()
    assert library.skills[0].description == "a - b\\u200b\\u202e c"


async def test_files_are_listed_and_read_within_limits(tmp_path: Path) -> None:
    """Nothing outside the folder, nothing hidden, nothing binary, nothing huge; and only so many and so deep."""
    folder = write_skill(tmp_path, "invoices")
    write_skill(tmp_path, "letters")
    (tmp_path.parent / "outside.md").write_text("outside")
    (folder / "references").mkdir()
    (folder / "references" / "prices.md").write_text("# Prices")
    (folder / "references" / "out.md").symlink_to(tmp_path.parent / "outside.md")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("secret")
    (folder / "logo.png").write_bytes(b"\x89PNG\0")
    (folder / "huge.md").write_bytes(b"x" * (FILE_BYTES + 1))
    deep = folder / "a" / "b" / "c" / "d"
    deep.mkdir(parents=True)
    (deep / "e.md").write_text("deep")
    os.mkfifo(folder / "pipe.md")
    library = SkillLibrary(tmp_path)
    await library.reload()
    listed = await library.read("invoices")
    assert listed.startswith("# Work\n\nDo it well.")
    assert listed.splitlines()[-3:] == ["- huge.md", "- logo.png", "- references/prices.md"]
    assert await library.read("invoices", "references/prices.md") == "# Prices"
    for name, words in {
        "references/out.md": "leads out",
        "../letters/SKILL.md": "named as",
        "/etc/passwd": "named as",
        "references//prices.md": "named as",
        ".git/config": "named as",
        "references/\0": "named as",
        "missing.md": "no such file",
        "references": "cannot be read",
        "SKILL.md/x": "cannot be read",
        "logo.png": "not text",
        "huge.md": "more than 256,000 bytes",
        "a/b/c/d/e.md": "at most 4 folders deep",
        "pipe.md": "no such file",
        "x" * 5_000: "cannot be read",
    }.items():
        with pytest.raises(ToolFailed, match=words):
            await library.read("invoices", name)
    for name in ("../skills/invoices", "orders", ""):
        with pytest.raises(ToolFailed, match="no such skill; there are: invoices, letters"):
            await library.read(name)


async def test_many_files_are_listed_in_part(tmp_path: Path) -> None:
    """A folder with thousands of files costs neither time nor a long result."""
    folder = write_skill(tmp_path, "invoices")
    for n in range(3_000):
        (folder / f"{n}.md").touch()
    library = SkillLibrary(tmp_path)
    await library.reload()
    assert (await library.read("invoices")).count("\n- ") == MOST_LISTED


async def test_what_has_not_changed_is_the_same_tool(tmp_path: Path) -> None:
    """So a chat keeps its prompt; a changed text of a skill alone makes another one."""
    library = SkillLibrary(tmp_path / "skills")
    await library.reload()
    assert library.tool is None
    write_skill(tmp_path / "skills", "invoices")
    await library.reload()
    first = library.tool
    await library.reload()
    assert first is not None
    assert library.tool is first
    write_skill(tmp_path / "skills", "invoices", (PLAIN + "More.").encode())
    await library.reload()
    second = library.tool
    assert second is not None
    assert second.catalogue == first.catalogue
    assert second.digests != first.digests
    (tmp_path / "skills" / "invoices" / "SKILL.md").unlink()
    await library.reload()
    assert library.tool is None


async def test_the_toolbox_without_skills_is_the_same_to_the_byte(tmp_path: Path) -> None:
    """With skills it has one tool and its lines more; where a chat is denied the tool, none of it."""
    plain = Toolbox.load()
    library = SkillLibrary(tmp_path)
    await library.reload()
    assert plain.extended((), library.tool, {}).abilities == plain.abilities
    write_skill(tmp_path, "invoices")
    await library.reload()
    box = plain.extended((), library.tool, {})
    assert set(box.names) - set(plain.names) == {"skill"}
    assert "- invoices: Writes invoices." in box.abilities
    assert set(box.digests) - set(plain.digests) == {"skill", "skill invoices"}
    denied = box.only(None, ["skill"])
    assert denied.abilities == plain.abilities
    assert denied.schemas == plain.schemas
    assert denied.digests == plain.digests
