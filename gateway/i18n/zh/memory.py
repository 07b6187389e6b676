"""Simplified Chinese: the area `memory`; English says what each sentence is for."""

SENTENCES = {
    "remember_what": "告诉我要记住什么：`/remember 我喜欢喝茶`。",
    "too_long": "一件事最多 {most} 个字符；请说得短一些，或分成几件事。",
    "remembered": "我会记住的。",
    "forget_what": "告诉我要忘掉哪些词句，至少 {least} 个字符：`/forget 绿茶`。",
    "empty": "我在这里还没有记住什么。用 `/remember <事情>` 开始。",
    "title": "这是我在这里记住的：",
    "cut": "这是开头，总共 {length} 个字符；`/memory why <词句>` 查找某一行。",
    "usage": (
        "`/memory` 显示我在这里记住的内容\n`/memory shared` 我在每个聊天里都知道的内容\n`/memory why <词句>` 某一行从"
        "哪里来\n`/memory log` 改动过什么\n`/memory diff [改动]` 某一次改动\n`/memory undo <改动>` 撤回一次改动\n"
        "`/memory pending`、`approve <名称>`、`reject <名称>` 等待你同意的内容"
    ),
    "no_changes": "我在这里记住的内容还没有改动过。",
    "no_such_change": "我不知道叫 {sha} 的改动。`/memory log` 会列出它们。",
    "why_what": "告诉我你指的那一行里的几个词：`/memory why 茶`。",
    "no_such_line": "我记住的内容里没有这些词。",
    "undo_what": "告诉我是哪次改动：`/memory log` 会列出它们。",
    "overtaken": "后来的改动建立在它之上，所以不能单独撤回。`/memory log` 会列出它们。",
    "undone": "已撤回。从你的下一条消息起生效。",
    "cause_hand": "手动编辑",
    "cause_remember": "有人让我记住",
    "cause_undo": "改动 `{what}` 被撤回",
    "cause_consolidation": "我总结了之前说过的话",
    "cause_dream": "我过了一遍新内容",
    "cause_restore": "有人回到了 Dream 的改动 `{what}` 之前",
    "summary": "它来自这条摘要：{quote}",
    "cause_approved": "有人同意了等待中的内容",
    "cause_forget": "有人让我忘掉一些词句",
    "waits": "这些在等你同意。`/memory approve <名称>` 执行，`/memory reject <名称>` 放弃；14 天后失效，一切保持原样。",
    "nothing_waits": "这里没有在等你同意的内容。",
    "no_such_waiting": "没有叫这个名称的等待内容。`/memory pending` 会列出等待的内容。",
    "would_remove": "将去掉：{line}",
    "would_reword": "将改写：{old} → {new}",
    "would_add": "将添加或改写：{line}",
    "approve_done": "好了。从你的下一条消息起生效；`/memory undo` 可以撤回。",
    "reject_done": "已放弃。我记住的内容保持原样。",
    "cause_imported": "从 {what} 带来",
    "cause_other": "被改动过",
    "said": "{who} 写道：{quote}",
    "somebody": "某人",
}
