"""German: the area `figures`; English says what each sentence is for."""

SENTENCES = {
    "day": "{day:02d}.{month:02d}.{year:04d}",
    "moment": "{day} {hour:02d}:{minute:02d}",
    "clock": "{hour:02d}:{minute:02d} Uhr",
    "hours": "{hours} Std. {minutes} Min.",
    "days": "{days:# Tag|# Tage}, {hours} Std., {minutes} Min.",
}
