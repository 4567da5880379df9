"""The canonical text form: total, idempotent, and equal for texts that only differ in spelling."""

import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dubsar.datasets.text import CANONICAL_FORM, canonical, tokens

HITTITE = "nu-za ᵈIŠKUR ḫal-zi-ia É.ŠÀ GIŠ-ru-i š[a-]⸢an⸣"
# letters and marks that occur in transliteration, in any order, so that odd sequences are met often
ODD = "hHḫḪšaA\u032e\u0306\u0331\u0301\u035c23₂₃.…[]{}⸢⸣⌈⌉˹˺⌜⌝〈〉\u2329\u232a'′ʹ’-= \t\n\x00\ufeff\ud800\udfffx()˽𒀀"
MARKS = st.text(alphabet=ODD, max_size=30)


@settings(max_examples=400, deadline=None)
@given(MARKS | st.text(st.characters(codec=None), max_size=40))
def test_canonical_is_total_and_idempotent(text: str) -> None:
    once = canonical(text)
    assert canonical(once) == once
    assert unicodedata.is_normalized("NFC", once)
    once.encode("utf-8")  # no lone surrogate is left


@settings(max_examples=200, deadline=None)
@given(MARKS)
def test_decomposed_input_gives_the_same_text(text: str) -> None:
    expected = canonical(text)
    assert canonical(unicodedata.normalize("NFD", text)) == expected
    assert canonical(unicodedata.normalize("NFC", text)) == expected


@settings(max_examples=200, deadline=None)
@given(MARKS)
def test_tokens_never_raise_and_hold_no_separator(text: str) -> None:
    for token in tokens(canonical(text)):
        assert token
        assert not set(token) & set(" -.+:{}[]⸢⸣⟨⟩()")


def test_nfd_input_equals_nfc_input() -> None:
    decomposed = unicodedata.normalize("NFD", HITTITE)
    assert decomposed != HITTITE
    assert canonical(decomposed) == canonical(HITTITE)


@pytest.mark.parametrize(
    "spelling", ["ḫa", "h\u032ea", "h\u032e\u032ea", "ḫ\u032ea", "ḫ\u032e\u032ea", "h\x00\u032ea", "h\ufeff\u032ea"]
)
def test_every_breve_below_spelling_is_one_letter(spelling: str) -> None:
    assert canonical(spelling) == "\u1e2ba"


def test_capital_het() -> None:
    assert canonical("H\u032eA") == canonical("Ḫ\u032eA") == "\u1e2aA"


def test_h_without_breve_stays_h() -> None:
    assert canonical("ha-at-ti H") == "ha-at-ti H"


@pytest.mark.parametrize("pair", ["⸢⸣", "⌈⌉", "⌜⌝", "˹˺"])
def test_every_kind_of_half_bracket_is_one_kind(pair: str) -> None:
    assert canonical(f"{pair[0]}an{pair[1]}") == "⸢an⸣"


@pytest.mark.parametrize("pair", ["⟨⟩", "〈〉", "\u2329\u232a"])
def test_every_kind_of_angle_bracket_is_one_kind(pair: str) -> None:
    assert canonical(f"{pair[0]}an{pair[1]}") == "⟨an⟩"


def test_index_digits_become_subscripts() -> None:
    assert canonical("NA4 a₂ ZA-BA4-BA₄ du10-ga") == "NA₄ a₂ ZA-BA₄-BA₄ du₁₀-ga"
    assert canonical("š2 \u1e2b5") == "š₂ ḫ₅"


def test_numbers_alone_stay_numbers() -> None:
    assert canonical("10 DUG 1-aš 3(diš) {d}30") == "10 DUG 1-aš 3(diš) {d}30"


def test_digits_right_after_a_letter_are_an_index_even_for_the_storm_god() -> None:
    """Only the bracketed spelling keeps the divine number apart: the form is about spelling, not about meaning."""
    assert canonical("d10") == "d₁₀"
    assert canonical("{d}10") == "{d}10"


def test_nfkc_is_never_applied() -> None:
    """NFKC would turn a₂ into a2, ᵈ into d and … into three dots."""
    for text in ("a₂", "ᵈUTU", "…", "½"):
        assert canonical(text) == text
        assert unicodedata.normalize("NFKC", text) != text


def test_gap_prime_space_and_byte_order_mark() -> None:
    assert canonical("\ufeff[...]  x\t nu\r\n") == "[…] x nu"
    assert canonical("1ʹ 2’ 3′") == "1′ 2′ 3′"
    assert canonical("a\x00b˽c") == "ab c"


def test_a_lone_surrogate_becomes_the_replacement_character() -> None:
    assert canonical("a\ud800b") == "a\ufffdb"


def test_empty_and_blank_text() -> None:
    assert canonical("") == canonical(" \n\t ") == ""
    assert tokens("") == []


def test_cuneiform_is_left_alone() -> None:
    assert canonical("𒈗𒍑 ▒…□") == "𒈗𒍑 ▒…□"


def test_a_line_of_100_000_characters_takes_linear_time() -> None:
    marks = ["a" + "\u0301\u0316" * 50_000, "\u0f73" * 100_000, "\u0344\u0316" * 50_000, "é\u0316" * 50_000]
    for text in ("h\u032e" * 50_000, "[" * 100_000, "a2-" * 33_000, "." * 100_000, "7" * 100_000 + "(", *marks):
        start = time.process_time()
        canonical(text)
        tokens(text)
        assert time.process_time() - start < 1


@pytest.mark.parametrize("letter", ["a", "é", "\u0958", "𒀀", ""])
@pytest.mark.parametrize("marks", ["\u0301\u0316", "\u0344", "\u0f73", "\u0ccb", "\u034f\u0301"])
def test_only_runs_of_more_than_30_marks_are_split_and_only_once(letter: str, marks: str) -> None:
    for times in range(1, 70):
        text = "x" + letter + marks * times
        whole = unicodedata.normalize("NFC", text)
        assert canonical(canonical(text)) == canonical(text)
        held = (unicodedata.normalize("NFD", t).replace("\u034f", "") for t in (canonical(text), whole))
        assert len({"".join(sorted(t)) for t in held}) == 1
        if len(unicodedata.normalize("NFD", letter + marks * times)) <= 30:
            assert canonical(text) == whole


def test_tokens_are_sign_readings() -> None:
    assert tokens(canonical("LUGAL-uš {GIŠ}ŠÚ.A [a-n]a ⸢É⸣ …")) == [
        "LUGAL", "uš", "GIŠ", "ŠÚ", "A", "a", "n", "a", "É", "…",
    ]  # fmt: skip


def test_the_form_has_a_name() -> None:
    assert CANONICAL_FORM.startswith("dubsar-")
