"""Simplified Chinese: the area `console`; English says what each sentence is for."""

SENTENCES = {
    "hello": "你正在和 Parlour 对话。/help 列出命令，/quit 离开，Ctrl-C 停下回答。",
    "prompt": "你 › ",
    "thinking": "正在思考…",
    "gone": "网关不在了。标有 ✓ 的内容已保存，会得到回答。",
    "bye": "再见。",
    "file": "[文件] {name}（{size} 字节）",
    "file_saved": "[文件] {name}（{size} 字节）：已保存为 {place}",
}
