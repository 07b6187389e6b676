"""`chats`, `llm.models` and `tools.rights`: what is in force where, and what is wrong with them as one line each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import agent.commands.settings
from gateway.backup import redact_settings
from gateway.events import SessionKey
from gateway.settings import Settings, check_settings
from gateway.settings.chat_settings import (
    DEFAULT_WORDS,
    ChatOverrides,
    ChatSettings,
    ChatTools,
    ProfileSettings,
    open_chats,
)
from tests.fakes.settings import kinds

TOOLS = frozenset({"remember", "send_file", "memory_search"})
FILE = """
llm: {model: openai/gpt-5, models: {fast: openai/gpt-5-mini}}
channels:
  slack: {enabled: false, reply_in: thread}
  discord: {enabled: false}
  telegram-work: {enabled: false, kind: telegram}
chats:
  "slack:*": {language: de, model: fast, memory_window: 10}
  "slack:C042": {language: es, tools: {deny: [send_file]}, caps: {chat_turns_per_10_min: 5, person_turns_per_10_min: 2}}
  "slack:C042/1712.34": {model: openai/gpt-5, caps: {person_turns_per_10_min: 0}, follow_threads: false}
  "discord:guild:811": {group_policy: off, timezone: Asia/Tokyo, tools: {allow: []}}
  "discord:900": {group_policy: open}
  "telegram-work:*": {soul: work.md}
"""


def read(home: Path, text: str, **environment: str) -> Any:
    """Return the report on a home with that file."""
    (home / "parlour.yaml").write_text(text)
    return check_settings({"PARLOUR_HOME": str(home), **environment}, replace(kinds(), tools=TOOLS))


def settings(home: Path, text: str = FILE, **environment: str) -> Settings:
    """Return the settings of a home with that file, and a voice beside it."""
    (home / "work.md").write_text("You speak for the workshop.\n")
    report = read(home, text, **environment)
    assert not report.mistakes, report.mistakes
    found: Settings = report.settings
    return found


def rules(home: Path) -> ChatOverrides:
    """Return the rules of that file."""
    return open_chats(settings(home))


def test_the_most_specific_place_wins_setting_by_setting(tmp_path: Path) -> None:
    """A thread over its chat over its guild over its block, each setting and each cap for itself."""
    chats = rules(tmp_path)
    thread = chats.of(SessionKey("slack", "C042/1712.34"))
    assert (thread.model, thread.language, thread.memory_window) == ("openai/gpt-5", "es", 10)
    assert (thread.caps.chat_turns_per_10_min, thread.caps.person_turns_per_10_min) == (5, 0)
    assert (thread.deny, thread.allow, thread.follow_threads) == (frozenset({"send_file"}), None, False)
    assert thread.said_by["language"] == "slack:C042"
    other = chats.of(SessionKey("slack", "C042/99.1"))
    assert (other.model, other.language, other.follow_threads) == ("fast", "es", None)
    elsewhere = chats.of(SessionKey("slack", "C7"))
    assert (elsewhere.language, elsewhere.deny, elsewhere.caps.chat_turns_per_10_min) == ("de", frozenset(), None)


def test_a_guild_has_settings_of_its_own(tmp_path: Path) -> None:
    """They hold in that guild alone, and a chat of it can say otherwise."""
    chats = rules(tmp_path)
    assert chats.has_guilds
    inside = chats.of(SessionKey("discord", "901"), "811")
    assert (inside.group_policy, inside.timezone, inside.allow) == ("off", "Asia/Tokyo", frozenset())
    assert chats.of(SessionKey("discord", "900"), "811").group_policy == "open"
    assert chats.of(SessionKey("discord", "901"), "812") == ChatOverrides({}).of(SessionKey("discord", "901"), "812")
    # A chat whose id is written like a guild is none: platforms have no such ids.
    assert chats.of(SessionKey("discord", "811")).group_policy is None


PROFILES = """
llm: {model: openai/gpt-5, models: {fast: openai/gpt-5-mini}}
profiles:
  cook: {model: fast, language: de, tools: {allow: [remember, send_file]}}
  clerk: {soul: work.md, tools: {deny: [remember]}, offered: false}
