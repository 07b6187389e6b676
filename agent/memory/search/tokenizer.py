"""Convert text to index terms: stemmed words, or character bigrams for scripts without spaces.

SQLite's tokenizer only splits at spaces; the index stores the terms of this module, so an index and its stemmer match.
"""

from __future__ import annotations

import itertools
import threading
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import regex
import Stemmer  # Snowball in C; snowballstemmer, in Python, is ten times slower and loads all its languages

# Names of Snowball's algorithms. Languages with a distinct script are detected without function words.
STEMMERS: Mapping[str, str] = {
    "en": "english",
    "de": "german",
    "fr": "french",
    "es": "spanish",
    "it": "italian",
    "pt": "portuguese",
    "nl": "dutch",
    "sv": "swedish",
    "da": "danish",
    "no": "norwegian",
    "fi": "finnish",
    "pl": "polish",
    "cs": "czech",
    "hu": "hungarian",
    "ro": "romanian",
    "tr": "turkish",
    "ru": "russian",
    "el": "greek",
    "ar": "arabic",
    "hi": "hindi",
    "hy": "armenian",
    "ta": "tamil",
}

_WORDS = {
    "en": """
        a about after all also am an and any are as at be because been before being but by can could did do does doing
        don for from get got had has have having he her here hers him his how i if in into is it its itself just let ll
        may me might more most much my no nor not of off on once only or other our ours out over own re s same shall she
        should so some such t than that the their theirs them then there these they this those through to too up us ve
        very was we were what when where which while who whom whose why will with would you your yours
    """,
    "de": """
        aber alle als also am an auch auf aus bei bin bis bist da damals damit dann das dass dein deine deinem deinen
        deiner dem den denn der des dessen dich die dir doch dort du durch ein eine einem einen einer eines er es etwas
        euch euer für gegen gibt hab habe haben hast hat hatte hatten hattest hier ich ihm ihn ihnen ihr ihre ihrem
        ihren ihrer im in ins ist ja jede jeder jedes jetzt kann kannst kein keine keinen können machen man mehr mein
        meine meinem meinen meiner mich mir mit nach nein nicht noch nur ob oder ohne schon sehr sein seine seinem
        seinen seiner seit sich sie sind so soll sollte über um und uns unser unsere unter viel viele vom von vor wann
        war waren warum was weil welche welchem welchen welcher welches wem wen wenn wer werde werden wessen wie wieder
        will wir wird wo woher wohin wurde wurden zu zum zur zwischen
    """,
    "fr": """
        à ai as au aux avec avez avons avait c ce ceci cela ces cet cette chez comme comment d dans de des dont du elle
        elles en entre es est et été être eu eux il ils j je l la là le les leur leurs lui m ma mais me mes moi mon n ne
        nos notre nous on ont ou où par pas plus pour pourquoi qu quand que quel quelle quelles quels qui quoi s sa sans
        se ses si son sont sur t ta te tes toi ton très tu un une vos votre vous y était
    """,
    "es": """
        a al algo ante aquí así aún como cómo con cuál cuáles cuándo cuando cuánto cuántos de del desde donde dónde el
        él ella ellas ellos en entre era eran eres es esa ese eso esta está están este esto fue fueron ha había han has
        hasta hay he la las le les lo los más me mi mis mucho muy nada ni no nos nosotros nuestra nuestro o otra otro
        para pero por porque qué que quién quien quiénes se ser si sí sin sobre son soy su sus también te tengo tiene tu
        tú tus un una uno unos usted y ya yo
    """,
    "it": """
        a ad agli ai al alla alle anche che chi ci come con cosa da dal dalla dei del della delle di dove e è era erano
        gli ha hai hanno ho i il in io la le lei lo loro lui ma mi mia mie miei mio ne nel nella no noi non o per perché
        più qual quale quali quando quanto quanti questa questo qui se si sì sia sono stata stato su sua sue suo sul ti
        tra tu tua tuo un una uno vi voi
    """,
    "pt": """
        a à ao aos aquela aquele as até com como da das de dela dele do dos e é ela elas ele eles em entre era essa esse
        esta está este eu foi foram há isso isto já la lhe mais mas me mesmo meu minha muito na não nas nem no nos nós
        nossa nosso o onde os ou para pela pelo por porque qual quando quanto quantos que quem são se sem ser seu seus
        só sua suas também te tem tenho ter teu tua um uma você vocês
    """,
    "nl": """
        aan al als bij dan dat de deze die dit doe door dus een en er ge geen had haar heb hebben heeft hem het hij hoe
        hoeveel hun ik in is ja je jij jouw kan kon maar me meer men met mij mijn naar niet nog nu of om omdat ons onze
        ook op over te tot u uit van veel voor waar waarom wanneer waren was wat we wel welke werd wie wij wil worden
        zal ze zich zij zijn zo zou
    """,
    "sv": """
        alla att av blev bli då de dem den denna det detta dig din ditt du där efter ej eller en er ett från för ha hade
        han har hans hon hur i icke in inte ja jag kan kunde man med men mig min mina mitt mot mycket ni nu när och om
        oss på sig sin ska skulle som så till under upp ut vad var varför vem vi vid vilka vilken vill är
    """,
    "da": """
        af alle at blev bliver da de dem den denne der deres det dette dig din dog du efter eller en end er et for fra
        ham han hans har havde hende hun hvad hvem hvis hvor hvordan hvornår i ikke ind jeg jo kan kunne man med meget
        men mig min mine mit mod når nu og også om op os over på sig sin skal skulle som til ud under var vi vil ved
    """,
    "no": """
        alle at av ble blir da de dem den denne der deres det dette deg din du eller en er et etter for fra ham han hans
        har hadde henne hun hva hvem hvis hvor hvordan når i ikke inn jeg kan kunne man med meg men mye min mine mitt
        mot nå og også om opp oss over på seg sin skal skulle som til ut under var vi vil ved
    """,
    "fi": """
        ei en että ette hän he ja jo jos joka kanssa kuin kuka kun me mikä milloin minä minun missä mitä mutta myös ne
        niin nyt ole olen oli on ovat sen se sinä sinun siitä tai tämä te vain voi vai
    """,
    "pl": """
        a aby ale bardzo bez był była było być chce ci co czy dla do gdy gdzie go i ich ile im ja jak jaka jaki jakie
        jego jej jest jestem już kiedy kto który która które ma mam mi mnie moja moje mój może na nam nie niż o od on
        ona oni po pod przez się są ta tak także tam te tego ten to tu ty tylko u w we z za ze że
    """,
    "cs": """
        a aby ale ani až bude být byl byla bylo by co či do ho i já jak jaký jako je jeho její jen jsem jsi jsme jsou k
        kde kdo kdy která které který má mám mě mi můj moje na ne není než o od on ona po pro proč s se si tak také to
        ty u už v ve z za že
    """,
    "hu": """
        a az egy és hogy nem is de van volt meg mi ki hol mikor mit ez azt ha csak már még én te ő mint vagy kell lesz
        miért hogyan nagyon itt ott
    """,
    "ro": """
        a ai al ale am ar are au ca care ce cel cine cu cum când da de din dar este eu fost în îl îmi la le lui mă mai
        mea meu mi nu o pe pentru prin sa sau se si și sunt te tu un una unde și
    """,
    "tr": """
        acaba ama ben bana beni benim bir biz bu çok da daha de değil diye en gibi hangi her için ile kaç ki kim mi mı
        mu nasıl ne neden nerede niçin o olan olarak onun sen sana senin şu ve veya var ya zaman
    """,
    "ru": """
        а без бы был была были было быть в вам вас весь во вот все всё всего вы где да даже для до его ее её если есть
        еще ещё же за и из или им их к как какая какие какой каком какую когда кого который кто куда ли лишь мне меня
        мной мои мой моя моё мы на над нас наш не него нее неё нет ни них но ну о об однако он она они оно от по под при
        с сам свой своя свою себя сколько со так такой там твой твоя тебе тебя то тоже только том тот ты у уже чего чей
        чем что чтобы чья эта эти это этой этом этот я
    """,
    "el": "ο η το οι τα του της των τον την και να με σε από για που τι πώς πού πότε ποιος ποια είναι ήταν θα δεν μου",
    "ar": "في من على إلى عن مع هذا هذه ذلك التي الذي ما ماذا متى أين كيف هل هو هي أنا أنت كان كانت لا لم لن و أو ثم قد",
    "hi": "का की के को में से पर और है हैं था थी थे यह वह क्या कब कहाँ कौन कैसे मैं मेरा मेरी तुम आप नहीं भी ने हो",
    "zh": """
        的 了 是 我 你 他 她 它 们 在 有 和 与 也 都 就 不 没 吗 呢 吧 啊 么 这 那 哪 谁 什 怎 为 到 会 要 把 被
        给 对 从 很 个 着 过 说 上 下 去 来 还 几 多 最 之 其 而 或 但 所 以 于 地 得 里 什么 怎么 为什 哪里
        哪儿 多少 我们 你们 他们 她们 时候 什么时 么时 的时 了什 是什 谁的 哪个 哪天 几个 是谁 有多 多大 怎样
        如何 是否 叫什 么名 在哪 的什 去哪 去了 了哪
    """,
    "ja": """
        の に は を た が で て と し れ さ も な い る か ら こ そ あ ん です ます でし まし した して いつ
        どこ だれ なに 何を 私の は何
    """,
    "ko": "은 는 이 가 을 를 에 의 도 로 와 과 언제 어디 누구 무엇 뭐 어떻 떻게 나의 내가",
}
STOP: Mapping[str, frozenset[str]] = {language: frozenset(words.split()) for language, words in _WORDS.items()}

