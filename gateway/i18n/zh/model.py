"""Simplified Chinese: the area `model`; English says what each sentence is for."""

SENTENCES = {
    "usual": "这里由 {model} 回答，和各处一样。",
    "chosen": "这里由 {model} 回答：是为这个聊天选的。",
    "decided": "这里由 {model} 回答：是运行我的人为这个聊天决定的。",
    "offered": "你可以选择：\n{models}\n\n`/model <名称>` 选一个，`/model default` 恢复原来的。",
    "none_offered": "没有别的可选。",
    "set": "从下一条消息起，这里由 {model} 回答。",
    "back": "从下一条消息起，这里又由 {model} 回答。",
    "as_before": "和之前一样",
    "near": "我不知道叫 {name} 的模型。你是说 {near} 吗？",
    "unknown": "我不知道叫 {name} 的模型。你可以选择：{models}。",
    "lost": "（为这个聊天选的 `{lost}` 已不可选；现在由 {model} 代为回答。）",
}
