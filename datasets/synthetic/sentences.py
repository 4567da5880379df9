"""What stands on a synthetic tablet: lines of signs with their transliteration, from a corpus or a small grammar."""

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

LOST = ""  # stands for a lost stretch in a list of glyphs

_BREAK_MARKS = frozenset("…xX□")
_READING = re.compile(r"[^\s\-.+:{}\[\]⸢⸣⟨⟩()…]+")


def _pairs(table: str) -> tuple[tuple[str, str], ...]:
    return tuple((reading, sign) for reading, _, sign in (pair.partition(":") for pair in table.split()))


# reading, sign; syllables that Akkadian and Hittite scribes shared
_SYLLABLES = _pairs(
    """
    a:𒀀 e:𒂊 i:𒄿 u:𒌋 ú:𒌑 an:𒀭 en:𒂗 in:𒅔 im:𒅎 um:𒌝 ba:𒁀 bi:𒁉 bu:𒁍 da:𒁕 di:𒁲 du:𒁺 ga:𒂵 gi:𒄀 gu:𒄖 ka:𒅗 ki:𒆠
    ku:𒆪 la:𒆷 li:𒇷 lu:𒇻 ma:𒈠 me:𒈨 mi:𒈪 mu:𒈬 na:𒈾 ni:𒉌 nu:𒉡 pa:𒉺 ra:𒊏 ri:𒊑 ru:𒊒 sa:𒊓 si:𒋛 su:𒋢 ša:𒊭 ši:𒅆 šu:𒋗
    ta:𒋫 te:𒋼 ti:𒋾 tu:𒌅 za:𒍝 zi:𒍣 zu:𒍪 ar:𒅈 ir:𒅕 ur:𒌨 ab:𒀊 ib:𒅁 ad:𒀜 ak:𒀝 ik:𒅅 al:𒀠 il:𒅋 ul:𒌌 aš:𒀸 iš:𒅖 uš:𒍑
    """
)
_LOGOGRAMS = _pairs("LUGAL:𒈗 KUR:𒆳 É:𒂍 GAL:𒃲 DUMU:𒌉 DINGIR:𒀭 GIŠ:𒄑 LÚ:𒇽 URU:𒌷 UD:𒌓 KÙ:𒆬 GUD:𒄞 UDU:𒇻 MUNUS:𒊩")
COMMON_SIGNS = tuple(sign for _, sign in _SYLLABLES)
_PREPOSITIONS: tuple[tuple[str, ...], ...] = (("a", "na"), ("i", "na"), ("ša",), ("ù",))
_SIGN = dict((*_SYLLABLES, *_LOGOGRAMS, ("ù", "𒅇"), ("meš", "𒈨𒌍")))


@dataclass(frozen=True)
class TextLine:
    """Glyphs in order (`LOST` = a lost stretch), the transliteration, and one reading per glyph where that is known."""

    glyphs: tuple[str, ...]
    text: str
    readings: tuple[str, ...] = ()


def split_glyphs(
    signs: str, sequences: Collection[str], covered: Callable[[str], bool] | None = None
) -> tuple[str, ...]:
    """Split a string of signs into glyphs by greedy longest match.

    Args:
        signs: Unicode signs; spaces are skipped, ``… x X □`` and other characters are lost stretches.
        sequences: glyphs of several code points that count as one sign.
        covered: tells which glyphs can be drawn; others become lost stretches. None: every cuneiform character.

    Returns:
        Glyphs in order, `LOST` for each stretch that is lost.
    """
    longest = max((len(s) for s in sequences), default=1)
    glyphs: list[str] = []
    at = 0
    while at < len(signs):
        if signs[at].isspace():
            at += 1
            continue
        glyph = next(
            (
                signs[at : at + n]
                for n in range(longest, 1, -1)
                if signs[at : at + n] in sequences and at + n <= len(signs)
            ),
            signs[at],
        )
        at += len(glyph)
        known = glyph not in _BREAK_MARKS and (covered or _is_cuneiform)(glyph)
        glyphs.append(glyph if known else LOST)
    return tuple(g for k, g in enumerate(glyphs) if g != LOST or k == 0 or glyphs[k - 1] != LOST)


