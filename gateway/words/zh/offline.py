"""Simplified Chinese: the area `offline`; English says what each sentence is for."""

SENTENCES = {
    "remembered": "记下了。我会记住：{fact}",
    "not_remembered": "没能记下来。请再试一次。",
    "found": "关于这个我记得：\n\n{hits}\n\n没有配置语言模型，所以我只是查了一下，没法说更多。",
    "nothing": "关于这个我什么都不记得。{setup}",
    "not_searched": "我现在没法查看我的记忆。{setup}",
    "setup": (
        "没有配置语言模型，所以我不能对话：我会记下你告诉我的（“remember …”），在你问的时候再找出来。运行我的人可以设"
        "置 `PARLOUR_LLM__MODEL`（例如 `openai/gpt-4o-mini`，连同 `PARLOUR_LLM__API_KEY`），然后重新启动我。"
    ),
}