# Scripts that identify a language; the first one with a third of a text's letters is used.
SCRIPTS: Mapping[str, regex.Pattern[str]] = {
    "ja": regex.compile(r"[\p{Hiragana}\p{Katakana}]"),
    "ko": regex.compile(r"\p{Hangul}"),
    "zh": regex.compile(r"\p{Han}"),
    "ru": regex.compile(r"\p{Cyrillic}"),
    "el": regex.compile(r"\p{Greek}"),
    "ar": regex.compile(r"\p{Arabic}"),
    "hi": regex.compile(r"\p{Devanagari}"),
    "hy": regex.compile(r"\p{Armenian}"),
    "ta": regex.compile(r"\p{Tamil}"),
}
# Letters that Russian does not have: text with them is not stemmed as Russian.
NOT_RUSSIAN = regex.compile(r"[іїєґўјљњћђџѓќѕІЇЄҐЎЈЉЊЋЂЏ]")
# Written without spaces between words.
UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")

_MONTH_NAMES = """
    january jan januar jänner janvier enero gennaio janeiro januari stycznia styczeń января январь январе
    february feb februar février febrero febbraio fevereiro februari lutego luty февраля февраль феврале
    march mar märz mrz mars marzo março maart marca marzec марта март марте
    april apr avril abril aprile kwietnia kwiecień апреля апрель апреле
    may mai mayo maggio maio mei maja maj мая май мае
    june jun juni juin junio giugno junho czerwca czerwiec июня июнь июне
    july jul juli juillet julio luglio julho lipca lipiec июля июль июле
    august aug août agosto augustus augusti sierpnia sierpień августа август августе
    september sep sept septembre septiembre setiembre settembre setembro września wrzesień сентября сентябрь сентябре
    october oct oktober okt octobre octubre ottobre outubro października październik октября октябрь октябре
    november nov novembre noviembre novembro listopada listopad ноября ноябрь ноябре
    december dec dezember dez décembre diciembre dicembre dezembro grudnia grudzień декабря декабрь декабре
"""
MONTHS: Mapping[str, int] = {
    name: number for number, names in enumerate(_MONTH_NAMES.strip().splitlines(), start=1) for name in names.split()
}
# Other words in lower case, or at the start of a sentence.
MONTHS_IN_CAPITALS = frozenset({"may", "mar", "march", "mars", "mai", "maj", "dez"})
VERSION = "1"  # of the terms; an index of another version is rebuilt
PLAIN = ""  # unknown language
_RUN = regex.compile(rf"(?P<signs>{UNSPACED.pattern}[\p{{M}}ー]*)+|(?:(?!{UNSPACED.pattern})[\p{{L}}\p{{M}}\p{{N}}])+")
_SIGN = regex.compile(rf"{UNSPACED.pattern}[\p{{M}}ー]*")
_ALONE = regex.compile(r"[\p{Han}\p{Hangul}]")
_LONGEST = 64  # characters of a word; longer ones (links, keys) are cut
_SURE = 2  # function words that override the language of earlier text
_UNFOLDED = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "æ": "ae", "œ": "oe", "þ": "th", "ð": "d", "ı": "i"})


