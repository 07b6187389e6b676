"""What stands in the terminal chat."""

SENTENCES = {
    "hello": "You are talking to Parlour. /help lists the commands, /quit leaves, Ctrl-C stops an answer.",
    "prompt": "you › ",
    "thinking": "thinking …",
    "gone": "The gateway is gone. What was marked with ✓ is stored and will be answered.",
    "bye": "Bye.",
    "file": "[file] {name} ({size} bytes)",
    "file_saved": "[file] {name} ({size} bytes): saved as {place}",
}