chats:
  "web:*": {profile: clerk, model: openai/gpt-5, soul: Be brief., tools: {deny: [send_file]}}
  "web:ann": {tools: {allow: [memory_search, send_file]}}
"""


def test_a_profile_goes_before_the_places_and_only_takes_tools_away(tmp_path: Path) -> None:
    """Each setting by itself; what is kept for `chats` cannot be chosen; the look-up is merged once."""
    chats = open_chats(settings(tmp_path, PROFILES))
    assert chats.offered_profiles == ("cook",)
    owner, ann = SessionKey("web", "owner"), SessionKey("web", "ann")
    decided = chats.of(owner)
    assert (decided.profile, decided.model, decided.soul) == ("clerk", "openai/gpt-5", "You speak for the workshop.")
    assert (decided.allow, decided.deny) == (None, frozenset({"remember", "send_file"}))
    assert (decided.said_by["profile"], decided.said_by["soul"]) == ("web:*", "profiles.clerk")
    chosen = chats.of(ann, chosen="cook")
    assert (chosen.profile, chosen.model, chosen.language, chosen.soul) == ("cook", "fast", "de", "Be brief.")
    assert (chosen.allow, chosen.deny) == (
        frozenset({"send_file"}),
        frozenset({"send_file"}),
    )  # of the two that the chat has
    assert ("profile" in chosen.said_by, chosen.said_by["model"]) == (False, "profiles.cook")
    assert chats.of(ann, chosen="cook") is chosen
    for name in ("clerk", "nobody"):
        assert chats.of(owner, chosen=name) is decided
    elsewhere = chats.of(SessionKey("slack", "C1"), chosen="cook")
    assert (elsewhere.profile, elsewhere.allow) == ("cook", frozenset({"remember", "send_file"}))
    assert chats.of(SessionKey("slack", "C1"), chosen="clerk") == ChatOverrides({}).of(owner)


@pytest.mark.parametrize(
    ("chat", "profile", "both"),
    [
        ("mcp_gh, remind", "mcp_gh_list", "mcp_gh_list"),
        ("mcp_gh_list", "mcp_gh, remind", "mcp_gh_list"),
        ("mcp_gh, mcp_cal_add", "mcp_gh, mcp_cal", "mcp_gh mcp_cal_add"),
        ("mcp_gh_list", "mcp_gh_close", ""),
        ("mcp_gh", "mcp_ghost_list", ""),
        ("send_file", "send_file_twice", ""),  # no tools of a service: one is not the other
    ],
)
def test_a_service_in_one_list_stands_for_its_tools_in_the_other(
    tmp_path: Path, chat: str, profile: str, both: str
) -> None:
    """What both allow is left, in whichever form either list names it, and nothing that one of them leaves out."""
    lists = {name: ChatTools(allow=tuple(text.split(", "))) for name, text in (("chat", chat), ("profile", profile))}
    chats = ChatOverrides(
        {"web:ann": ChatSettings(tools=lists["chat"])}, profiles={"cook": ProfileSettings(tools=lists["profile"])}
    )
    assert chats.of(SessionKey("web", "ann"), chosen="cook").allow == frozenset(both.split())


def test_the_words_for_no_profile_are_those_of_the_commands() -> None:
    """A profile with such a name could not be chosen."""
    assert DEFAULT_WORDS == agent.commands.settings._DEFAULT_WORDS


def test_a_profile_is_set_by_variables(tmp_path: Path) -> None:
    """One setting, and the whole mapping."""
    named = settings(
        tmp_path, "", PARLOUR_PROFILES__COOK__MODEL="openai/x", PARLOUR_PROFILES__COOK__TOOLS__DENY="remember"
    )
    assert (named.profiles["cook"].model, named.profiles["cook"].tools.deny) == ("openai/x", ("remember",))
    whole = settings(tmp_path, "", PARLOUR_PROFILES='{"cook": {"effort": "low"}}')
    assert whole.profiles["cook"].effort == "low"


def test_a_look_up_is_merged_once(tmp_path: Path) -> None:
    """However many chats ask, what they are told is one object for each way to be named."""
    chats = rules(tmp_path)
    found = {id(chats.of(SessionKey("slack", f"C{number}"))) for number in range(1_000)}
    assert len(found) == 1


def test_a_voice_is_a_text_or_a_file_of_the_home(tmp_path: Path) -> None:
    """What ends like a file's name is one, read at the start; anything else is the voice itself."""
    assert rules(tmp_path).of(SessionKey("telegram-work", "5")).soul == "You speak for the workshop."
    said = open_chats(settings(tmp_path, 'chats: {"web:*": {soul: "Be brief."}}'))
    assert said.of(SessionKey("web", "owner")).soul == "Be brief."


