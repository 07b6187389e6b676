"""Simplified Chinese: the area `pool`; English says what each sentence is for."""

SENTENCES = {
    "full": "等着我的消息太多了（一个聊天最多 {limit} 条），所以没有收下这条。请稍后再发。",
    "expired": "我离开了一天多，所以没有回答你这期间写的内容。请再问一次。",
    "set_aside": (
        "我没能收下你的一条消息：读它的时候我一再停止运行。我把它放到了一边，管理我的人已经知道。请换一种说法。"
    ),
}
