"""Simplified Chinese: the area `dream`; English says what each sentence is for."""

SENTENCES = {
    "begins": "我正在过一遍新内容，结果会在这里告诉你。",
    "begins_later": "今天能用于这类工作的额度用完了。等新的一天开始，我会过一遍新内容，并在这里告诉你结果。",
    "offline": "这里没有能做这件事的模型；运行我的人可以用 `parlour init` 给我一个。",
    "nothing_new": "自上次以来没有新内容可看。",
    "done": (
        "我看了 {entries} 条新摘要，对我记住的内容做了 {changes} 处改动：`{sha}`。`/dream-log {sha}` 查看，`"
        "/dream-restore {sha}` 撤回。"
    ),
    "no_change": "我看了 {entries} 条新摘要；我记住的内容没有需要自动改动的。",
    "waits": "{waits} 处改动在等你同意：`/memory pending`。",
    "failed": "刚才没能做成：模型没有正常回答。什么都没有丢失；我会再试。",
    "no_changes": "Dream 在这里还没有改过什么。`/dream` 现在就运行它。",
    "log_title": "Dream 在这里做过的改动，最新的在前。`/dream-restore <改动>` 回到那次之前的状态。",
    "log_line": "`{sha}` {at}：{names}",
    "not_dreams": "那次改动不是 Dream 做的；`/memory diff {sha}` 可以查看。",
    "restored": (
        "好了：我记住的内容回到了 `{sha}` 之前的样子，之后别人的改动保留不变（{kept}）。从你的下一条消息起生效；"
        "`/memory undo` 可以撤回。"
    ),
    "is_so": "我记住的内容已经是那样了。",
    "in_the_way": (
        "我无法回到 `{sha}` 之前：`{other}` 之后改了同样的行，或让我忘掉了一些内容。在可行的地方，`/memory undo {sha}"
        "` 只撤回这一次改动。"
    ),
}
