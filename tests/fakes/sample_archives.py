"""Spreadsheets, books and archives made by hand: honest ones, and those that mean harm."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

_RELATED = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_TYPES = (
    '<?xml version="1.0"?><Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Override PartName="/xl/workbook.xml" ContentType="application/vnd.openxmlformats-officedocument.'
    'spreadsheetml.sheet.main+xml"/></Types>'
)
_ODS = "application/vnd.oasis.opendocument.spreadsheet"


def archive(parts: Mapping[str, str | bytes]) -> bytes:
    """Return a ZIP file."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for name, data in parts.items():
            file.writestr(name, data)
    return out.getvalue()


def text_cell(place: str, text: str) -> str:
    """Return a cell with a text."""
    return f'<c r="{place}" t="inlineStr"><is><t>{text}</t></is></c>'


def xlsx(sheets: Mapping[str, str]) -> bytes:
    """Return a workbook; *sheets* maps names to the rows of their XML. Style 1 is a date."""
    names = list(sheets)
    listed = "".join(f'<sheet name="{name}" sheetId="{n}" r:id="r{n}"/>' for n, name in enumerate(names, 1))
    related = "".join(
        f'<Relationship Id="r{n}" Type="{_RELATED}/worksheet" Target="worksheets/sheet{n}.xml"/>'
        for n in range(1, len(names) + 1)
    )
    head = '<?xml version="1.0"?>'
    package = 'xmlns="http://schemas.openxmlformats.org/package/2006/relationships"'
    parts = {
        "[Content_Types].xml": _TYPES,
        "_rels/.rels": f'{head}<Relationships {package}><Relationship Id="r1" Type="{_RELATED}/officeDocument"'
        ' Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'{head}<workbook xmlns="{_MAIN}" xmlns:r="{_RELATED}"><sheets>{listed}</sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'{head}<Relationships {package}>{related}<Relationship Id="s"'
        f' Type="{_RELATED}/styles" Target="styles.xml"/></Relationships>',
        "xl/styles.xml": f'{head}<styleSheet xmlns="{_MAIN}"><cellXfs count="2"><xf numFmtId="0"/><xf numFmtId="14"/>'
        "</cellXfs></styleSheet>",
    }
    for n, rows in enumerate(sheets.values(), 1):
        sheet = f'{head}<worksheet xmlns="{_MAIN}"><sheetData>{rows}</sheetData></worksheet>'
        parts[f"xl/worksheets/sheet{n}.xml"] = sheet
    return archive(parts)


def ods(rows: str) -> bytes:
    """Return a spreadsheet of OpenDocument with one table; *rows* is its XML."""
    office = "urn:oasis:names:tc:opendocument:xmlns"
    content = (
        f'<?xml version="1.0"?><office:document-content xmlns:office="{office}:office:1.0"'
        f' xmlns:table="{office}:table:1.0" xmlns:text="{office}:text:1.0"><office:body>'
        f'<office:spreadsheet><table:table table:name="Plan">{rows}'
        "</table:table></office:spreadsheet></office:body></office:document-content>"
    )
    manifest = (
        f'<?xml version="1.0"?><manifest:manifest xmlns:manifest="{office}:manifest:1.0">'
        f'<manifest:file-entry manifest:full-path="/" manifest:media-type="{_ODS}"/></manifest:manifest>'
    )
    return archive({"mimetype": _ODS, "content.xml": content, "META-INF/manifest.xml": manifest})


def epub(chapters: Mapping[str, str], *, package_head: str = "", hrefs: Mapping[str, str] | None = None) -> bytes:
    """Return a book; *chapters* maps file names to pages, *hrefs* replaces addresses in the list of its parts."""
    container = (
        '<?xml version="1.0"?><container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
        '<rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
    )
    items = "".join(f'<item id="{name}" href="{(hrefs or {}).get(name, name)}"/>' for name in chapters)
    order = "".join(f'<itemref idref="{name}"/>' for name in chapters)
    package = (
        f'<?xml version="1.0"?>{package_head}<package xmlns="http://www.idpf.org/2007/opf"><metadata'
        ' xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>Tea</dc:title></metadata>'
        f"<manifest>{items}</manifest><spine>{order}</spine></package>"
    )
    parts = {"mimetype": "application/epub+zip", "META-INF/container.xml": container, "OEBPS/book.opf": package}
    return archive(parts | {f"OEBPS/{name}": page for name, page in chapters.items()})
