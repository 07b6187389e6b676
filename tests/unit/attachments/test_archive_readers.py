"""Spreadsheets, books and archives are read in the child as text, and those that mean harm cost little."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable

import pytest

from agent.attachments import reader_process
from agent.attachments.document_reader import ExtractedText, SandboxedReader, decode_text, detect_kind
from gateway.errors import FileUnavailable
from tests.fakes import sample_files
from tests.fakes.sample_archives import archive, epub, ods, text_cell, xlsx

BROKEN = "it is broken, or not what its name says"
TOO_LARGE = "it is too large inside"
needs_sheets = pytest.mark.skipif(importlib.util.find_spec("python_calamine") is None, reason="the extra `sheets`")

PRICES = (
    f'<row r="1">{text_cell("A1", "what")}{text_cell("B1", "price")}{text_cell("C1", "on")}</row>'
    f'<row r="2">{text_cell("A2", "tea, green")}<c r="B2"><v>3</v></c><c r="C2" s="1"><v>46349</v></c></row>'
    f'<row r="4">{text_cell("A4", "cake")}<c r="B4"><v>2.5</v></c><c r="D4" t="b"><v>1</v></c></row>'
)
ROWS = (
    '<table:table-row><table:table-cell office:value-type="string"><text:p>city</text:p></table:table-cell>'
    '<table:table-cell office:value-type="float" office:value="7"><text:p>7</text:p></table:table-cell>'
    "</table:table-row>"
)


async def read(data: bytes, *, chars: int = 10_000, name: str = "x") -> ExtractedText:
    """Read a file as an attachment called *name* is read."""
    kind = detect_kind(data, kind="document", name=name, media_type="")
    return await SandboxedReader().read_text(data, kind, chars)


@needs_sheets
async def test_a_spreadsheet_is_a_table_for_each_sheet() -> None:
    """Whole numbers without a point, dates in ISO form, commas quoted, empty ends left out."""
    text = await read(xlsx({"Prices": PRICES, "Empty": ""}), name="prices.xlsx")
    assert text.text.rstrip() == (
        '## Prices (4 x 4 cells)\n\nwhat,price,on\n"tea, green",3,2026-11-23\n\ncake,2.5,,True\n'
        "\n## Empty (0 x 0 cells)"
    )
    assert not text.is_cut
    assert (await read(ods(ROWS), name="plan.ods")).text == "## Plan (1 x 2 cells)\n\ncity,7\n"


@needs_sheets
async def test_a_long_spreadsheet_says_that_it_is_cut() -> None:
    """The beginning is read."""
    rows = "".join(f'<row r="{n}">{text_cell(f"A{n}", "word")}</row>' for n in range(1, 20_000))
    text = await read(xlsx({"Long": rows}), chars=500)
    assert (len(text.text), text.is_cut) == (500, True)


FAR = f'<row r="1">{text_cell("A1", "x")}</row><row r="1048576">{text_cell("XFD1048576", "far")}</row>'


@needs_sheets
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: xlsx({"Far": FAR}), "it is too large inside, or broken"),
        (lambda: xlsx({"Bomb": "<row/>" + " " * (260 << 20)}), TOO_LARGE),
        (lambda: archive({"xl/workbook.xml": "no workbook"}), BROKEN),
        (lambda: archive({"mimetype": "application/vnd.oasis.opendocument.spreadsheet"}), BROKEN),
    ],
    ids=["two-cells-far-apart", "bomb", "no-workbook", "no-content"],
)
async def test_a_hostile_spreadsheet_costs_little(make: Callable[[], bytes], why: str) -> None:
    """It is refused within seconds and within the child's memory."""
    data = await asyncio.to_thread(make)
    async with asyncio.timeout(60):
        with pytest.raises(FileUnavailable, match=why):
            await read(data)


@needs_sheets
async def test_a_cell_has_a_limit() -> None:
    """A text of forty megabytes in one cell leaves the other cells readable."""
    row = f'<row r="1">{text_cell("A1", "A" * (40 << 20))}{text_cell("B1", "end")}</row>'
    assert (await read(xlsx({"Rows": row}))).text.rstrip().endswith("A,end")


async def test_a_book_is_read_in_its_order() -> None:
    """The title, then the chapters as the book orders them; a part that is missing is left out."""
    book = epub(
        {"b.xhtml": "<!DOCTYPE html><h1>One</h1><p>green tea</p>", "a.xhtml": "<p>black tea</p>", "gone.xhtml": "x"},
        hrefs={"gone.xhtml": "../../etc/passwd"},
    )
    text = await read(book, name="tea.epub")
    assert text.text == "Tea\n\n# One\n\ngreen tea\n\nblack tea"
    long = epub({f"{n}.xhtml": f"<p>{'word ' * 100}</p>" for n in range(20)})
    cut = await read(long, chars=600)
    assert (len(cut.text), cut.is_cut) == (600, True)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (epub({"a": "x"}, package_head='<!DOCTYPE p [<!ENTITY a "lol"><!ENTITY b "&a;&a;">]>'), BROKEN),
        (archive({"mimetype": "application/epub+zip"}), BROKEN),
        (archive({"[Content_Types].xml": "", "ppt/presentation.xml": ""}), "this kind of file cannot be read here"),
        (b"PK\x03\x04 and nothing else", BROKEN),
    ],
    ids=["entities", "no-container", "slides", "no-zip"],
)
async def test_a_hostile_archive_is_a_phrase(data: bytes, why: str) -> None:
    """Refused in a person's words."""
    async with asyncio.timeout(60):
        with pytest.raises(FileUnavailable, match=why):
            await read(data)


async def test_a_book_is_no_bomb() -> None:
    """One that unpacks to more than 256 MB is refused by its list of parts."""
    book = await asyncio.to_thread(lambda: epub({f"{n}.xhtml": " " * (9 << 20) for n in range(30)}))
    with pytest.raises(FileUnavailable, match=TOO_LARGE):
        await read(book)


async def test_an_archive_is_listed_and_stays_closed() -> None:
    """Names and sizes, on one line each; nothing in it is unpacked, not even an archive in it."""
    parts: dict[str, str | bytes] = {"a\n- b.txt": "hello", "../../x.sh": "rm", "in.zip": sample_files.nested_zip(3)}
    text = (await read(archive(parts), name="all.zip")).text.splitlines()
    assert text[0].startswith("An archive with 3 files, ")
    assert text[2:4] == ["- a - b.txt, 5 bytes", "- ../../x.sh, 2 bytes"]
    assert len(text) == 5
    bomb = await read(archive({"zeros": bytes(50 << 20)}))
    assert f"{50 << 20} bytes" in bomb.text
    many = await read(archive({f"{n}.txt": "" for n in range(2_000)}), chars=100_000)
    assert many.is_cut
    assert many.text.count("\n- ") == reader_process.LISTED


async def test_what_reads_spreadsheets_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, a spreadsheet is named as one that cannot be read here."""
    monkeypatch.setitem(reader_process.__dict__["sys"].modules, "python_calamine", None)
    with pytest.raises(ImportError):
        reader_process.archive(xlsx({"Prices": PRICES}), 100)


@pytest.mark.parametrize("coding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_tables_of_any_spreadsheet_program_are_text(coding: str) -> None:
    """CSV comes in the encodings that such programs write."""
    data = "Stadt;Größe\nKöln;1\n".encode(coding)
    assert detect_kind(data, kind="document", name="t.csv", media_type="text/csv") == "text"
    assert decode_text(data, 100) == ("Stadt;Größe\nKöln;1\n", False)
