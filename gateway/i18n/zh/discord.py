"""Simplified Chinese: the area `discord`; English says what each sentence is for."""

SENTENCES = {
    "write_privately": "这条只给你看，而你不接收我的私信。请先私聊我。",
    "option": "需要时填写对象或内容",
    "thread": "对话",
}
