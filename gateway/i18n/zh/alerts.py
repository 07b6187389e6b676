"""Simplified Chinese: the area `alerts`; English says what each sentence is for."""

SENTENCES = {
    "channel_down": (
        "从 {since} 起我就收不到 {channel} 的消息了。我会继续尝试；在我的机器上运行 `parlour doctor` 也许能说明原因。"
    ),
    "channel_token": (
        "{channel} 不让我进入：它拒绝了我的令牌。在换上新令牌之前，那里谁的话我都听不到；在我的机器上运行 "
        "`parlour doctor` 会告诉你去哪里获取。"
    ),
    "channel_refused": (
        "按 {channel} 那边现在的设置，它不让我进入。在我的机器上运行 `parlour doctor` 会告诉你要改什么。"
    ),
    "over_channel": "我又能收到 {channel} 的消息了。从 {since} 起一直收不到。",
    "delivery_delayed": (
        "从 {since} 起，{channel} 在一些聊天里不接收我的回答。什么都不会丢：我会在 {until} 再试，之后继续尝试。在我的机"
        "器上运行 `parlour status` 可以看到是哪些聊天以及原因。"
    ),
    "over_delay": "我在 {channel} 的回答又能送达了。有一些从 {since} 起被延迟。",
    "model_failing": (
        "从 {since} 起没有模型回答过，大家收到的是“请再试一次”。在我的机器上运行 `parlour doctor --model` 会说明原因。"
    ),
    "over_model": "模型又能回答了。从 {since} 起一直没有回答。",
    "given_up": (
        "我不得不放弃{count:一条消息|# 条消息}，最后一条在 {chat}：{reason}在我的机器上运行 `parlour turn {turn}` 可"
        "以看到全部经过。"
    ),
    "because_blocked": "对方不再接收我的消息。",
    "because_gone": "平台不认识那个聊天，或者它已不存在。",
    "because_outside": "我不是那个聊天的成员，或者看不到它。",
    "because_rights": "我没有在那里发言的权限。",
    "because_size": "它超过了平台接收的大小。",
    "because_attempts": "无论我试多少次，平台都没有接收。",
    "because_poison": "处理它时我一次又一次出错。",
    "because_other": "它被彻底拒绝了。",
    "disk_low": "我写入的磁盘快满了：还剩 {free}。请腾出一些空间。",
    "disk_full": (
        "我写入的磁盘满了：还剩 {free}。存不下的内容我不会确认，所以不会丢失，但很快我就谁的话都听不到了。请马上腾出"
        "空间。"
    ),
    "over_disk": "磁盘又有空间了。",
    "cap_near": "今天的 token 已用掉 {percent}%：{used}，上限 {limit}。",
    "cap_reached": (
        "今天的 token 用完了：{used}，上限 {limit}。在 {until} 之前我不回答任何人。调高 PARLOUR_CAPS__TOKENS_PER_DAY "
        "并重启就能用更多。"
    ),
    "over_cap": "新的一天开始了，我又可以回答了。",
    "set_aside": (
        "我把{count:一个事件|# 个事件}放到了一边，因为我处理不了，最后一个来自 {channel}。其他一切照常；在我的机器上"
        "运行 `parlour quarantine list` 可以看到是什么。"
    ),
    "killed": (
        "我不是自己停下的，是被强行结束的{count:|，共 # 次}，最后一次在 {since} 之前。当时没做完的，现在正在做完。我"
        "的日志和分给我的内存也许能说明原因。"
    ),
    "login_codes": (
        "可能有人在 {channel} 上猜登录码：一小时内有 {count:一个|# 个}是错的。没有人因此进来，`parlour web login`"
        " 给出的登录码仍然有效。"
    ),
    "owner_codes": (
        "可能有人在 {channel} 上猜所有者的认领码：一小时内有 {count:一个|# 个}是错的。`parlour owner claim` 给出的"
        "认领码仍然有效。"
    ),
    "strangers": (
        "今天在 {channel} 上给我发消息的陌生人超过了我回复的上限：有{count:一条|# 条}消息没有得到回复。"
        "已获准的人不受影响；在我的机器上运行 `parlour why {channel}` 可以看到是谁。"
    ),
}
