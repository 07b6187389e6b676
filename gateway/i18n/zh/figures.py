"""Simplified Chinese: the area `figures`; English says what each sentence is for."""

SENTENCES = {
    "day": "{year:04d}年{month:d}月{day:d}日",
    "moment": "{day} {hour:02d}:{minute:02d}",
    "clock": "{hour:02d}:{minute:02d}",
    "hours": "{hours} 小时 {minutes} 分钟",
    "days": "{days} 天 {hours} 小时 {minutes} 分钟",
}
