"""Simplified Chinese: the area `settings`; English says what each sentence is for."""

SENTENCES = {
    "title": "这个聊天里生效的是：",
    "everywhere": "和各处一样",
    "block": "和这个平台的所有聊天一样",
    "chosen": "在这里选的",
    "place": "为 `{place}` 决定的",
    "more": "`/model`、`/language` 和 `/timezone` 各自更改自己的；其余由运行我的人决定。",
}
