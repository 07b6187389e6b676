"""Simplified Chinese: the area `frames`; English says what each sentence is for."""

SENTENCES = {
    "bad": "我读不懂这个窗口发来的内容。重新加载通常有用。",
    "empty": "这条消息是空的。",
    "long": "这条消息太长了。上限是 {limit} 个字符。",
    "later": "我现在无法保存消息。你的消息留在这里，会自动重新发送。",
    "full": "这个聊天里排队的消息太多，所以没有收下这条。请稍后再发。",
    "windows": "你已打开 {most} 个窗口。请关闭其中一个，然后重新加载此页面。",
    "file_gone": "这条消息的一个文件已经不在这里了。请重新添加。",
    "rejected": "这条消息没有被收下。",
}
