"""Simplified Chinese: the area `caps`; English says what each sentence is for."""

SENTENCES = {
    "person_turns": "十分钟内已有 {limit} 个问题，我能为你回答的就这么多。{until} 之后我再为你服务。",
    "chat_turns": "十分钟内已有 {limit} 个问题，我在这个聊天里能回答的就这么多。{until} 之后我再在这里回答。",
    "own_turns": "十分钟内我自己已开始了 {limit} 项任务，在这里只能做这么多。{until} 之后我再继续。",
    "person_tokens": "一天里我能用在你的问题上的额度用完了。{until} 之后我再为你服务。",
    "chat_tokens": "一天里我能在这个聊天用的额度用完了。{until} 之后我再在这里回答。",
    "own_tokens": "一天里我在这个聊天能用于自己任务的额度用完了。{until} 之后我再继续。",
    "house_tokens": "一天里我能为所有人用的额度用完了。{until} 之后我再回答。",
}
