"""Synthetic tablets: sign shapes from fonts, and the text that is written with them."""

import os
import pickle
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dubsar.datasets.synthetic import glyphs, sentences
from dubsar.datasets.synthetic.clay import Pose, Stylus, press
from dubsar.datasets.synthetic.glyphs import FontError, GlyphFont, available_fonts, load_assyrian, load_font, load_noto
from dubsar.datasets.synthetic.sentences import LOST, attach_readings, attested_text, split_glyphs

TABLE = Path(os.environ.get("DUBSAR_DATA", "../shared/data")) / "sign-list" / "assyrian_font.tsv"


def _loaded(load, *args) -> GlyphFont:
    try:
        return load(*args)
    except FontError as error:
        pytest.skip(f"font not installed: {error}")


@pytest.fixture(scope="module")
def noto() -> GlyphFont:
    return _loaded(load_noto)


@pytest.fixture(scope="module")
def assyrian() -> GlyphFont:
    if not TABLE.is_file():
        pytest.skip(f"{TABLE} is absent; set DUBSAR_DATA")
    return _loaded(load_assyrian, TABLE)


# --- fonts ---


def test_a_missing_font_names_the_package_and_the_folder(tmp_path):
    with pytest.raises(FontError, match=rf"NotoSansCuneiform.*{tmp_path}.*apt install fonts-noto-core"):
        load_noto([tmp_path])
    table = tmp_path / "table.tsv"
    table.write_text("glyph\tfont_codepoint\n𒀀\tU+F55E0\n", encoding="utf-8")
    with pytest.raises(FontError, match=r"fonts-ancient-scripts.*fonts-noto-core"):
        available_fonts(table, folders=[tmp_path])
    with pytest.raises(FontError, match="no font folder"):
        load_noto([])


def test_a_file_that_is_no_font_is_refused(tmp_path):
    path = tmp_path / "broken.ttf"
    path.write_bytes(b"not a font")
    with pytest.raises(FontError, match=r"broken\.ttf.*expected a \.ttf"):
        load_font(path)
    with pytest.raises(FontError, match="absent"):
        load_font(tmp_path / "absent.ttf")


def test_a_malformed_table_is_refused(tmp_path, noto):
    (tmp_path / "Assyrian.ttf").write_bytes(noto.path.read_bytes())
    table = tmp_path / "table.tsv"
    with pytest.raises(FontError, match=r"table\.tsv.*not readable"):
        load_assyrian(table, [tmp_path])
    table.write_text("glyph\tfont_codepoint\n𒀀\tU+XYZ\n", encoding="utf-8")
    with pytest.raises(FontError, match=r"table\.tsv.*malformed.*font_codepoint"):
        load_assyrian(table, [tmp_path])


def test_the_module_says_that_no_font_is_hittite():
    assert "No font in a registry has Hittite sign shapes" in (glyphs.__doc__ or "")


def test_mask_is_cropped_to_ink_and_scaled_by_the_full_sign_height(noto):
    for height in (20, 64):
        mask_HW = noto.mask("𒈗", height)
        assert mask_HW.dtype == np.uint8
        assert mask_HW[0].any()
        assert mask_HW[-1].any()
        assert mask_HW[:, 0].any()
        assert mask_HW[:, -1].any()
        assert 0.8 * height < mask_HW.shape[0] < 1.3 * height
    assert noto.mask("𒀸", 64).shape[0] < 40, "AŠ, one horizontal wedge, is a low sign"
    assert noto.mask("𒈗", 64) is noto.mask("𒈗", 64), "cached"


def test_uncovered_signs_are_refused_by_name(noto):
    assert noto.covers("𒀀")
    for absent in ("\U0001239a", "A\U0010fffe", "", " "):
        assert not noto.covers(absent)
    with pytest.raises(FontError, match=r"noto has no glyph.*U\+1239A"):
        noto.mask("\U0001239a", 32)
    with pytest.raises(FontError, match="height_px is 0"):
        noto.mask("𒀀", 0)


def test_glyphs_of_several_code_points_are_set_side_by_side(noto):
    a, an, both = (noto.mask(g, 64) for g in ("𒀀", "𒀭", "𒀀𒀭"))
    assert both.shape[1] > a.shape[1] + an.shape[1] - 2
    assert np.array_equal(both[:, : a.shape[1]].any(0), a.any(0)), "the first code point stands left"


