"""Which answers of a reminder's turn send nothing."""

from __future__ import annotations

import pytest

from agent.workers.special_turns import is_silence

SILENT = [
    "NOTHING",
    "Nothing",
    "nothing.",
    "NOTHING!",
    "**NOTHING**",
    "__NOTHING__",
    "_Nothing._",
    "`NOTHING`",
    '"NOTHING"',
    "“Nothing.”",
    "„NOTHING“",
    "«NOTHING»",
    "「NOTHING」",
    "NOTHING。",
    "ＮＯＴＨＩＮＧ",
    "> NOTHING",
    "# NOTHING",
    "- Nothing",
    "✅ NOTHING",
    "(nothing)",
    "NOTHING …",
    "\n\n  NOTHING \r\n",
    "```\nNOTHING\n```",
    "---\n\nNOTHING\n\n---",
    "NOTHING to report.",
    "Nothing to report",
    "Nothing new.",
    "Nothing new to report today.",
    "**Nothing** to report at this time.",
    "Nothing to do",
    "Nothing has changed.",
    "NOTHING (no updates)",
    "NOTHING - no news today",
    "Nothing further to report.",
    "NOTHING zu melden.",
    "NOTHING que informar.",
    "I checked the tracker and the mail.\n\nNOTHING",
    "I checked the tracker.\nNothing to report.",
    "Ich habe die Liste geprüft.\n\n**NOTHING**",
    "He revisado la lista.\n\n«NOTHING»",
    "我检查了文件，没有变化。\n\nNOTHING。",
    "NOTHING\n\nI checked the tracker and the mail.",
    "Nothing to report.\n\nThe tracker has the same three lines.",
    "Result:\n\nNOTHING",
    "# Digest\n\nNOTHING to report",
]

SPOKEN = [
    "",
    " \n",
    "```\n```",
    "Nothing is on your calendar, but call Ann",
    "Nothing but trouble: the build is red.",
    "NOTHING is on your calendar, but call Ann",
    "Nothing new, except a mail from Ann.",
    "Nothing about the flat, two lines about the car.",
    "Nothing on Monday.",
    "Nothingness",
    "NOTHINGS",
    "NOTHING1",
    "There is nothing to report.",
    "Almost nothing",
    "Say NOTHING",
    "Two files are new.",
    "Ann wrote.\nNothing from Bob.",
    "Ann wrote: call me.\n\nNothing else.",
    "The builder comes at nine.\n\nNothing more to report.",
    "The builder comes at nine.\n\nTracker:\nNothing new.",
    "# Mail\nAnn wrote.\n\n# Tracker\nNothing new.",
    "**Mail**\nAnn wrote.\n**Tracker**\nNothing.",
    "Ann asks:\n\nNOTHING\n\nIs that the word?",
    "Nichts zu melden.",
    "nothing " + "to report " * 20,
]


@pytest.mark.parametrize("answer", SILENT)
def test_a_first_or_last_line_of_the_word_is_silence(answer: str) -> None:
    """The word alone, in any case and dress, or with an idle tail, says that there is nothing to send."""
    assert is_silence(answer)


@pytest.mark.parametrize("answer", SPOKEN)
def test_a_line_that_says_more_is_an_answer(answer: str) -> None:
    """An answer that only contains the word reaches the person: nothing that was found is lost."""
    assert not is_silence(answer)
