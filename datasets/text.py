"""The canonical form of transliterated text, and its tokens.

One spelling for what editors write in several ways, so that equal readings compare equal: NFC; ``ḫ`` U+1E2B for every
breve-below spelling; index digits as subscripts; ``{ }`` for determinatives, ``[ ]`` for lost text, ``⸢ ⸣`` for damage;
``…`` for a gap. NFKC is never applied: it would turn a₂ into a2. `CANONICAL_FORM` names the form and is stored with
weights. An index is any digits right after a letter, so ``d10`` (the god) becomes ``d₁₀``; a number alone stays one.
More than 30 marks on one letter, which no script has, are split by U+034F as in Unicode's stream-safe text format (UAX
15): sorting them as one run would take quadratic time.
"""

import re
import unicodedata

CANONICAL_FORM = "dubsar-1: NFC, ḫ U+1E2B, subscript index, {} determinative, [] lost, ⸢⸣ damaged, … gap"

MAX_MARKS = 30
_JOINER = "\u034f"
# every run that may decompose into more than `MAX_MARKS` marks: none of them is a letter, and one gives at most 3
_MAYBE_LONG = re.compile(rf"[^\w\s\x00-\u02ff]{{{MAX_MARKS // 3},}}")
_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
_SPELLINGS = str.maketrans("⌈⌉⌜⌝˹˺〈〉ʹ’˽", "⸢⸣⸢⸣⸢⸣⟨⟩′′ ")
# dropped before composing: left inside, they would keep a letter from its accent
_REMOVED = str.maketrans({"\ufeff": "", "\x00": ""})
_SURROGATE = re.compile("[\ud800-\udfff]")
# ḫ as NFD gives it, with one breve below or several
_BREVE_BELOW = re.compile("([hH])\u032e+")
_INDEX = re.compile(r"(?<=[^\W\d_])(\d+)(?![\d(])")
_TOKEN_BREAK = re.compile(r"[\s\-.+:{}\[\]⸢⸣⟨⟩()]+")


def canonical(text: str) -> str:
    """Return ``text`` in the canonical form. Total: any string is accepted, lone surrogates become U+FFFD."""
    text = _split_marks(_SURROGATE.sub("\ufffd", text).translate(_REMOVED))
    text = _BREVE_BELOW.sub(lambda m: "ḫ" if m[1] == "h" else "Ḫ", unicodedata.normalize("NFD", text))
    text = unicodedata.normalize("NFC", text).translate(_SPELLINGS).replace("...", "…")
    text = _INDEX.sub(lambda m: m[1].translate(_SUBSCRIPTS), text)
    return " ".join(text.split())


def tokens(text: str) -> list[str]:
    """Split canonical text into sign readings: the unit of the sign error rate."""
    return [t for t in _TOKEN_BREAK.split(text) if t]


def _split_marks(text: str) -> str:
    """Put a joiner after every `MAX_MARKS` marks in a row; a text without such a run comes back as it is."""
    if not _MAYBE_LONG.search(text):
        return text
    out: list[str] = []
    run = 0
    for letter in "".join(unicodedata.normalize("NFD", c) for c in text):  # by letter: marks are not sorted yet
        run = run + 1 if unicodedata.category(letter)[0] == "M" and letter != _JOINER else 0
        if run > MAX_MARKS:
            out.append(_JOINER)
            run = 1
        out.append(letter)
    return "".join(out)
