"""Simplified Chinese: the area `usage`; English says what each sentence is for."""

SENTENCES = {
    "left_person_turns": "十分钟内你还可以问 {left} 个问题，共 {limit} 个。",
    "left_person_tokens": "你今天的 {limit} 个 token 还剩 {left} 个。",
    "left_chat_turns": "十分钟内这个聊天还可以问 {left} 个问题，共 {limit} 个。",
    "left_chat_tokens": "这个聊天今天的 {limit} 个 token 还剩 {left} 个。",
    "left_house_tokens": "所有人今天的 {limit} 个 token 还剩 {left} 个。",
    "spent_person_turns": "你十分钟内的 {limit} 个问题用完了，直到 {until}。",
    "spent_person_tokens": "你今天的 {limit} 个 token 用完了；{until} 会有新的。",
    "spent_chat_turns": "这个聊天十分钟内的 {limit} 个问题用完了，直到 {until}。",
    "spent_chat_tokens": "这个聊天今天的 {limit} 个 token 用完了；{until} 会有新的。",
    "spent_house_tokens": "所有人今天的 {limit} 个 token 用完了；{until} 会有新的。",
}