def words(text: str) -> list[str]:
    """Return the words of *text* in order, lower-case; a run without spaces is one word."""
    return [match.group()[:_LONGEST] for match in _RUN.finditer(unicodedata.normalize("NFKC", text).lower())]


def is_unspaced(word: str) -> bool:
    """Return True if a word is a run of a script without spaces."""
    return UNSPACED.match(word) is not None


def detect(word_list: Sequence[str], *, before: str = PLAIN) -> str:
    """Return the language of *word_list* by script and function words; in doubt, return *before*."""
    letters = "".join(word_list)
    for language, script in SCRIPTS.items():
        # Japanese is mostly Han; a few kana tell it from Chinese.
        share = 0.1 if language == "ja" else 0.34
        if letters and len(script.findall(letters)) > share * len(letters):
            return PLAIN if language == "ru" and NOT_RUSSIAN.search(letters) else language
    votes = Counter(language for word in set(word_list) for language in _languages(word))
    if not votes:
        return before
    best = max(votes.values())
    leading = [language for language, count in votes.items() if count == best]
    if before in leading or (before and best < _SURE):
        return before
    # English wins ties: languages share function words, and English is the most frequent.
    return min(leading, key=lambda language: (language != "en", list(STOP).index(language)))


@lru_cache(maxsize=4_096)
def _languages(word: str) -> tuple[str, ...]:
    return tuple(language for language, stop in STOP.items() if word in stop)


