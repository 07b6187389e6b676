"""Simplified Chinese: the area `telegram`; English says what each sentence is for."""

SENTENCES = {
    "write_first": (
        "这个回答只给你看，而在 Telegram 里，你先给我发过消息，我才能发给你：请打开与我的私聊，"
        "按“开始”，在那里再问一次。"
    ),
    "privacy": (
        "在这里我只能看到提到我、回复我或以斜杠开头的消息：这是 Telegram 的隐私模式。要让我读到全部，请打开"
        " @BotFather，依次选择 /mybots、我、Bot Settings、Group Privacy、Turn off；然后把我移出这个群再加回来。"
    ),
}
