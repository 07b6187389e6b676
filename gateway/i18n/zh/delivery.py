"""Simplified Chinese: the area `delivery`; English says what each sentence is for."""

SENTENCES = {
    "may_repeat": "（这条你可能已经看过：我无法确定它是否已送达。）",
    "cut": "（我的回答太长，到这里为止。可以让我接着说，或要一个更短的。）",
    "stopped_here": "（在此停下。）",
    "outcome_unknown": "我不知道这是否已经发生：{what}（编号 {reference}）。",
    "staged_dropped": "原本要记住或发送的内容都没有保留。",
    "goes_on": "（回答还在继续，稍后会发送全文。）",
    "next_message": "（见我的下一条消息。）",
    "in_the_file": "完整的回答在文件里。",
    "no_files": "（这里应有一个文件 {name}，但我不能在这个聊天里发送文件。）",
    "file_large": "（这里应有一个文件 {name}，但它有 {size}，而我最多能发送 {limit}。）",
    "file_lost": "（这里应有一个文件 {name}，但我这里已经没有它了。）",
    "file_refused": "（这里应有一个文件 {name}，但它没有被接收。）",
    "placeholder": "…",
    "working": "我还在处理。/stop 可以停下。",
    "doing": "{what}。/stop 可以停下。",
}
