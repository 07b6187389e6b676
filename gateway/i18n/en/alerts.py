"""What owners are told of the house itself: what is wrong, since when, and what to do."""

SENTENCES = {
    "channel_down": (
        "I have not heard {channel} since {since}. I go on trying; `parlour doctor` on my machine may say"
        " what is wrong."
    ),
    "channel_token": (
        "{channel} does not let me in: it refuses my token. Nobody is heard there until it has a new one;"
        " `parlour doctor` on my machine says where to get it."
    ),
    "channel_refused": (
        "{channel} does not let me in as it is set up there. `parlour doctor` on my machine says what to change."
    ),
    "over_channel": "I hear {channel} again. I had not since {since}.",
    "delivery_delayed": (
        "{channel} has not taken my answers in some chats since {since}. Nothing is lost: I try again at {until} and"
        " keep trying. `parlour status` on my machine says which chats, and why."
    ),
    "over_delay": "My answers on {channel} arrive again. Some had been delayed since {since}.",
    "model_failing": (
        "No model has answered since {since}, and people are told to try again. `parlour doctor --model` on my machine"
        " says what is wrong."
    ),
    "over_model": "The model answers again. It had not since {since}.",
    "given_up": (
        "I had to give up {count:a message|# messages}, the last in {chat}: {reason} `parlour turn {turn}` on my"
        " machine tells the whole story."
    ),
    "because_blocked": "the person there takes no messages from me any more.",
    "because_gone": "the platform does not know the chat, or not any more.",
    "because_outside": "I am not a member of that chat, or may not see it.",
    "because_rights": "I am not allowed to write there.",
    "because_size": "it is larger than the platform takes.",
    "because_attempts": "the platform did not take it, however often I tried.",
    "because_poison": "handling it made me stumble again and again.",
    "because_other": "it was refused for good.",
    "disk_low": "The disk I write to is nearly full: {free} are left. Please make room.",
    "disk_full": (
        "The disk I write to is full: {free} are left. What I cannot store I do not confirm, so nothing is lost, but"
        " soon nobody will be heard. Please make room now."
    ),
    "over_disk": "There is room on the disk again.",
    "cap_near": "{percent} % of today's tokens are used: {used} of {limit}.",
    "cap_reached": (
        "Today's tokens are used up: {used} of {limit}. Until {until} I answer nobody. More is allowed with"
        " PARLOUR_CAPS__TOKENS_PER_DAY and a restart."
    ),
    "over_cap": "A new day has begun, and I answer again.",
    "set_aside": (
        "I set aside {count:an event|# events} that I could not handle, the last from {channel}. Nothing else is"
        " held up;"
        " `parlour quarantine list` on my machine shows what it was."
    ),
    "killed": (
        "I did not stop, I was killed{count:| # times}, the last time before {since}. What was not finished then is"
        " being finished now. My log and the memory I am given may say why."
    ),
    "login_codes": (
        "Somebody may be guessing login codes on {channel}: {count:one was|# were} wrong within an hour. Nobody got in"
        " that way, and a code from `parlour web login` still works."
    ),
    "owner_codes": (
        "Somebody may be guessing the code that makes an owner, on {channel}: {count:one was|# were} wrong within an"
        " hour. The code that `parlour owner claim` printed still works."
    ),
    "strangers": (
        "More people whom I do not know wrote to me on {channel} today than I answer: {count:one message|# messages}"
        " got no reply. Whoever is let in notices nothing of it; `parlour why {channel}` on my machine shows who it"
        " was."
    ),
}