def index_terms(text: str, language: str) -> str:
    """Return the terms of *text* in *language*, separated by spaces, as the index stores them."""
    return " ".join(_terms(words(text), language))


def _terms(word_list: Iterable[str], language: str) -> Iterator[str]:
    for word in word_list:
        if is_unspaced(word):
            yield from grams(word)
        else:
            yield stem(word, language)


def grams(run: str) -> list[str]:
    """Return the bigrams of a run, and its single characters that can be words."""
    signs = _SIGN.findall(run)
    alone = [sign for sign in signs if _ALONE.match(sign) and sign not in STOP["zh"]]
    return [*alone, *(a + b for a, b in itertools.pairwise(signs))]


@lru_cache(maxsize=65_536)
def stem(word: str, language: str) -> str:
    """Return the folded stem of a lower-case word; numbers and words of unknown languages are not stemmed."""
    name = STEMMERS.get(language)
    if name is not None and not any(sign.isdigit() for sign in word):
        word = _stemmers.get(name).stemWord(word)
    return fold(word)


class _StemmerCache(threading.local):
    """Stemmers for each thread, because a stemmer has internal state."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def get(self, name: str) -> Any:
        if name not in self._known:
            self._known[name] = Stemmer.Stemmer(name, 0)  # `stem` is the cache
        return self._known[name]


_stemmers = _StemmerCache()


def fold(word: str) -> str:
    """Return *word* without diacritics on Latin and Greek letters."""
    if word.isascii():
        return word
    apart = unicodedata.normalize("NFKD", word.casefold().translate(_UNFOLDED))
    kept = [sign for n, sign in enumerate(apart) if not (unicodedata.combining(sign) and n and _is_folded(apart, n))]
    return unicodedata.normalize("NFC", "".join(kept))


def _is_folded(apart: str, n: int) -> bool:
    """Return True if the diacritic at *n* is removed; й and が, for example, are separate letters."""
    while n and unicodedata.combining(apart[n]):
        n -= 1
    return unicodedata.name(apart[n], "").startswith(("LATIN", "GREEK")) or apart[n : n + 2] == "е\u0308"


def expand_query_word(word: str, languages: Iterable[str]) -> tuple[str, ...]:
    """Return the possible terms of a query's word in an index of *languages*."""
    if is_unspaced(word):
        found = grams(word)
        known = STOP["zh"] | STOP["ja"] | STOP["ko"]
        return tuple(dict.fromkeys(term for term in found if term not in known)) or tuple(found)
    return tuple(dict.fromkeys([stem(word, language) for language in languages] or [fold(word)]))


# -- data of languages -----------------------------------------------------------------------------
