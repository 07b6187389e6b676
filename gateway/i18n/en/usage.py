"""What is left of what somebody may take, as `/usage` says it."""

SENTENCES = {
    "left_person_turns": "You can ask {left} more of {limit:# question|# questions} within ten minutes.",
    "left_person_tokens": "{left} of your {limit:# token|# tokens} for today are left.",
    "left_chat_turns": "This chat can ask {left} more of {limit:# question|# questions} within ten minutes.",
    "left_chat_tokens": "{left} of this chat's {limit:# token|# tokens} for today are left.",
    "left_house_tokens": "{left} of everybody's {limit:# token|# tokens} for today are left.",
    "spent_person_turns": "Your {limit:# question|# questions} within ten minutes are used up until {until}.",
    "spent_person_tokens": "Your {limit:# token|# tokens} for today are used up; new ones come at {until}.",
    "spent_chat_turns": "This chat's {limit:# question|# questions} within ten minutes are used up until {until}.",
    "spent_chat_tokens": "This chat's {limit:# token|# tokens} for today are used up; new ones come at {until}.",
    "spent_house_tokens": "Everybody's {limit:# token|# tokens} for today are used up; new ones come at {until}.",
}
