"""What is asked about memory before it changes."""

SENTENCES = {
    "yes": "Yes",
    "no": "No",
    "several": "Some of what I would remember or forget needs your yes or no:",
    "more": "and {count} more: `/memory pending` shows them.",
    "keep": "remember {line}",
    "forget": "forget {line}",
    "reword": "change {old} to {new}",
    "and_more": "{first}; and {count} more",
    "why_untrusted": "This came up while I had somebody else's words before me, so I ask first. Shall I {what}?",
    "why_many": "That is more than I change by myself, so I ask first. Shall I {what}?",
    "why_deleted": "The message that this came from was deleted. Shall I {what}?",
    "why_other": "I ask before I do this. Shall I {what}?",
    "deleted": "A message was deleted here, and I still remember something that came from it. Shall I forget that too?",
    "settled": "That is settled already, or it lapsed after 14 days. I changed nothing.",
    "approved_before": "That has your yes already, and is done.",
}
