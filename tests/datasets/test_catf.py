"""Canonical ATF as a reference: only what is on the clay, in the line tables' spelling."""

import os
import time
from pathlib import Path

import pytest
from rapidfuzz.distance import Levenshtein

from dubsar.datasets.formats.catf import attested, read_catf
from dubsar.datasets.lines import read_line_pairs

DATA = Path(os.environ.get("DUBSAR_DATA", "../shared/data"))


@pytest.mark.parametrize(
    ("atf", "expected"),
    [
        ("sza pal-hu-szi", "ša pal-hu-ši"),
        ("tir-s,i-szu2 t,a", "tir-ṣi-šu₂ ṭa"),
        ("u2-na-'a-ad", "u₂-na-ʾa-ad"),
        ("_lugal_-usz", "LUGAL-uš"),
        ("_dingir-mesz gal-mesz_", "DINGIR-MEŠ GAL-MEŠ"),
        ("_gisz-kin-ti_", "GIŠ.KIN.TI"),
        ("{d}asz-szur _{d}pa_ {uru}ma {lu2}sza2", "{d}aš-šur {d}PA {URU}ma {LU₂}ša₂"),
        ("ku-ru-ub ki# [x x x]", "ku-ru-ub ki …"),
        ("ur-kit-[tu2]", "ur-kit-…"),
        ("[x x] ma [x]", "… ma …"),
        ("a-na] _lugal_", "… LUGAL"),
        ("a [na _lugal_", "a …"),
        ("isz-ma <$kal3*$> ina", "iš-ma ina"),
        ("($blank$) sza* [x]", "ša …"),
        ("($a$) sza ($b$) x", "ša x"),
        ("1(u) 5(disz) 1(gesz2)", "75"),
        ("x12(u).", "x₁₂₀."),
        ("{1(disz)}{d}asz-szur—_du3—a_", "{1}{d}aš-šur--DU₃--A"),
        ("x x# bi?", "x x bi"),
        ("[x x x x]", ""),
        ("", ""),
    ],
)
def test_attested(atf: str, expected: str) -> None:
    assert attested(atf) == expected


@pytest.mark.parametrize(
    "part",
    ["($", "($ x ", "1", "1(u", "1(u) ", "$)", "<(", "<", "[", "]", "_a-", "(", "{", "%", "… ", ".", "\u0301\u0316"],
)
def test_a_line_of_100_000_characters_takes_linear_time(part: str) -> None:
    text = part * (100_000 // len(part))
    start = time.process_time()
    attested(text)
    assert time.process_time() - start < 1


@pytest.mark.parametrize("text", ["1" * 5000 + "(u)", "1" * 5000, "$)" * 9 + "($" * 9])
def test_any_line_is_read(text: str) -> None:
    assert attested(text)


def test_lines_carry_face_label_and_place(tmp_path: Path) -> None:
    file = tmp_path / "P1.atf"
    file.write_text(
        "&P1 = X\n#atf: lang akk\n@obverse\n$ (broken)\n1'. a-na\n2. [x x]\n@reverse?\n1. _lugal_\n", encoding="utf-8"
    )
    lines = read_catf(file)
    assert [(line.face, line.label, line.text, line.line) for line in lines] == [
        ("obverse", "1'", "a-na", 5),
        ("obverse", "2", "", 6),
        ("reverse", "1", "LUGAL", 8),
    ]


@pytest.mark.data
@pytest.mark.skipif(not (DATA / "tablet-signs").is_dir(), reason="the shared data folder is absent")
def test_spelling_agrees_with_the_line_tables() -> None:
    sides = {"obverse": "o", "reverse": "r"}
    expected = {
        (p.text_id, p.label): p.translit for split in ("train", "dev") for p in read_line_pairs(DATA, "oracc", split)
    }
    edits = length = 0
    for path in (DATA / "tablet-signs" / "text").glob("*.atf"):
        for line in read_catf(path):
            reference = expected.get((path.stem, f"{sides.get(line.face, '?')} {line.label}"))
            if reference is not None:
                edits += Levenshtein.distance(line.text, reference)
                length += len(reference)
    assert length > 5000
    assert edits / length < 0.025
