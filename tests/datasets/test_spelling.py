"""One sign, two spellings: a class is spelled as the line tables write it."""

import unicodedata
from pathlib import Path

import pytest

from dubsar.datasets.spelling import EXPANSIONS, code_points


@pytest.mark.parametrize(("glyph", "expected"), [("𒀀", "𒀀"), ("𒎌", "𒈨𒌍"), ("𒊺𒆕", "𒊺𒆕"), ("", "")])
def test_code_points(glyph: str, expected: str) -> None:
    assert code_points(glyph) == list(expected)


def test_expansions_are_final_and_cuneiform() -> None:
    for glyph, spelled in EXPANSIONS.items():
        assert len(glyph) == 1
        assert len(spelled) > 1 or glyph == "𒐼"  # another way to draw the same number
        assert not set(spelled) & set(EXPANSIONS)
        assert all("CUNEIFORM" in unicodedata.name(c) for c in glyph + spelled)


@pytest.mark.data
def test_what_is_expanded_is_a_class_that_the_lines_do_not_write_so(data_root: Path) -> None:
    from dubsar.datasets.inventory import read_inventory
    from dubsar.datasets.lines import read_line_pairs

    glyphs = {c.glyph for c in read_inventory(data_root).classes}
    assert set(EXPANSIONS) <= glyphs
    written = "".join(p.signs for p in read_line_pairs(data_root, "oracc", "train"))
    for glyph, spelled in EXPANSIONS.items():
        assert written.count(spelled) > written.count(glyph), glyph
