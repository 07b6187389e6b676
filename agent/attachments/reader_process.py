"""Child process that reads one untrusted file and ends; run by path with ``python -I``, never imported.

The top level imports only the standard library and the confinement; format readers are imported when needed, behind
the limits. The file is read from standard input; a line of JSON and then the picture's bytes are written to standard
output.
"""

from __future__ import annotations

import csv
import io
import json
import os
import posixpath
import resource
import signal
import sys
import zipfile
import zlib
from collections.abc import Callable, Sequence
from datetime import date, datetime, time
from functools import partial
from types import FrameType
from typing import Any
from urllib.parse import unquote

import parlour  # noqa: F401 -- isolated, Python finds our packages by it

from agent.attachments.page_reader import read_page
from agent.attachments.process_confinement import confine_process, interpreter_folders

MEMORY = 768 << 20  # bytes of address space: a 50-megapixel picture decoded, and what decodes it
CPU = 10  # seconds; two more and the system kills
PIXELS = 50_000_000
SIDE = 1_568  # pixels of the long side that models look at
PNG_BYTES = 1_000_000  # a drawing stays a PNG up to this size
HTML_BYTES = 1_000_000
INSIDE = 32 << 20  # bytes of a document's parts, unpacked
PARTS = 5_000
SHEET_PARTS = 256 << 20  # bytes of a spreadsheet's parts, unpacked: tables compress well
SHEETS = 100
CELL = 2_000  # characters
LISTED = 500  # files of an archive
PLACES = 10_000  # pages, chapters or sheets whose beginnings are told
OPF_BYTES = 4 << 20
_PROLOG = 4_096  # bytes of a part that are read at a time until its first element


class UnreadableFile(Exception):
    """The file cannot be read; the text is a phrase for a person."""


class CpuTimeExceeded(Exception):
    """The seconds of CPU are used up."""


def main() -> None:
    """Read one file as the arguments say: ``picture``, ``measure``, ``document <characters> <hint>``, or ``page``."""
    kind, *rest = sys.argv[1:]
    drop_privileges()
    data = sys.stdin.buffer.read()
    header: dict[str, Any]
    body = b""
    try:
        if kind == "picture":
            header, body = picture(data)
        elif kind == "measure":
            header = measure(data)
        elif kind == "page":
            header = page(data, *rest)
        else:
            header = document(data, int(rest[0]), rest[1])
    except UnreadableFile as error:
        header = {"failed": str(error)}
    except CpuTimeExceeded:
        header = {"failed": "it takes too long to read"}
    except MemoryError:
        header = {"failed": "it is too large inside"}
    except ImportError:
        header = {"failed": "what reads such files is not installed here"}
    except Exception:  # noqa: BLE001 - the child's boundary: decoders raise whatever they like at broken files
        header = {"failed": "it is broken, or not what its name says"}
    sys.stdout.buffer.write(json.dumps(header).encode() + b"\n" + body)
    sys.stdout.buffer.flush()
    os._exit(0)  # a broken decoder's clean-up is nobody's business


def drop_privileges() -> None:
    """Take away what reading a file does not need; nothing of this can be undone in this process."""
    for limit, soft, hard in (
        (resource.RLIMIT_AS, MEMORY, MEMORY),
        (resource.RLIMIT_CPU, CPU, CPU + 2),
        (resource.RLIMIT_FSIZE, 0, 0),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_NOFILE, 32, 32),
    ):
        try:
            resource.setrlimit(limit, (soft, hard))
        except (OSError, ValueError):
            if sys.platform == "linux":  # elsewhere some of them do not exist; the wall clock is left
                raise
    signal.signal(signal.SIGXCPU, _out_of_time)
    sys.setrecursionlimit(3_000)
    readable = tuple({f"{os.path.realpath(path)}/" for path in interpreter_folders()})
    confine_process()

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(_FORBIDDEN):
            raise PermissionError(event)
        if event == "open" and not _is_ours(arguments, readable):
            raise PermissionError(event)
        if event in ("os.listdir", "os.scandir") and not _is_ours((arguments[0] or ".", "r", 0), readable):
            raise PermissionError(event)

    sys.addaudithook(watch)


