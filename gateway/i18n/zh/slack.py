"""Simplified Chinese: the area `slack`; English says what each sentence is for."""

SENTENCES = {
    "thinking": "正在思考…",
    "no_files": "我无法发送 {name}：这个应用不能在这里上传文件（缺少权限 files:write）。",
    "write_privately": "这条只给你看，我不能在这里显示：请先私聊我。",
}
