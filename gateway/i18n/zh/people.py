"""Simplified Chinese: the area `people`; English says what each sentence is for."""

SENTENCES = {
    "owner_now": (
        "现在你是这个机器人的所有者：谁可以给它发消息由你一人决定。`/allow` 让人进来，`/block` 屏蔽某人，其余的见"
        " /help。"
    ),
    "owner_here": "在这里给我发消息的人本来就是所有者。请在你想用来当所有者的那个平台上，私聊把这个认领码发给我。",
    "owner_code_seen": (
        "这里的所有人都看到了这个认领码，所以它已作废。"
        "在我所在的机器上运行 `parlour owner claim` 可得到新的认领码；请私聊发给我。"
    ),
    "allow_whom": "请说明是谁：`/allow 12345`，`/allow here` 表示整个聊天，或用 `/allow` 回复对方的一条消息。",
    "block_whom": "请说明是谁：`/block 12345`，`/block here` 表示这个聊天，或用 `/block` 回复对方的一条消息。",
    "allowed": "从现在起 `{whom}` 可以给我发消息。",
    "allowed_already": "`{whom}` 已经可以给我发消息了。",
    "blocked": "`{whom}` 已被屏蔽。`/allow {whom}` 可以撤回。",
    "blocked_already": "`{whom}` 已经被屏蔽了。",
    "blocked_as": "这和 `{other}` 是同一个人，而你已把对方屏蔽。`/allow {other}` 可以撤回。",
    "owner_set": "`{whom}` 是设置（PARLOUR_OWNERS）里写的所有者，只能在那里更改。",
    "owner_claimed": "`{whom}` 是所有者。要先在我的机器上运行 `parlour owner remove {whom}`。",
    "nobody": "这不是任何人的 id；名字分不清人。请用这个命令回复对方的一条消息，或写出平台上的 id。",
    "only_let_in": "我可以屏蔽人、聊天和服务器；角色或工作区只要有条目允许，就能给我发消息。",
    "elsewhere": "我不知道叫这个名字的渠道；现有：{other}。",
    "none": "还没有允许任何人，除了在我自己的机器上打开我的页面的人。",
    "title": "谁可以给我发消息，谁不可以：",
    "more": "还有 {count} 个；在我的机器上运行 `parlour people list` 可以看到全部。",
    "owner_by_setting": "所有者，来自设置",
    "owner_by_code": "所有者，通过认领码",
    "allowed_by_setting": "可以发消息，来自设置",
    "allowed_by": "可以发消息，由 `{by}` 允许",
    "paired_by": "可以发消息，申请后由 `{by}` 批准",
    "blocked_by": "被 `{by}` 屏蔽",
}
