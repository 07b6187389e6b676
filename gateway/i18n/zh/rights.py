"""Simplified Chinese: the area `rights`; English says what each sentence is for."""

SENTENCES = {
    "title": "**我保存的关于这个聊天的内容**",
    "memory": (
        "我记住的：{remembered} 行内容、{summaries} 行摘要、{notes} 条笔记，以及它们的早期版本。`/memory` 可以查看。"
    ),
    "waiting": "{waiting} 件在等你同意的事，最多 14 天：`/memory pending`。",
    "transcripts": "逐字的对话：自 {since} 起 {conversations} 段。",
    "transcripts_none": "逐字的对话：还没有。",
    "files": "双方发送的文件：{files} 个，{size}。",
    "index": "用来再次找到它们的索引，只由以上内容生成。",
    "until_forgotten": "一直保留，直到这里有人让我忘掉。",
    "for_days": "保留 {days} 天，或直到这里有人让我忘掉。",
    "beside": "**除此之外，我为所有聊天一起保存的内容**",
    "journal": "在途的内容：消息文字在回答后保留 7 天，编号保留 30 天，无法送达的保留 90 天。",
    "usage": "每个回答用了多少 token、为谁、什么价格；不含文字。为结算而保留。",
    "uploads": "你在页面上添加的文件，到发送为止，最多两天。",
    "quarantine": "我读不懂的平台事件，最多 90 天。",
    "operator": "备份，运行这台机器的人保留多久就有多久。我的日志里没有你的文字。",
    "readers": "**谁能看到**",
    "readers_you": "只有你；其他给我发消息的人都看不到。",
    "readers_group": "这个聊天里的所有人。我从与你的私聊中知道的内容不在其中。",
    "readers_operator": "运行这台机器的人能读它的文件。",
    "readers_model": (
        "每次提问时，{models} 的提供方会收到对话、其中文件的图片和文字，以及我在这里记住的内容；它保留多久由它自己决"
        "定。"
    ),
    "readers_nobody": "没有模型提供方：任何内容都不会离开这台机器。",
    "readers_listens": "{model} 的提供方会收到语音消息。",
    "readers_embeds": "{model} 的提供方会收到要按意思查找的内容。",
    "readers_platform": "这个应用会保留其中所写内容的副本；那里我够不到。",
    "yours": (
        "**你可以做什么**\n- `/memory` 显示、解释和撤回我记住的内容\n- `/forget <词句>` 清除这里各处的词句，加 "
        "`--purge` 也清除早期版本；`/forget everything` 删除一切\n- 你删除的消息也会在这里删除，并会问你如何处理我由"
        "它得出的内容\n- `/export`，在私聊里，把保存的关于你的一切发给你"
    ),
    "export_begun": "我正在整理保存的关于你的内容。马上会以文件形式发到这里。",
    "export_under_way": "我已经在整理了；文件会发到这里。",
    "export_here_not": "这个我只发到私聊。请在私聊里给我发 `/export`。",
    "export_no_files": "这个聊天里不能发送文件。运行这台机器的人可以为你导出：`parlour people export`。",
    "export_done": (
        "这是我保存的关于你的内容，共 {files} 个文件：记忆、文本和数据形式的对话、文件、用量。一天后我会移除自己的副"
        "本。"
    ),
    "export_left_out": (
        "{count} 个文件太大，无法在这里发送，所以没有包含；其中的 README.md 列出了缺少什么，运行这台机器的人可以把全"
        "部发给你：`parlour people export`。"
    ),
    "readme": (
        "# Parlour 保存的关于你的内容，{day}\n\n{files} 个文件：\n\n- `memory/`：记住的内容、摘要、笔记、等待同意的内"
        "容\n- `conversations/`：说过的话，文本形式（.md）和存储形式（.jsonl）\n- `files/`：双方发送的文件\n- "
        "`usage.csv`：回答的用量\n\n不在其中：在你叫到机器人之前别人说的话、记住内容的早期版本，以及这些太大的文件："
        "\n\n{left_out}\n"
    ),
}
