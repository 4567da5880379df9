"""One sign, two spellings: classes of the photographs whose glyph the line tables write with several code points.

A palaeographer counts 𒎌 (MEŠ) as one sign and a classifier names it so; Oracc's Unicode writes it 𒈨𒌍. The
transliterator was trained on the latter, so a recognised sign is spelled out before it is read. Classes of several code
points such as 𒊺𒆕 are spelled out as they are.
"""

EXPANSIONS = {
    "𒎌": "𒈨𒌍",  # MEŠ
    "𒎙": "𒌋𒌋",  # 20
    "𒎏": "𒊩𒌆",  # NIN
    "𒎎": "𒉌𒌓",  # NI.UD
    "𒐼": "𒐉",  # 4
    "𒌘": "𒌓𒌍",  # UD with 30
    "𒐀": "𒀸𒀸",  # two horizontals
}


def code_points(glyph: str) -> list[str]:
    """Spell a sign class as the line tables do."""
    return list(EXPANSIONS.get(glyph, glyph))