# No network, no other program, no file but the interpreter's own: a link inside a document leads nowhere.
_FORBIDDEN = (
    *("socket.", "subprocess.", "shutil.", "ctypes.", "os.system", "os.exec", "os.fork", "os.spawn", "os.posix_spawn"),
    *("os.kill", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.chown"),
    *("os.truncate", "os.utime", "os.setxattr", "os.chdir", "os.putenv", "signal.pthread_kill"),
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _is_ours(arguments: tuple[Any, ...], readable: tuple[str, ...]) -> bool:
    path, mode, flags = (*arguments, None, None)[:3]
    if isinstance(path, int):
        return True
    writes = isinstance(mode, str) and any(sign in mode for sign in "wax+")
    if writes or (isinstance(flags, int) and flags & _WRITES):
        return False
    return os.path.realpath(os.fsdecode(path)).startswith(readable)


def _out_of_time(_number: int, _frame: FrameType | None) -> None:
    raise CpuTimeExceeded


# -- pictures --------------------------------------------------------------------------------------


def picture(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return a still picture as models look at it: upright, at most 1,568 pixels long, and nothing but pixels."""
    from PIL import Image, ImageOps

    source = _open_picture(data)
    if source.format in ("GIF", "WEBP", "PNG") and getattr(source, "is_animated", False):
        raise UnreadableFile("it moves, and only still pictures are looked at")
    source.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    upright = ImageOps.exif_transpose(source)
    pixels = _on_white(upright)
    is_drawing = source.format in ("PNG", "GIF", "BMP")
    body = _saved(pixels, "PNG", optimize=False, compress_level=6) if is_drawing else b""
    media_type = "image/png"
    if not body or len(body) > PNG_BYTES:
        body, media_type = _saved(pixels, "JPEG", quality=85, subsampling=2, optimize=False), "image/jpeg"
    return {"media_type": media_type, "width": pixels.width, "height": pixels.height}, body


def measure(data: bytes) -> dict[str, Any]:
    """Return the format and the size of a picture, of which only the head is read."""
    source = _open_picture(data)
    return {"form": source.format, "width": source.width, "height": source.height}


def _open_picture(data: bytes) -> Any:
    """Return a picture that is not decoded yet. Raises UnreadableFile."""
    from PIL import Image, UnidentifiedImageError

    Image.MAX_IMAGE_PIXELS = PIXELS
    try:
        source: Any = Image.open(io.BytesIO(data), formats=("JPEG", "PNG", "WEBP", "GIF", "BMP"))
    except UnidentifiedImageError:
        raise UnreadableFile("it is no picture of a kind that is looked at here (JPEG, PNG, WebP, GIF, BMP)") from None
    except Image.DecompressionBombError:
        raise UnreadableFile("it has too many pixels") from None
    width, height = source.size
    if width * height > PIXELS:
        raise UnreadableFile(f"it has too many pixels ({width} x {height})")
    return source


def _on_white(source: Any) -> Any:
    """Return the pixels alone, in a new picture: no place, no camera, no comment, no profile goes along."""
    from PIL import Image

    clear = Image.new("RGB", source.size, "white")
    if source.mode in ("RGBA", "LA", "PA") or "transparency" in source.info:
        layer = source.convert("RGBA")
        clear.paste(layer, mask=layer.getchannel("A"))
    else:
        clear.paste(source.convert("RGB"))
    return clear


def _saved(pixels: Any, form: str, **options: Any) -> bytes:
    out = io.BytesIO()
    pixels.save(out, form, **options)
    return out.getvalue()


# -- documents -------------------------------------------------------------------------------------


def document(data: bytes, chars: int, hint: str) -> dict[str, Any]:
    """Return the words of a document as Markdown, at most *chars* characters.

    `places` are its pages, chapters or sheets: where each begins in the text, its kind, and its number or name.
    """
    read = _READERS.get(hint)
    if read is None:
        raise UnreadableFile("this kind of file cannot be read here")
    found = read(data, chars)
    text = str(found["text"])
    if not text.strip():
        raise UnreadableFile("there is no text in it")
    places = [each for each in found.get("places", ())[:PLACES] if each[0] < chars]
    return {**found, "text": text[:chars], "is_cut": bool(found.get("is_cut")) or len(text) > chars, "places": places}


def pdf(data: bytes, chars: int) -> dict[str, Any]:
    """Read page by page until there is enough, or the time is over."""
    import pypdf

    reader = pypdf.PdfReader(io.BytesIO(data), strict=False)
    if reader.is_encrypted and not reader.decrypt(""):
        raise UnreadableFile("it is locked with a password")
    pages = len(reader.pages)
    texts = [partial(_page_text, reader.pages, n) for n in range(pages)]
    return {**_join_texts(texts, chars, kind="page"), "pages": pages}


def _page_text(pages: Any, n: int) -> str:
    """Return the text of page *n*; one that is broken reads as nothing."""
    try:
        return str(pages[n].extract_text() or "").strip()
    except (CpuTimeExceeded, MemoryError):
        raise
    except Exception:  # noqa: BLE001 - one broken page costs itself
        return ""


def _join_texts(parts: Sequence[Callable[[], str]], chars: int, *, kind: str, title: str = "") -> dict[str, Any]:
    """Return *title* and the texts that *parts* read one after the other, until there is enough or the time is over.

    *kind* is that of the parts: pages or chapters.
    """
    texts = [title]
    places: list[tuple[int, str, str]] = []
    length = len(title)  # of the joined texts
    read = 0
    is_cut = False
    try:
        for n, part in enumerate(parts, 1):
            texts.append(part())
            if texts[-1]:
                length += 2 if length else 0
                places.append((length, kind, str(n)))
                length += len(texts[-1])
            read += len(texts[-1]) + 2
            if read > chars:
                is_cut = n < len(parts) or read - 2 > chars
                break
    except (CpuTimeExceeded, MemoryError):
        if not any(texts):
            raise
        is_cut = True
    return {"text": "\n\n".join(filter(None, texts)), "is_cut": is_cut, "places": places}


def archive(data: bytes, chars: int) -> dict[str, Any]:
    """Read what a ZIP file is: a Word document, a spreadsheet, a book, or an archive, whose files are listed."""
    with _opened_zip(data) as files:
        names = {part.filename for part in files.infolist()}
        media_type = _read_part(files, "mimetype", 200).decode("ascii", "replace").strip()
    if "word/document.xml" in names:
        return docx(data, chars)
    if "xl/workbook.xml" in names or "xl/workbook.bin" in names or media_type.endswith("opendocument.spreadsheet"):
        return sheets(data, chars)
    if media_type == "application/epub+zip":
        return epub(data, chars)
    if "[Content_Types].xml" in names or media_type.startswith("application/vnd."):  # other office documents
        raise UnreadableFile("this kind of file cannot be read here")
    return listing(data, chars)


def _opened_zip(data: bytes) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, NotImplementedError):
        raise UnreadableFile("it is broken, or not what its name says") from None


def _read_part(files: zipfile.ZipFile, name: str, most: int) -> bytes:
    """Return at most *most* bytes of a part of an archive; none if it does not exist or cannot be read."""
    try:
        with files.open(name) as file:
            return file.read(most)
    except (KeyError, OSError, RuntimeError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        return b""


def _require_size(files: zipfile.ZipFile, most: int, spare: str = "") -> None:
    """Raise UnreadableFile for an archive that unpacks to more than *most* bytes, without the parts in *spare*."""
    parts = files.infolist()
    unpacked = sum(part.file_size for part in parts if not (spare and part.filename.startswith(spare)))
    if len(parts) > PARTS or unpacked > most:
        raise UnreadableFile("it is too large inside")


def listing(data: bytes, _chars: int) -> dict[str, Any]:
    """List an archive's files with their sizes; nothing in it is opened, so an archive inside stays closed."""
    with _opened_zip(data) as files:
        parts = [part for part in files.infolist() if not part.is_dir()]
    lines = [f"An archive with {len(parts)} files, {sum(part.file_size for part in parts)} bytes when unpacked:", ""]
    for part in parts[:LISTED]:
        locked = ", locked with a password" if part.flag_bits & 1 else ""
        lines.append(f"- {' '.join(part.filename.split())[:CELL]}, {part.file_size} bytes{locked}")
    return {"text": "\n".join(lines), "is_cut": len(parts) > LISTED}


def sheets(data: bytes, chars: int) -> dict[str, Any]:
    """Read a spreadsheet as one table of comma-separated values for each sheet, until there is enough."""
    import python_calamine

    with _opened_zip(data) as files:
        _require_size(files, SHEET_PARTS, spare="xl/media/")
    try:
        workbook = python_calamine.CalamineWorkbook.from_filelike(io.BytesIO(data))
    except python_calamine.PasswordError:
        raise UnreadableFile("it is locked with a password") from None
    out = io.StringIO()
    places: list[tuple[int, str, str]] = []
    try:
        for name in workbook.sheet_names[:SHEETS]:
            table = workbook.get_sheet_by_name(name)
            out.write("\n" if out.tell() else "")
            places.append((out.tell(), "sheet", name))
            out.write(f"## {name} ({table.height} x {table.width} cells)\n\n")
            rows = csv.writer(out, lineterminator="\n")
            for row in table.iter_rows():
                cells = [_cell(value) for value in row]
                while cells and not cells[-1]:
                    cells.pop()
                rows.writerow(cells)
                if out.tell() > chars:
                    return {"text": out.getvalue(), "is_cut": True, "places": places}
    except (CpuTimeExceeded, MemoryError):
        if not out.tell():
            raise
        return {"text": out.getvalue(), "is_cut": True, "places": places}
    return {"text": out.getvalue(), "is_cut": len(workbook.sheet_names) > SHEETS, "places": places}


def _cell(value: Any) -> str:
    """Return a cell as people read it: no `.0` behind whole numbers, times in ISO form without a needless midnight."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, datetime):
        return value.date().isoformat() if value.time() == time() else value.isoformat(" ", "seconds")
    if isinstance(value, date):
        return value.isoformat()
    return str(value)[:CELL]


def epub(data: bytes, chars: int) -> dict[str, Any]:
    """Read a book chapter by chapter, in the order of its table, until there is enough or the time is over."""
    with _opened_zip(data) as files:
        _require_size(files, INSIDE * 8)
        title, chapters = _spine(files)
        parts = [partial(_chapter_text, files, name) for name in chapters]
        return _join_texts(parts, chars, kind="chapter", title=title)


def _chapter_text(files: zipfile.ZipFile, name: str) -> str:
    return str(read_page(_read_part(files, name, HTML_BYTES))["text"])


def _spine(files: zipfile.ZipFile) -> tuple[str, list[str]]:
    """Return a book's title and the names of its chapters in their order."""
    from xml.etree import ElementTree as ET  # what declares entities is refused before it is parsed

    def parse(name: str) -> Any:
        part = next((each for each in files.infolist() if each.filename == name), None)
        if part is None or part.file_size > OPF_BYTES or _has_doctype(files, part):
            raise UnreadableFile("it is broken, or not what its name says")
        return ET.fromstring(_read_part(files, name, OPF_BYTES))  # noqa: S314

    root = next((each for each in parse("META-INF/container.xml").iter() if each.tag.endswith("}rootfile")), None)
    path = str(root.get("full-path", "")) if root is not None else ""
    package = parse(path)
    title = next((each.text for each in package.iter() if each.tag.endswith("}title") and each.text), "")
    items = {each.get("id"): each.get("href", "") for each in package.iter() if each.tag.endswith("}item")}
    order = [items.get(each.get("idref")) for each in package.iter() if each.tag.endswith("}itemref")]
    folder = posixpath.dirname(path)
    return str(title).strip(), [posixpath.normpath(posixpath.join(folder, unquote(href))) for href in order if href]


def docx(data: bytes, _chars: int) -> dict[str, Any]:
    """Read a Word document through HTML; its pictures and its links to elsewhere are left alone."""
    import mammoth

    try:
        with _opened_zip(data) as files:
            parts = files.infolist()
            # What the list says is what can be unpacked: a part that is longer than it says is cut there.
            _require_size(files, INSIDE, spare="word/media/")
            declares = any(_has_doctype(files, part) for part in parts)
    except zipfile.BadZipFile:
        raise UnreadableFile("it is broken, or not what its name says") from None
    if declares:  # entities that unfold or fetch; no office writes any
        raise UnreadableFile("it is broken, or not what its name says")
    if not any(part.filename == "word/document.xml" for part in parts):
        raise UnreadableFile("this kind of file cannot be read here")
    nothing = mammoth.images.img_element(lambda _: {"src": ""})
    page = mammoth.convert_to_html(io.BytesIO(data), convert_image=nothing).value
    return read_page(page.encode("utf-8", "replace"))


def _has_doctype(archive: zipfile.ZipFile, part: zipfile.ZipInfo) -> bool:
    """Return True if *part* is XML with a document type declaration, in any encoding and behind any comment.

    It is read up to its first element, behind which no declaration can come, by the parser that reads it later.
    """
    from xml.parsers import expat

    found: list[bool] = []
    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = lambda *_: found.append(True)
    parser.StartElementHandler = lambda *_: found.append(False)
    with archive.open(part) as file:
        try:
            while not found and (data := file.read(_PROLOG)):
                parser.Parse(data)
            parser.Parse(b"", not found)
        except expat.ExpatError:
            pass  # no XML, or broken: what was found before that counts
    return found[:1] == [True]


def html(data: bytes, _chars: int) -> dict[str, Any]:
    """Return all text of an HTML file, its title first."""
    found = read_page(data)
    title, text = found.get("title", ""), found["text"]
    if title and text.lstrip("# ").split("\n", 1)[0] != title:
        text = f"{title}\n\n{text}"
    return {"text": text, "is_cut": found["is_cut"]}


def page(data: bytes, chars: str, charset: str, address: str, part: str) -> dict[str, Any]:
    """Return at most *chars* characters of a web page; *part* is ``main`` or ``all``."""
    found = read_page(data, charset=charset, address=address, is_whole=part == "all")
    if not found["text"].strip():
        raise UnreadableFile("there is no text in it")
    return {**found, "text": found["text"][: int(chars)], "is_cut": found["is_cut"] or len(found["text"]) > int(chars)}


_READERS: dict[str, Callable[[bytes, int], dict[str, Any]]] = {
    "pdf": pdf,
    "docx": docx,
    "html": html,
    "archive": archive,
}


if __name__ == "__main__":
    main()
