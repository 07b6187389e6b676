"""Files of quoted messages, when a member of a group is erased: nobody's line keeps them."""

from __future__ import annotations

import json

from agent.memory.erasure.scope_files import ReferencedAttachments
from agent.memory.erasure.word_match import ALL

OWN, QUOTED = "a" * 64, "b" * 64


def line(*, quoted: bool) -> bytes:
    """Return a line of another member with a file of theirs and a second one."""
    files = [{"kind": "image", "blob": f"s/{OWN}"}, {"kind": "image", "blob": f"s/{QUOTED}", "quoted": quoted}]
    fields = {"i": 0, "turn": "t1", "role": "user", "content": "and this?", "files": files}
    return json.dumps(fields).encode() + b"\n"


def test_a_quoted_file_of_another_line_goes_with_the_member() -> None:
    """Its bytes are removed, those of the line's own file are kept."""
    attachments = ReferencedAttachments(ALL, lambda _: False, drops_quoted=True)
    attachments.look(line(quoted=True))
    assert attachments.unreferenced == {QUOTED}


def test_an_erasure_of_words_keeps_what_other_lines_quote() -> None:
    """A file that another line refers to stays."""
    attachments = ReferencedAttachments(ALL, lambda _: False)
    attachments.look(line(quoted=True))
    assert attachments.unreferenced == frozenset()
