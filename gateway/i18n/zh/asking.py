"""Simplified Chinese: the area `asking`; English says what each sentence is for."""

SENTENCES = {
    "yes": "是",
    "no": "否",
    "several": "有些内容要记住或忘掉，需要你回答是或否：",
    "more": "还有 {count} 项：`/memory pending` 会列出来。",
    "keep": "记住“{line}”",
    "forget": "忘掉“{line}”",
    "reword": "把“{old}”改成“{new}”",
    "and_more": "{first}；以及另外 {count} 项",
    "why_untrusted": "这是我看到别人的话时想到的，所以先问一下。要我{what}吗？",
    "why_many": "这超出了我自己可以改动的范围，所以先问一下。要我{what}吗？",
    "why_deleted": "这条内容来自一条已被删除的消息。要我{what}吗？",
    "why_other": "做这件事之前我先问一下。要我{what}吗？",
    "deleted": "这里有一条消息被删除了，而我还记着由它而来的内容。要我也忘掉吗？",
    "settled": "这件事已经决定了，或者过了 14 天已失效。我什么都没改。",
    "approved_before": "这件事你已经同意过，也已经做了。",
}
