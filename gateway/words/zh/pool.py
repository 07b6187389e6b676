"""Simplified Chinese: the area `pool`; English says what each sentence is for."""

SENTENCES = {
    "full": "等着我的消息太多了（一个聊天最多 {limit} 条），所以没有收下这条。请稍后再发。",
    "expired": "我离开了一天多，所以没有回答你这期间写的内容。请再问一次。",
}