def entry(place: str, said: str) -> str:
    """Return a file that says *said* of *place*, and knows one model to choose."""
    return f"llm: {{models: {{fast: openai/gpt-5-mini}}}}\nchats: {{'{place}': {{{said}}}}}\n"


WRONG = {
    "no-place": (entry("here", "language: de"), "'here' is not a chat; write channel:chat_id"),
    "team": (entry("slack:team:T1", "language: de"), "a Slack channel is a whole workspace; write slack:*"),
    "role": (entry("discord:role:5", "language: de"), "'discord:role:5' is a role"),
    "chat-entry": (entry("slack:chat:C1", "language: de"), "write slack:C1, without chat:"),
    "blank": (entry("slack:C1 ", "language: de"), "with the id and without spaces"),
    "channel": (entry("telegam:5", "language: de"), "no channel is called 'telegam'; did you mean telegram?"),
    "setting": (entry("web:a", "langauge: de"), "did you mean chats.web:a.language?"),
    "cap": (entry("web:a", "caps: {tokens_per_day: 5}"), "tokens_per_day in parlour.yaml is not a setting of Parlour"),
    "value": (entry("web:a", "reply_in: tread"), "did you mean thread?"),
    "zone": (entry("web:a", "timezone: Berlin"), "use an IANA name such as Europe/Berlin"),
    "number": (entry("web:a", "memory_window: many"), "must be a whole number"),
    "tool": (entry("web:a", "tools: {deny: [send_fil]}"), "no tool is called 'send_fil'; did you mean send_file?"),
    "tools": (entry("web:a", "tools: [remember]"), "must be a group of settings"),
    "thread-zone": (
        entry("slack:C012/1.2", "timezone: UTC"),
        "not per thread; set it for slack:C012",
    ),
    "thread-cap": (entry("slack:C012/1.2", "caps: {chat_tokens_per_day: 5}"), "not per thread"),
    "model": (entry("web:a", "model: fas"), "llm.models has no model 'fas'; did you mean fast?"),
    "bare": (entry("web:a", "model: gpt-5"), "add it there, or write it with its provider (openai/gpt-5)"),
    "voice": (entry("web:a", "soul: none.md"), "none.md cannot be read"),
    "outside": (entry("web:a", "soul: ../secrets.md"), "is outside the home folder"),
    "no-voice": (entry("web:a", "soul: ' '"), "soul in parlour.yaml is empty"),
    "alias": ("llm: {models: {'a b': openai/x}}", "'a b' is not a valid model name"),
    "default": ("llm: {models: {default: openai/x}}", "'default' always means llm.model"),
    "long": (f"llm: {{models: [openai/{'x' * 60}]}}", "is too long for a button"),
    "key": ("llm: {models: {fast: {model: openai/x, api_keys: x}}}", "did you mean llm.models.fast.api_key?"),
    "no-model": ("llm: {models: {fast: {api_key: canary-key}}}", "MODEL is required; set it"),
    "right-of-none": ("tools: {rights: {send_fil: {who: admin}}}", "called 'send_fil'; did you mean send_file?"),
    "right-of-no-kind": ("tools: {rights: {acts: {ask: always}}}", "called 'acts'; did you mean act?"),
    "right-setting": ("tools: {rights: {act: {whom: admin}}}", "did you mean tools.rights.act.who?"),
    "right-who": ("tools: {rights: {act: {who: admins}}}", "did you mean admin?"),
    "right-where": ("tools: {rights: {act: {where: [groups]}}}", "must be 'direct' or 'shared'"),
    "right-nowhere": ("tools: {rights: {act: {where: []}}}", "at least 1 item"),
    "right-ask": ("tools: {rights: {act: {ask: never}}}", "must be 'tainted', 'first' or 'always'"),
    "profile": (
        "profiles: {cook: {effort: low}}\nchats: {'web:a': {profile: cok}}",
        "called 'cok'; did you mean cook?",
    ),
    "no-profiles": (
        entry("web:a", "profile: cook"),
        "chats.web:a.profile in parlour.yaml: no profile is called 'cook'",
    ),
    "profile-name": ("profiles: {Der Koch: {effort: low}}", "'Der Koch' is not a valid profile name; use a-z"),
    "profile-default": ("profiles: {default: {effort: low}}", "'default' always means no profile"),
    "profile-long": (f"profiles: {{{'x' * 41}: {{effort: low}}}}", "at most 40 characters"),
    "profile-model": (
        "profiles: {cook: {model: gpt-5}}",
        "profiles.cook.model in parlour.yaml: llm.models has no model",
    ),
    "profile-tool": ("profiles: {cook: {tools: {allow: [send_fil]}}}", "'send_fil'; did you mean send_file?"),
    "profile-voice": ("profiles: {cook: {soul: none.md}}", "none.md cannot be read"),
    "profile-language": ("profiles: {cook: {language: klingon}}", "is not a supported language"),
    "profile-setting": ("profiles: {cook: {timezone: UTC}}", "profiles.cook.timezone in parlour.yaml is not a setting"),
    "profile-value": ("profiles: {cook: 5}", "must be a group of settings"),
    "not-a-list": ("llm: {models: [{a: b}]}", "must be a group of settings"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_one_line(tmp_path: Path, case: str) -> None:
    """With the place, the mend, and never the value of a secret."""
    text, expected = WRONG[case]
    found = read(tmp_path, "channels: {slack: {enabled: false}, discord: {enabled: false}}\n" + text).mistakes
    assert len(found) == 1, found
    assert expected in found[0]
    assert "canary" not in found[0]


def test_ids_are_asked_for_where_the_platform_has_them(tmp_path: Path) -> None:
    """A channel's name is none of a chat's, and a platform without guilds has none."""
    blocks = (
        "channels:\n  slack: {enabled: false}\n  telegram: {enabled: false}\n"
        "chats: {'slack:general': {language: de}, 'telegram:guild:5': {language: de}}\n"
    )
    found = read(tmp_path, blocks).mistakes
    assert len(found) == 2
    assert "'general' is not a chat id" in found[0] or "is not a chat id of this platform" in found[0]
    assert "this platform does not support guild:ID" in found[1]


def test_models_are_a_list_or_have_names(tmp_path: Path) -> None:
    """Both at once too, from the file, the environment and secret files; a list replaces what is weaker."""
    text = "llm: {models: {fast: openai/gpt-5-mini, House: {model: ollama/llama3, apiBase: 'http://127.0.0.1:1'}}}"
    both = settings(
        tmp_path,
        text,
        PARLOUR_LLM__MODELS__CAREFUL__MODEL="anthropic/claude",
        PARLOUR_LLM__MODELS__CAREFUL__API_KEY="canary",
    )
    named = {name: (each.model, each.api_base) for name, each in both.llm.models.items()}
    assert named == {
        "fast": ("openai/gpt-5-mini", None),
        "House": ("ollama/llama3", "http://127.0.0.1:1"),
        "careful": ("anthropic/claude", None),
    }
    assert "canary" not in repr(both)
    listed = settings(tmp_path, text, PARLOUR_LLM__MODELS="openai/a, openai/b")
    assert [(name, each.model) for name, each in listed.llm.models.items()] == [
        ("openai/a", "openai/a"),
        ("openai/b", "openai/b"),
    ]


def test_a_models_key_is_a_secret(tmp_path: Path) -> None:
    """It may stand in a file of its own, and no backup has it."""
    (tmp_path / "key").write_text("canary-key\n")
    text = f"llm:\n  models:\n    fast: {{model: openai/a, api_key_file: {tmp_path / 'key'}}}\n"
    key = settings(tmp_path, text).llm.models["fast"].api_key
    assert key is not None
    assert key.get_secret_value() == "canary-key"
    written = tmp_path / "parlour.yaml"
    written.write_text("llm:\n  models:\n    fast: {model: openai/a, api_key: canary-key}\n")
    kept, hidden = redact_settings(written)
    assert kept is not None
    assert "canary-key" not in kept
    assert hidden == ["llm.models.fast.api_key"]


LLM = {
    "PARLOUR_LLM__MODEL": "openai/gpt-5",
    "PARLOUR_LLM__API_BASE": "https://proxy.example/v1",
    "PARLOUR_LLM__API_KEY": "house-key",
    "PARLOUR_LLM__CONTEXT_WINDOW": "9000",
    "PARLOUR_LLM__VISION": "off",
}
ENTRIES = """
llm:
  models:
    fast: openai/gpt-5-mini
    careful: {model: anthropic/claude, api_key: other-key}
    house: {model: ollama/llama3, api_base: 'http://127.0.0.1:11434', context_window: 32000, vision: 'on'}
    bare: {model: ollama/tiny}
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("openai/gpt-5", ("openai/gpt-5", "https://proxy.example/v1", "house-key", 9_000, "off")),
        ("fast", ("openai/gpt-5-mini", "https://proxy.example/v1", "house-key", None, "auto")),
        ("careful", ("anthropic/claude", None, "other-key", None, "auto")),
        ("house", ("ollama/llama3", "http://127.0.0.1:11434", None, 32_000, "on")),
        ("bare", ("ollama/tiny", None, None, None, "auto")),
        ("mistral/large", ("mistral/large", None, None, 9_000, "off")),
    ],
)
def test_address_and_key_go_to_their_own_provider_alone(tmp_path: Path, name: str, expected: tuple[Any, ...]) -> None:
    """Three providers at once: what is set for one of them is sent to no other."""
    entry = settings(tmp_path, ENTRIES, **LLM).llm.entry(name)
    key = entry.api_key.get_secret_value() if entry.api_key else None
    assert (entry.model, entry.api_base, key, entry.context_window, entry.vision) == expected


def test_the_usual_model_may_be_one_of_those_to_choose_from(tmp_path: Path) -> None:
    """Then its own key is that of its provider's others, and what `llm` says beside fills what it leaves open."""
    llm = settings(tmp_path, ENTRIES, **{**LLM, "PARLOUR_LLM__MODEL": "careful"}).llm
    usual, other, elsewhere = llm.entry("careful"), llm.entry("anthropic/haiku"), llm.entry("fast")
    assert (usual.model, usual.context_window, usual.vision) == ("anthropic/claude", 9_000, "off")
    assert other.api_key == usual.api_key
    assert (elsewhere.api_key, elsewhere.api_base) == (None, None)
    asking = llm.asking()
    assert (asking.model, asking.api_key, asking.context_window) == ("anthropic/claude", usual.api_key, 9_000)
    assert asking.asking() == asking
    assert llm.asking("house").api_base == "http://127.0.0.1:11434"
