"""What the Dream commands answer, and what a Dream says that somebody asked for."""

SENTENCES = {
    "begins": "I am going through what is new, and will say here what came of it.",
    "begins_later": (
        "What I may spend on such work in a day is used up for today. I will go through what is new when the next day"
        " begins, and say here what came of it."
    ),
    "offline": "There is no model here that could do this; whoever runs me can give me one with `parlour init`.",
    "nothing_new": "There was nothing new to go through since the last time.",
    "done": (
        "I went through {entries:# new summary|# new summaries} and made {changes:# change|# changes} in what I"
        " remember: `{sha}`."
        " `/dream-log {sha}` shows them, `/dream-restore {sha}` takes them back."
    ),
    "no_change": (
        "I went through {entries:# new summary|# new summaries}; nothing in what I remember had to change by itself."
    ),
    "waits": "{waits:# change waits|# changes wait} for a yes: `/memory pending`.",
    "failed": "I could not do it just now: the model did not answer as it should. Nothing is lost; I will try again.",
    "no_changes": "Dream has changed nothing here yet. `/dream` runs it now.",
    "log_title": "What Dream changed here, the newest first. `/dream-restore <change>` returns to the state before it.",
    "log_line": "`{sha}` {at}: {names}",
    "not_dreams": "That change was not Dream's; `/memory diff {sha}` shows it.",
    "restored": (
        "Done: what I remember stands as before `{sha}`, and what others changed since is kept ({kept}). It counts from"
        " your next message on; `/memory undo` takes it back."
    ),
    "is_so": "What I remember stands like that already.",
    "in_the_way": (
        "I cannot go back behind `{sha}`: `{other}` changed the same lines since, or had something forgotten."
        " `/memory undo {sha}` takes back that change alone where it can be done."
    ),
}
