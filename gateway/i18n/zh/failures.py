"""Simplified Chinese: the area `failures`; English says what each sentence is for."""

SENTENCES = {
    "busy": "模型现在很忙。请过一分钟再发一次，或使用 /retry。",
    "unreachable": "我现在连不上模型。/retry 会重试你的上一条消息。",
    "timeout": "模型没有及时回答。/retry 会重试你的上一条消息。",
    "refused": "模型不接受这个请求。需要运行我的人检查设置。",
    "garbled": "模型给的回答我读不懂。/retry 会重试你的上一条消息。",
    "overflow": "这个对话太长，模型装不下了。/new 开始新的对话。",
    "empty": "模型没有给出回答。/retry 会重试你的上一条消息。",
    "loop": "我在这件事上一直绕圈子，所以停下了。可以换个说法吗？",
    "bug": "我这边出了点问题。/retry 会重试你的上一条消息。",
    "poison": "你的消息让我连续出错三次，所以我把它放到了一边。可以换个说法吗？",
    "reference": "{text}（编号 {reference}）",
}
