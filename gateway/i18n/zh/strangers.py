"""Simplified Chinese: the area `strangers`; English says what each sentence is for."""

SENTENCES = {
    "code": "我们还不认识。你的配对码是 {code}，一小时内有效：运行我的人一批准，我就回答你。",
    "nobody_direct": "我只回答获准的人。运行我的人可以让你进来。",
    "nobody_here": "我在这里只回答获准的人。运行我的人可以让你进来。",
    "write_to_me": "我在这里只回答获准的人。请私聊我：我会去问运行我的人。",
    "place_waits": "我刚到这里，要等运行我的人说我可以回答。",
    "person": "`{name}`（`{id}`）",
    "person_unnamed": "`{id}`",
    "ask_person": "{who} 在 {channel} 上给我发消息，我不认识对方。我给对方的配对码是 {code}。可以让对方给我发消息吗？",
    "ask_guest": "对方是访客，或来自另一个工作区。",
    "ask_place": "我在 {channel} 上被加入了 {place}。我可以回答那里的所有人吗？",
    "ask_place_by": "{who} 在 {channel} 上把我加入了 {place}。我可以回答那里的所有人吗？",
    "yes": "是",
    "no": "否",
    "welcome": "你已获准：随时可以给我发消息。",
    "decided_let_in": "{who} 现在可以在 {channel} 上给我发消息了。",
    "decided_kept_out": (
        "{who} 在 {channel} 上仍未获准，也没有告知对方。对方明天可以再申请；`/block {entry}` 可以彻底结束。"
    ),
    "decided_place_open": "现在我在 {channel} 的 {who} 里回答所有人。",
    "decided_place_shut": "我在 {channel} 的 {who} 里保持沉默，也不会自己离开：那由你来做。",
    "nobody_waits": "没有人在用这个配对码等待：已经决定了、一小时已过，或者配对码写错了。",
    "locked": "错误的配对码太多：{minutes} 分钟内我不看任何配对码。不带配对码的 `/pair` 会列出谁在等。",
    "waits_none": "没有人在等着进来。",
    "waits": "这些在等你的决定：",
    "waits_person": "{n}. {who}，在 {channel}",
    "waits_place": "{n}. 地点 {who}，在 {channel}",
    "waits_more": "还有 {count} 个在等：`parlour people pending` 会列出来。",
}