@pytest.mark.data
def test_assyrian_sequences_and_fallback(assyrian):
    assert "𒀀𒀭" in assyrian.sequences
    both, an = assyrian.mask("𒀀𒀭", 64), assyrian.mask("𒀭", 64)
    assert both.shape[1] > an.shape[1] * 1.4
    alone = GlyphFont(assyrian.path, "alone", {"𒀀": "\U000f55e0"})
    assert not alone.covers("𒀭")
    with_fallback = GlyphFont(assyrian.path, "both", {"𒀀": "\U000f55e0"}, _loaded(load_noto))
    assert with_fallback.covers("𒀭")
    assert np.array_equal(with_fallback.mask("𒀭", 40), _loaded(load_noto).mask("𒀭", 40))


@pytest.mark.data
def test_the_table_covers_its_signs(assyrian):
    missing = [g for g in assyrian.sequences if not assyrian.covers(g)]
    assert not missing


def test_fonts_travel_to_workers(noto):
    copy = pickle.loads(pickle.dumps(noto))
    assert np.array_equal(copy.mask("𒂗", 30), noto.mask("𒂗", 30))


def test_glyphs_are_not_mirrored(noto):
    """AŠ has its head at the left, DIŠ at the top: in the font, in the field, and when pressed."""
    for glyph, axis in (("𒀸", 0), ("𒁹", 1)):
        depth_HW = press(noto.shape(glyph), Pose(60, 60, 64), Stylus(1.0, 1.0, 9.0)).depth_HW
        for ink_HW in (noto.mask(glyph, 64) / 255.0, depth_HW):
            along = ink_HW.sum(axis)
            half = len(along) // 2
            assert along[:half].sum() > 1.5 * along[-half:].sum()
    lu2 = noto.mask("𒇽", 64) > 127
    pressed = press(noto.shape("𒇽"), Pose(80, 60, 64), Stylus(0.01, 1.0, 9.0)).depth_HW > 0
    rows, columns = np.flatnonzero(pressed.any(1)), np.flatnonzero(pressed.any(0))
    cut = pressed[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    fitted_lu2 = np.asarray(Image.fromarray(lu2).resize(cut.shape[::-1]))
    agreement = [float((fitted_lu2 == way).mean()) for way in (cut, cut[:, ::-1], cut[::-1])]
    assert agreement[0] > 0.9
    assert agreement[0] > max(agreement[1:]) + 0.1


# --- text ---


def test_split_is_greedy_and_marks_lost_stretches():
    assert split_glyphs("𒈗𒀀𒀭 𒈨", {"𒀀𒀭"}) == ("𒈗", "𒀀𒀭", "𒈨")
    assert split_glyphs("𒀀𒀭𒀭", {"𒀀𒀭", "𒀀𒀭𒀭"}) == ("𒀀𒀭𒀭",)
    assert split_glyphs("𒀀…x□𒀭", ()) == ("𒀀", LOST, "𒀭")
    assert split_glyphs("𒀀𒀭", (), lambda g: g == "𒀀") == ("𒀀", LOST)
    assert split_glyphs("", ()) == ()


def test_text_keeps_only_what_is_not_lost():
    line = attach_readings(("𒈗", "𒆳", "𒀀", "𒈾"), "LUGAL KUR a-na")
    assert line.readings == ("LUGAL", "KUR", "a", "na")
    assert attested_text(line, [False] * 4) == "LUGAL KUR a-na"
    assert attested_text(line, [False, True, True, False]) == "LUGAL […]-na"
    assert attested_text(line, [True] * 4) == "[…]"
    braces = attach_readings(("𒀭", "𒀀"), "{d}a")
    assert attested_text(braces, [True, False]).count("{") == attested_text(braces, [True, False]).count("}")
    unaligned = attach_readings(("𒈗", "𒆳"), "LUGAL")
    assert unaligned.readings == ()
    assert attested_text(unaligned, [False, False]) == "LUGAL"
    assert attested_text(unaligned, [True, False]) == "", "which part is left is not known"


def test_the_grammar_pairs_readings_with_the_right_signs():
    latin = str.maketrans("šŠ", "sS")
    for reading, sign in sentences._SYLLABLES:
        name = unicodedata.name(sign).removeprefix("CUNEIFORM SIGN ").replace("SH", "S")
        spelled = reading.translate(latin).upper().replace("Ú", "U2")
        composed = {"ši": "IGI", "ar": "IGI RI", "ul": "U GUD", "ik": "IG"}
        assert name == composed.get(reading, spelled), reading
    line = sentences.grammar_line(np.random.default_rng(1), 6)
    assert [sentences._SIGN[r] for r in line.readings] == list(line.glyphs)
    assert attach_readings(line.glyphs, line.text) == line
