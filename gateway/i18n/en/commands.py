"""What commands answer."""

SENTENCES = {
    "start": (
        "Hello, I am Parlour. Write to me as you would to a colleague; I answer here and remember what you tell me"
        " to remember.\n\n- `/help` lists what I understand\n- `/new` begins a fresh conversation\n"
        "- `/stop` stops what I am doing"
    ),
    "help_title": "This is what I understand:",
    "help_start": "say hello",
    "help_help": "list the commands",
    "help_new": "begin a fresh conversation; the old one is kept in the archive",
    "help_stop": "stop what I am doing and what waits",
    "help_status": "how I am: model, load, today's tokens",
    "help_queue": "what I am answering and what waits",
    "help_retry": "answer the last message again",
    "help_search": "find what was said or remembered here, `/search the address of the dentist`",
    "help_model": "which model answers here, and choosing another one",
    "help_remember": "keep a fact, for example `/remember I like tea`",
    "help_forget": "clear words from what I remember and from what was said here; `--purge` for good, `everything` all",
    "help_memory": "what I remember here, where it came from, and taking it back",
    "help_dream": "go through what is new now, and tidy what I remember",
    "help_dream-log": "what that changed last, or one change: `/dream-log <change>`",
    "help_dream-restore": "its changes, or `/dream-restore <change>`: as it was before that one",
    "help_link": "two accounts of yours as one person; shows what is linked",
    "help_unlink": "take linked accounts apart again",
    "help_settings": "what is in force in this chat, and who decided it",
    "help_share": "have a fact known in every chat, for example `/share the office is closed on Fridays`",
    "help_unshare": "take words out of what is known in every chat",
    "help_pair": "who asked to be let in; `/pair CODE` lets in whoever was given that code",
    "help_privacy": "what I keep of you, for how long, and who can read it",
    "help_export": "have all that I keep of you sent to you, in a direct chat",
    "help_allow": "let somebody write to me: an id, `here`, or in answer to a message of theirs",
    "help_block": "shut somebody out, in the same ways",
    "help_people": "who may write to me, and who may not",
    "help_usage": "what your messages cost",
    "help_timezone": "show or set the time zone, for example `/timezone Europe/Berlin`",
    "help_language": "show or set the language I speak here, for example `/language de`",
    "new": "New session started.",
    "new_failed": "Memory archival failed, session not cleared. Please try again.",
    "retry": "I will answer that again.",
    "retry_full": "Too many messages are waiting for me, so I did not take that up again. Please try a little later.",
    "nothing_to_retry": "There is nothing to answer again in this conversation.",
    "nothing_to_stop": "Nothing is running and nothing waits.",
    "already_answered": "Too late: the answer is already on its way.",
    "stopped": "Stopped. {queued:# waiting message was|# waiting messages were} dropped too.",
    "stopped_queue": "{queued:# waiting message was|# waiting messages were} dropped; nothing was running.",
    "queue_empty": "Nothing is running and nothing waits.",
    "queue": "Answering {running:# message|# messages}, {waiting} waiting.",
    "queue_doing": "Right now: {tool}. `/stop` ends it.",
    "status": (
        "Parlour {version}, model {model}, up {uptime}.\n{busy} of {workers} workers busy, {queued:# message|#"
        " messages} queued."
        "\nThis chat today: {tokens:# token|# tokens}, cost {cost}, {cached}% of the input from the provider's cache."
    ),
    "status_delayed": "Answers to {chats:# chat|# chats} are delayed: the platform does not take them yet.",
    "status_by_words": "Search goes by words alone: the model that knows what they mean does not answer.",
    "status_work": "Background work: {running} under way, {waiting} waiting, {done} done since I started.",
    "status_kind": (
        "- {kind}: {running} under way, {waiting} waiting (the oldest for {lag}), {failures} failed and tried again,"
        " last run {last} ago"
    ),
    "status_budget": "It has used {spent} of its {limit} tokens of today.",
    "status_budget_spent": "It has used up its {limit} tokens of today; what waits goes on tomorrow.",
    "cost_unknown": "unknown",
    "cost_part": "{cost}, and what is unknown of some calls",
    "usage_today": "Today: {calls:# model call|# model calls}, {tokens:# token|# tokens}, cost {cost}.",
    "usage_month": "Last 30 days: {calls:# model call|# model calls}, {tokens:# token|# tokens}, cost {cost}.",
    "timezone": "The time zone here is {zone}. `/timezone <city>` changes it, `/timezone default` takes that back.",
    "timezone_set": "The time zone is {zone} from now on.",
    "timezone_unknown": "I know no time zone called {zone}. Try one like Europe/Berlin or America/New_York.",
    "timezone_near": "I know no time zone called {zone}. Did you mean {near}?",
    "language": (
        "Here I speak {name}. `/language <code>` changes that: {languages}. `/language default` takes that back."
    ),
    "language_set": "I speak English here from now on. My answers follow the language you write in.",
    "language_unknown": "I do not speak {name}. I speak {languages}.",
    "only_admin": "Only an admin of this chat, or the owner of this bot, may use /{command} here.",
    "only_owner": "Only the owner of this bot may use /{command}.",
    "did_you_mean": "I know no /{name}. Did you mean /{near}?",
    "unknown": "I know no /{name}. /help lists what I understand.",
    "button_gone": "That button does nothing any more.",
    "revoked": "You may no longer write to me here, so I leave this unanswered.",
    "stopped_turn": "Stopped.",
}
