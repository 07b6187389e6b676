"""Review of edits that change the meaning of a line: a message of the person must say the same.

A denial, and any change of who somebody is, what they may do, their health or their money, needs approval
without such a message. Word lists in English, German, French, Spanish and Chinese; matched by word beginnings.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache

import regex

from agent.memory.editing.document_edits import DocumentEdit
from agent.memory.editing.entry_matching import EntryWords, extract_words, is_inflection
from agent.memory.editing.text_operations import changed_texts


@cache
def _sensitive() -> regex.Pattern[str]:
    # Compiled when an edit is first looked at: a quarter of a MB, and a part of each start.
    return regex.compile(
        r"(?<![\p{L}\p{N}])(?:"
        # health
        r"al+erg|intoleran|intol[eé]r|unverträg|celiac|coeliac|zöliak|cel[ií]ac|diabet|asthma|asma\b|epilep|pregnan|schwanger"
        r"|enceinte|embaraz|medic|medik|médic|insulin|penicil|blood|blut|sang\b|sangre|cancer|krebs|cáncer|hiv\b|aids\b"
        r"|disab|behinder|handicap|discapac|depress|depri|therap|terapi|thérap|diagnos|disease|illness|krank|malad|enferm"
        r"|vaccin|impf|vacun|surgery|operation\b|dose\b|dosage|vegan|vegetari|végétari|halal|kosher|koscher"
        # identity
        r"|names?\b|named|called|born|birth|geboren|geburt|heißt|heisst|appelle|nom\b|prénom|née?\b|naissance|nombre|llama"
        r"|naci|cumplea|marri|verheirat|mariée?|casad|divorc|geschieden|wife|husband|spouse|ehefrau|ehemann|femme|mari\b"
        r"|esposa|esposo|marido|son\b|daughter|mother|father|sister|brother|sohn|tochter|mutter|vater|schwester|bruder|fils"
        r"|fille|mère|père|sœur|frère|hij[oa]|madre|padre|herman[oa]|partner|gender|geschlecht|pronoun|national|staatsang"
        r"|citizen|religio|passport|pass(?:nummer)?\b"
        # permissions
        r"|may\b|allow|permi|authori[sz]|autori[sz]|admin|owner|access|password|trusted|approv|entitled|darf|dürf|erlaub"
        r"|berechtig|zugriff|zugang|passwort|accès|droits?\b|contraseña|acceso|mot de passe"
        # money
        r"|salar|wage|income|account|iban|banks?\b|bank(?:ing|konto)|pays?\b|paid|owes?\b|debt|loan|price|budget|invoice|rent"
        r"|tax|credit|gehalt|lohn|konto|schuld|kredit|preis|rechnung|miete|steuer|salaire|compte|banque|dette|prix|facture"
        r"|loyer|impôt|sueldo|cuenta|banco|deuda|préstamo|precio|factura|alquiler|impuesto|eur\b|usd\b|euros?\b|dollars?\b"
        r")|[$€£¥]"
        # the same in Chinese
        r"|过敏|糖尿|哮喘|怀孕|癌|药|血|疾?病|残疾|手术|疫苗|素食|清真|姓|名字|叫|出生|生日|结婚|离婚|妻子|丈夫|儿子|女儿|母亲|父亲|妈妈"
        r"|爸爸|兄弟|姐妹|国籍|护照|允许|可以|权限|管理员|密码|批准|工资|收入|账[户号]|银行|欠|债|贷款|价格|预算|发票|租金?|税|元",
        regex.IGNORECASE,
    )


def needs_evidence(old: str, new: str) -> bool:
    """Return True if replacing *old* by *new* changes what it means; an addition has no *old*, a removal no *new*."""
    if not new:
        return bool(_sensitive().search(old))
    before, after = extract_words(old), extract_words(new)
    if not old:
        return after.is_negated and bool(_sensitive().search(new))
    if before.is_negated is not after.is_negated:
        return True
    return bool(_sensitive().search(f"{old}\n{new}")) and bool(_added(before, after) or _added(after, before))


def with_evidence(edit: DocumentEdit, messages: Sequence[tuple[int, str]], numbers: Collection[int]) -> DocumentEdit:
    """Return the edit with the number of a message that supports it, the named one first, if there is one.

    *messages* are the person's own, with their numbers; *numbers* are those of all messages that were shown.
    """
    old, new = changed_texts(edit.operation)
    for number, text in sorted(messages, key=lambda each: each[0] != edit.source):
        if _supports(extract_words(text), old, new):
            return replace(edit, source=number, has_evidence=True)
    return edit if edit.source in numbers else replace(edit, source=-1)


def is_correction(edit: DocumentEdit) -> bool:
    """Return True if the edit replaces a statement by another one of the same subject, as the person said."""
    old, new = changed_texts(edit.operation)
    is_related = bool(old and new) and _shares(extract_words(new), _topics(extract_words(old)))
    return is_related and edit.has_evidence


def _supports(message: EntryWords, old: str, new: str) -> bool:
    before, after = extract_words(old), extract_words(new)
    if old and (not new or before.is_negated is not after.is_negated):
        # What is denied or taken back must be named; a denial needs one in the message too.
        is_denied = message.is_negated or before.is_negated or not new
        return is_denied and _shares(message, _topics(before))
    if not old and after.is_negated and not message.is_negated:
        return False
    return _shares(message, _added(before, after) or _topics(after))


def _topics(words: EntryWords) -> Collection[str]:
    """Return the words that carry a statement, without its negations."""
    return [word for word in words.carrying if word not in words.negations]


def _added(before: EntryWords, after: EntryWords) -> Collection[str]:
    return [word for word in _topics(after) if not _says(before, word)]


def _shares(message: EntryWords, words: Collection[str]) -> bool:
    return any(_says(message, word) for word in words)


def _says(words: EntryWords, word: str) -> bool:
    return any(is_inflection(word, other) for other in words.carrying)
