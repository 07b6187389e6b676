"""How days, times and spans are written. English takes the one order of a date that nobody misreads."""

SENTENCES = {
    "day": "{year:04d}-{month:02d}-{day:02d}",
    "moment": "{day} {hour:02d}:{minute:02d}",
    "clock": "{hour:02d}:{minute:02d}",
    "hours": "{hours}h {minutes}m",
    "days": "{days}d {hours}h {minutes}m",
}
