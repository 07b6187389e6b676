"""The words of times in English, German, Spanish and Chinese: numbers, ordinals, weekdays, units, parts of a day."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


def _numbered(*lines: str, start: int = 0) -> Mapping[str, int]:
    """Return the number of its line for each word."""
    return {word: number for number, line in enumerate(lines, start) for word in line.split()}


WEEKDAYS = _numbered(
    "monday montag lunes 一",
    "tuesday dienstag martes 二",
    "wednesday mittwoch miércoles miercoles 三",
    "thursday donnerstag jueves 四",
    "friday freitag viernes 五",
    "saturday samstag sonnabend sábado sabado 六",
    "sunday sonntag domingo 日 天 末",
)
# Words of their own in other places: a weekday only after "last", "on" and the like.
SHORT_WEEKDAYS = _numbered("mon", "tue tues", "wed", "thu thur thurs", "fri", "sat", "sun")
_SMALL = _numbered(
    "a an one ein eine einem einer einen eins un una uno 一",
    "two zwei dos 两 二",
    "three drei tres 三",
    "four vier cuatro 四",
    "five fünf cinco 五",
    "six sechs seis 六",
    "seven sieben siete 七",
    "eight acht ocho 八",
    "nine neun nueve 九",
    "ten zehn diez 十",
    "eleven elf once 十一",
    "twelve dozen zwölf dutzend doce docena 十二",
    "thirteen dreizehn trece",
    "fourteen vierzehn catorce",
    "fifteen fünfzehn quince",
    "sixteen sechzehn dieciséis dieciseis",
    "seventeen siebzehn diecisiete",
    "eighteen achtzehn dieciocho",
    "nineteen neunzehn diecinueve",
    start=1,
)
_TENS = _numbered(
    "twenty zwanzig veinte 二十",
    "thirty dreißig treinta 三十",
    "forty vierzig cuarenta",
    "fifty fünfzig cincuenta",
    "sixty sechzig sesenta",
    "seventy siebzig setenta",
    "eighty achtzig ochenta",
    "ninety neunzig noventa",
    start=2,
)


def _compounds() -> Iterator[tuple[str, int]]:
    """Yield the numbers from 21 to 99 that are written from two words."""
    english = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    german = ["ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
    spanish = ["uno", "dos", "tres", "cuatro", "cinco", "seis", "siete", "ocho", "nueve"]
    for ten, number in _TENS.items():
        for n in range(1, 10):
            if ten.endswith("ty"):
                yield from ((f"{ten}{between}{english[n - 1]}", 10 * number + n) for between in " -")
            elif ten.endswith(("zig", "ßig")):
                yield f"{german[n - 1]}und{ten}", 10 * number + n
            elif ten == "veinte":
                yield f"veinti{spanish[n - 1]}", 20 + n
            elif ten.endswith("a"):
                yield f"{ten} y {spanish[n - 1]}", 10 * number + n


NUMBERS: Mapping[str, int] = {
    **_SMALL,
    "a couple": 2, "a couple of": 2, "couple": 2, "beiden": 2, "couple of": 2, "un par de": 2, "a dozen": 12,
    "ein dutzend": 12, "una docena de": 12, "einem dutzend": 12,
    **{word: 10 * number for word, number in _TENS.items()},
    **dict(_compounds()),
    "hundred": 100, "a hundred": 100, "hundert": 100, "cien": 100,
}  # fmt: skip
# Uncounted amounts: one to six, of longer units than days two to six.
FEW = (
    "few", "paar", "pocas", "a few", "several", "some", "ein paar", "einigen", "einige", "mehreren", "mehrere",
    "wenigen", "wenige", "unos", "unas", "algunos", "algunas", "varios", "varias", "pocos", "pocas", "unos pocos",
    "unas pocas", "unos cuantos", "unas cuantas", "just a few", "几",
)  # fmt: skip
HALVES: Mapping[str, float] = {
    "half": 0.5, "halbe": 0.5, "halbes": 0.5, "halben": 0.5, "half a": 0.5, "half an": 0.5, "a half": 0.5,
    "einem halben": 0.5, "einer halben": 0.5, "ein halbes": 0.5, "eine halbe": 0.5, "einen halben": 0.5, "medio": 0.5,
    "media": 0.5, "半": 0.5, "a quarter of an": 0.25, "einer viertel": 0.25, "un cuarto de": 0.25,
    "one and a half": 1.5, "eineinhalb": 1.5, "anderthalb": 1.5, "two and a half": 2.5, "zweieinhalb": 2.5,
    "three and a half": 3.5, "dreieinhalb": 3.5, "four and a half": 4.5, "viereinhalb": 4.5, "fünfeinhalb": 5.5,
}  # fmt: skip

_STEMS = "zweit dritt viert fünft sechst siebt siebent acht neunt zehnt elft zwölft dreizehnt vierzehnt fünfzehnt"
_STEMS += " sechzehnt siebzehnt achtzehnt neunzehnt zwanzigst"
_ENGLISH_TEENS = "tenth eleventh twelfth thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth"
_ENGLISH = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth"]


def _ordinals() -> Iterator[tuple[str, int]]:
    """Yield the ordinals, from the first to the thirty-first."""
    yield from ((word, n) for n, word in enumerate((*_ENGLISH, *_ENGLISH_TEENS.split(), "twentieth"), 1))
    for n, word in enumerate(_ENGLISH, 21):
        yield from ((f"twenty{between}{word}", n) for between in " -")
    yield from (("thirtieth", 30), ("thirty-first", 31), ("thirty first", 31))
    german = {"erst": 1, "allererst": 1, "siebent": 7, "dreißigst": 30, "einunddreißigst": 31}
    numbers = iter(range(2, 21))
    german |= {stem: next(numbers) for stem in _STEMS.split() if stem != "siebent"}
    units = ["ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
    german |= {f"{unit}undzwanzigst": 20 + n for n, unit in enumerate(units, 1)}
    yield from ((f"{stem}{ending}", n) for stem, n in german.items() for ending in ("e", "en", "er", "es", "em"))
    spanish = [
        "primer",
        "segund",
        "tercer",
        "cuart",
        "quint",
        "sext",
        "séptim",
        "octav",
        "noven",
        "décim",
        "undécim",
        "duodécim",
    ]
    yield from ((f"{stem}{ending}", n) for n, stem in enumerate(spanish, 1) for ending in "oa")
    yield from (
        ("primer", 1),
        ("primero", 1),
        ("primeras", 1),
        ("primeros", 1),
        ("tercer", 3),
        ("setimo", 7),
        ("septimo", 7),
        ("decimo", 10),
        ("decimotercera", 13),
    )


def _from_the_end() -> Iterator[tuple[str, int]]:
    """Yield the ordinals that count from the end, the last as -1."""
    english = {
        -1: (
            "last",
            "final",
            "previous",
            "most recent",
            "latest",
            "vorige",
            "vorigen",
            "voriger",
            "voriges",
            "vorigem",
        ),
        -2: ("second to last", "second-to-last", "second last", "second-last", "next to last", "next-to-last"),
        -3: ("third to last", "third-to-last", "third last", "third-last", "antepenultimate"),
    }
    yield from ((word, n) for n, words in english.items() for word in words)
    yield from (("penultimate", -2), ("last but one", -2), ("last but two", -3), ("fourth to last", -4))
    german = {"letzt": -1, "allerletzt": -1, "vorletzt": -2, "vorvorletzt": -3, "drittletzt": -3, "viertletzt": -4}
    yield from ((f"{stem}{ending}", n) for stem, n in german.items() for ending in ("e", "en", "er", "es", "em"))
    yield from (("últimas", -1), ("últimos", -1), ("ultimas", -1))
    spanish = {"últim": -1, "ultim": -1, "penúltim": -2, "penultim": -2, "antepenúltim": -3, "antepenultim": -3}
    yield from ((f"{stem}{ending}", n) for stem, n in spanish.items() for ending in "oa")


ORDINALS: Mapping[str, int] = dict(_ordinals())
LAST_ORDINALS: Mapping[str, int] = dict(_from_the_end())
# Cardinals are days of a month in Spanish: "el tres de mayo".
SPANISH_DAYS = _numbered(
    "uno primero", "dos", "tres", "cuatro", "cinco", "seis", "siete", "ocho", "nueve", "diez", "once", "doce", "trece",
    "catorce", "quince", "dieciséis dieciseis", "diecisiete", "dieciocho", "diecinueve", "veinte", "veintiuno",
    "veintidós veintidos", "veintitrés veintitres", "veinticuatro", "veinticinco", "veintiséis veintiseis",
    "veintisiete", "veintiocho", "veintinueve", "treinta", start=1,
)  # fmt: skip

UNITS: Mapping[str, str] = {
    name: unit
    for unit, names in {
        "minute": "minute minutes min mins minuten minuto minutos 分钟",
        "hour": "hour hours stunde stunden hora horas 小时 钟头",
        "day": "day days tag tage tagen día días dia dias 天 日",
        "night": "night nights nacht nächte nächten noche noches",
        "week": "week weeks woche wochen semana semanas 周 星期 礼拜",
        "fortnight": "fortnight fortnights quincena quincenas",
        "month": "month months monat monats monate monaten mes meses 月",
        "quarter": "quarter quarters quartal quartals quartale quartalen trimestre trimestres",
        "year": "year years jahr jahre jahren jahrs jahres año años 年",
        "decade": "decade decades jahrzehnt jahrzehnte jahrzehnten década décadas",
        "weekend": "weekend weekends wochenende wochenenden wochenendes fin finde",
    }.items()
    for name in names.split()
}
PARTS_OF_DAY: Mapping[str, tuple[int, int]] = {
    name: hours
    for hours, names in {
        (5, 12): "morning früh morgen vormittag mañana 早上 早晨 上午",
        (11, 14): "noon midday lunchtime mittag mediodía 中午",
        (12, 18): "afternoon nachmittag tarde 下午",
        (17, 24): "evening abend 傍晚",
        (18, 28): "night tonight nacht noche anoche 晚上 夜里 晚",
    }.items()
    for name in names.split()
}
SEASONS: Mapping[str, int] = {
    name: month
    for month, names in {
        3: "spring frühling frühjahr primavera 春天 春季",
        6: "summer sommer verano 夏天 夏季",
        9: "autumn fall herbst otoño 秋天 秋季",
        12: "winter invierno 冬天 冬季",
    }.items()
    for name in names.split()
}
_NEW_YEAR = "new year|new years|new year's|neujahr|año nuevo|元旦"
# Names of feasts: month, day and number of days; days after Easter Sunday, and number of days; or month, weekday, which
# of these in the month, and number of days.
FEASTS: Mapping[str, tuple[int, ...]] = {
    name: when
    for names, when in (
        ("christmas|xmas|weihnachten|weihnachtstage|navidad|navidades|圣诞|圣诞节", (12, 24, 3)),
        ("christmas eve|heiligabend|heiliger abend|nochebuena", (12, 24, 1)),
        ("christmas day", (12, 25, 1)),
        ("boxing day", (12, 26, 1)),
        ("new year's eve|new years eve|silvester|nochevieja|跨年", (12, 31, 2)),
        ("new year's day", (1, 1, 1)),
        (_NEW_YEAR, (12, 31, 2)),
        ("epiphany|dreikönig|reyes|día de reyes", (1, 6, 1)),
        ("valentine's day|valentines day|valentine's|valentinstag|san valentín", (2, 14, 1)),
        ("labour day|tag der arbeit|día del trabajo", (5, 1, 1)),
        ("halloween", (10, 31, 1)),
        ("all saints|all saints' day|allerheiligen|todos los santos", (11, 1, 1)),
        ("nikolaus|nikolaustag", (12, 6, 1)),
        ("easter|ostern|ostertage|pascua|复活节", (-2, 4)),
        ("holy week|karwoche|semana santa", (-7, 8)),
        ("good friday|karfreitag|viernes santo", (-2, 1)),
        ("easter sunday|ostersonntag|domingo de pascua", (0, 1)),
        ("easter monday|ostermontag|lunes de pascua", (1, 1)),
        ("carnival|karneval|fasching|carnaval", (-52, 6)),
        ("rosenmontag", (-48, 1)),
        ("ash wednesday|aschermittwoch|miércoles de ceniza", (-46, 1)),
        ("ascension day|christi himmelfahrt|himmelfahrt|vatertag", (39, 1)),
        ("pentecost|whitsun|pfingsten|pentecostés", (49, 2)),
        ("pfingstmontag|whit monday", (50, 1)),
        ("thanksgiving|thanksgiving day", (11, 3, 4, 1)),
        ("mother's day|mothers day|muttertag", (5, 6, 2, 1)),
    )
    for name in names.split("|")
}
