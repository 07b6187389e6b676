"""Files made by hand: honest ones of each kind, and those that mean harm (docs/attacks.md, 83)."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib

from PIL import Image

_TYPES = (
    '<?xml version="1.0"?><Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Override PartName="/word/document.xml" ContentType="application/vnd.openxmlformats-officedocument.'
    'wordprocessingml.document.main+xml"/></Types>'
)
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_RELATIONS = (
    '<?xml version="1.0"?><Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{}'
    "</Relationships>"
)
_WORDS = (
    '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    f' xmlns:r="{_OFFICE}" xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"><w:body>{{}}</w:body>'
    "</w:document>"
)


def picture(
    width: int = 40, height: int = 30, *, form: str = "JPEG", color: str = "red", orientation: int = 0
) -> bytes:
    """Return a picture of one colour; with *orientation* its EXIF says so, and where it was taken."""
    image = Image.new("RGB", (width, height), color)
    out = io.BytesIO()
    if orientation:
        exif = Image.Exif()
        exif[0x0112] = orientation
        exif[0x010E] = "taken in Secret Street"
        image.save(out, form, exif=exif)
    else:
        image.save(out, form)
    return out.getvalue()


def moving() -> bytes:
    """Return a GIF of two frames."""
    out = io.BytesIO()
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:])
    return out.getvalue()


def png_of(width: int, height: int) -> bytes:
    """Return a small PNG that says it is *width* by *height*, as a bomb does."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 1_000_000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def paragraph(text: str) -> str:
    """Return a paragraph of a Word document."""
    return f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"


def docx(body: str, *, head: str = "", links: str = "", inside: dict[str, bytes] | None = None) -> bytes:
    """Return a Word document; *head* comes before its root, *links* are relations of the document part."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        main = f'<Relationship Id="r1" Type="{_OFFICE}/officeDocument" Target="word/document.xml"/>'
        archive.writestr("[Content_Types].xml", _TYPES)
        archive.writestr("_rels/.rels", _RELATIONS.format(main))
        archive.writestr("word/_rels/document.xml.rels", _RELATIONS.format(links))
        archive.writestr("word/document.xml", head + _WORDS.format(body))
        for name, data in (inside or {}).items():
            archive.writestr(name, data)
    return out.getvalue()


def linked_docx(address: str) -> bytes:
    """Return a Word document with a picture that is not in it, but at *address*."""
    link = f'<Relationship Id="out" Type="{_OFFICE}/image" Target="{address}" TargetMode="External"/>'
    drawing = '<w:p><w:r><w:drawing><a:blip r:link="out"/></w:drawing></w:r></w:p>'
    return docx(paragraph("before") + drawing + paragraph("after"), links=link)


def laughing_docx() -> bytes:
    """Return a Word document whose entities unfold to a billion."""
    entities = ['<!ENTITY a0 "ha ha ha ha ">']
    entities += [f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10)]
    return docx(paragraph("&a9;"), head=f'<?xml version="1.0"?><!DOCTYPE w [{"".join(entities)}]>')


def hidden_laughs(where: str) -> bytes:
    """Return a Word document with such entities far behind the start of a part, in UTF-16, or in a part beside it."""
    declared = f'<!DOCTYPE w [<!ENTITY a "{"ha " * 100}">]><w>&a;</w>'
    if where == "padding":
        return docx(paragraph("x"), head=f'<?xml version="1.0"?><!--{"x" * 100_000}-->{" " * 2_000}<!DOCTYPE w []>')
    if where == "utf-16":
        return docx(paragraph("x"), inside={"word/footnotes.xml": declared.encode("utf-16")})
    return docx(paragraph("x"), inside={where: declared.encode()})


def nested_zip(depth: int) -> bytes:
    """Return a ZIP in a ZIP in a ZIP."""
    data = b"\0" * 1_000_000
    for _ in range(depth):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("inner.zip", data)
        data = out.getvalue()
    return data


def pdf(*pages: str, more: int = 0) -> bytes:
    """Return a PDF with a line on each page, and *more* objects that nobody needs."""
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(pages)))
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        f"<</Type/Pages/Kids[{kids}]/Count {len(pages)}>>".encode(),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    for n, text in enumerate(pages):
        content = f"BT /F1 12 Tf 10 10 Td ({text}) Tj ET".encode()
        objects.append(
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 500 500]/Resources<</Font<</F1 3 0 R>>>>/Contents %d 0 R>>"
            % (5 + 2 * n)
        )
        objects.append(b"<</Length %d>>stream\n%s\nendstream" % (len(content), content))
    objects += [b"null"] * more
    out = bytearray(b"%PDF-1.4\n")
    offsets = []
    for number, each in enumerate(objects, start=1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    out += b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, table)
    return bytes(out)
