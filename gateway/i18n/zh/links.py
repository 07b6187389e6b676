"""Simplified Chinese: the area `links`; English says what each sentence is for."""

SENTENCES = {
    "only_direct": "关联账号要在和我的私聊里进行，不能在这里。",
    "burnt": "这里的其他人能看到那个关联码，所以我把它作废了。请在私聊里用 `/link` 重新开始。",
    "needless": "没有什么可关联的：这里不管谁写，都共用一份记忆。",
    "linked": "这些账号是同一个人：",
    "code": (
        "要关联你的另一个账号，请用那个账号私聊我：`/link {code}`\n这个关联码只能用一次，十分钟内有效。不要给任何人："
        "谁用了它并得到你的同意，就能看到我记住的关于你的内容。"
    ),
    "locked": "错误的关联码太多了。请在 {minutes} 分钟后再试。",
    "wrong": "我不认识这个关联码，或者它已失效。在另一个账号里用 `/link` 可以得到新的。",
    "own": "那已经是同一个人了。请在另一个账号里输入这个关联码。",
    "question": (
        "在这里你是 {mine}。如果你同意，从此 {other} 和你对我来说就是同一个人：**{other} 能看到我记住的关于你的内容**"
        "，包括在这个私聊里说过的一切，能决定你能决定的事，你也能看到对方的。只有两个都是你的才同意：`/link yes` 或 "
        "`/link no`。需要双方在十分钟内都同意。"
    ),
    "yes": "是，两个都是我的",
    "no": "否",
    "waits_for_other": "记下了。现在 {other} 也要同意。",
    "done": "双方都同意了。马上它们对我来说就是同一个人；`/unlink` 可以重新分开。",
    "refused": "没有关联任何账号。",
    "refused_by_other": "另一个账号不同意，所以没有关联。",
    "nothing_asked": "没有什么在等你同意。用 `/link` 开始。",
    "not_linked": "没有其他账号与这个账号关联。",
    "unlink_which": "哪一个要分出去？`/unlink <编号>`",
    "unlinking": (
        "马上 `{account}` 又是单独的一个人。它带走在那里说过和记住的内容；混在一起的留在 `{survivor}`。两边的对话都重"
        "新开始，合在一起时我的回答会从双方的记录中清除。"
    ),
    "share_what": "告诉我大家可以知道什么：`/share 办公室周五休息`。",
    "too_long": "一件事最多 {most} 个字符；请说得短一些，或分成几件事。",
    "unshare_what": "告诉我要去掉哪些词句，至少 {least} 个字符：`/unshare 周五休息`。",
    "shared": "从现在起我在每个聊天里都知道这件事。`/memory shared` 列出它，`/unshare <词句>` 撤回。",
    "unshared": "我撤回了 {lines} 行；每个聊天从下一条消息起就不再知道。",
    "nothing_shared_so": "共享的内容里没有这些词。",
    "nothing_shared": "还没有与所有人共享的内容。",
    "shared_title": "这是我在每个聊天里都知道的；由所有者决定：",
}