def attach_readings(glyphs: tuple[str, ...], text: str) -> TextLine:
    """Pair glyphs with the readings of ``text``, if there are as many of one as of the other."""
    readings = tuple(m[0] for m in _READING.finditer(text))
    attested = [g for g in glyphs if g != LOST]
    if len(readings) != len(attested):
        return TextLine(glyphs, text)
    rest = iter(readings)
    return TextLine(glyphs, text, tuple(next(rest) if g != LOST else "" for g in glyphs))


def attested_text(line: TextLine, lost: Sequence[bool]) -> str:
    """Return what can still be read: runs of lost signs become ``[…]``.

    Args:
        line: the line as it was written.
        lost: for each glyph, whether it is lost.

    Returns:
        The text; empty where signs are lost and it is not known which readings they had.
    """
    newly_lost = [k for k, glyph in enumerate(line.glyphs) if lost[k] and glyph != LOST]
    if not newly_lost:
        return line.text
    if not line.readings:
        return ""
    spans = iter([m.span() for m in _READING.finditer(line.text)])
    pieces, end, gone_before = [], 0, False
    for k, glyph in enumerate(line.glyphs):
        if glyph == LOST:
            continue
        start, stop = next(spans)
        if not lost[k]:
            pieces.append(line.text[end:start] + line.text[start:stop])
        elif not gone_before:
            pieces.append(line.text[end:start] + "[…]")
        gone_before, end = lost[k], stop
    text = "".join(pieces) + line.text[end:]
    return text if text.count("{") == text.count("}") else text.replace("{", "").replace("}", "")


def grammar_line(rng: np.random.Generator, n_words: int, covered: Callable[[str], bool] | None = None) -> TextLine:
    """Invent a line of ``n_words`` words: prepositions, logograms with plural sign, syllabic words.

    Args:
        rng: source of randomness.
        n_words: number of words.
        covered: tells which glyphs can be drawn; a word with another one is left out.
    """
    words: list[tuple[str, ...]] = []
    while len(words) < n_words:
        kind = rng.random()
        if kind < 0.15:
            word = _PREPOSITIONS[int(rng.integers(len(_PREPOSITIONS)))]
        elif kind < 0.4:
            word = (_LOGOGRAMS[int(rng.integers(len(_LOGOGRAMS)))][0],) + (("meš",) if rng.random() < 0.3 else ())
        else:
            picks = rng.integers(len(_SYLLABLES), size=int(rng.integers(2, 5)))
            word = tuple(_SYLLABLES[int(k)][0] for k in picks)
        words.append(word)
    drawable = [w for w in words if covered is None or all(covered(_SIGN[r]) for r in w)]
    text = " ".join("-".join(word) for word in drawable)
    readings = tuple(r for word in drawable for r in word)
    return TextLine(tuple(_SIGN[r] for r in readings), text, readings)


def corpus_lines(
    rng: np.random.Generator,
    lines: Sequence[tuple[str, str]],
    sequences: Collection[str],
    covered: Callable[[str], bool] | None,
) -> Iterator[TextLine]:
    """Yield lines of a corpus in order, from a random one on, round and round, without those that hold no sign.

    Args:
        rng: source of randomness.
        lines: pairs of signs and transliteration.
        sequences: see `split_glyphs`.
        covered: see `split_glyphs`.
    """
    start = int(rng.integers(max(1, len(lines))))
    empty = 0
    for step in itertools.count():
        if empty >= len(lines):
            return
        signs, text = lines[(start + step) % len(lines)]
        glyphs = split_glyphs(signs, sequences, covered)
        empty = empty + 1 if not any(glyphs) else 0
        if any(glyphs):
            yield attach_readings(glyphs, text)


def _is_cuneiform(glyph: str) -> bool:
    return all("\U00012000" <= c <= "\U0001254f" for c in glyph)
