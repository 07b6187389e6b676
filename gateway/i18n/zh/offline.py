"""Simplified Chinese: the area `offline`; English says what each sentence is for."""

SENTENCES = {
    "remembered": "记下了。我会记住：{fact}",
    "not_remembered": "没能记下来。请再试一次。",
    "found": "关于这个我记得：\n\n{hits}",
    "nothing": "关于这个我什么都不记得。",
    "not_searched": "我现在没法查看我的记忆。",
    "abilities": (
        "没有设置语言模型，所以我还不能对话。以下功能已经可用：\n\n- “remember …”会记下一件事，你问起时我能找出来\n"
        "- `/search …` 查找这里说过或记下的内容\n- 你发来的文件会保存下来\n- `/help` 列出我还懂什么"
    ),
    "no_model": "没有设置语言模型，所以我只能记下你告诉我的并再找出来，没法说更多。",
    "setup": "运行我的人可以用 `{command}` 设置一个语言模型，然后重新启动我。",
    "hint": "问“{question}”可以知道没有语言模型时能做什么。",
    "start": (
        "你好，我是 Parlour。还没有设置语言模型：我会记下你告诉我的并再找出来，没法说更多。\n\n"
        "- `/remember …` 记下一件事\n- `/search …` 再把它找出来\n- `/help` 列出我懂什么"
    ),
}
