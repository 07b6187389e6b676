"""Simplified Chinese: the area `search`; English says what each sentence is for."""

SENTENCES = {
    "what": "请说要找什么：`/search 牙医的地址`",
    "nothing": "这里没有说过或记住过类似的内容。",
    "found": "最相关的地方，最好的在前：",
    "bot": "我",
    "by_words": "刚才只按字词搜索，换个说法再试试也许有用。",
    "building": "我还在整理这里说过的话；过一分钟再问可能有更多。",
}
