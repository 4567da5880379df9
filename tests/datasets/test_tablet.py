"""The tablet model: what it refuses, and that JSON gives back what went in."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dubsar.datasets.tablet import SCHEMA_VERSION, Candidate, Face, Line, Sign, Tablet, enclosing_box


def tablet() -> Tablet:
    signs = (
        Sign(
            box=(1.0, 2.0, 11.5, 20.0),
            candidates=(
                Candidate(glyph="𒋗𒉀", name="|ŠU.NAGA|", probability=0.7),
                Candidate(glyph="𒀀", probability=0.2),
            ),
            damage="damaged",
            flags=("?", "!"),
            reading="tu₅",
            confidence=0.7,
            provenance="classifier abc",
        ),
        Sign(damage="broken"),
    )
    lines = (Line(label="1′", signs=signs, text="tu₅ […]", confidence=0.5), Line(label="2′"))
    return Tablet(
        identifier='K.1 <script>"&',
        image="a.jpg",
        width=100,
        height=200,
        faces=(Face(name="obverse", box=(0, 0, 50, 200), lines=lines), Face(name="reverse")),
        provenance={"detector": "hash"},
        notes=("no sign on the reverse",),
    )


def test_json_gives_back_the_same_tablet() -> None:
    before = tablet()
    text = json.dumps(before.to_dict(), ensure_ascii=False, allow_nan=False)
    assert Tablet.from_dict(json.loads(text)) == before
    assert json.loads(text)["schema_version"] == SCHEMA_VERSION


def test_an_empty_tablet_is_valid() -> None:
    empty = Tablet(identifier="", width=1, height=1)
    assert Tablet.from_dict(empty.to_dict()) == empty
    assert list(empty.signs()) == []


def test_from_dict_does_not_change_its_argument() -> None:
    data = tablet().to_dict()
    copy = json.loads(json.dumps(data))
    Tablet.from_dict(data)
    assert json.loads(json.dumps(data)) == copy


@pytest.mark.parametrize(("version", "shown"), [("2.0", "2.0"), ("0.9", "0.9"), (None, "absent"), ("10.1", "10.1")])
def test_another_major_version_is_refused_with_both_versions(version: str | None, shown: str) -> None:
    data = tablet().to_dict()
    del data["schema_version"]
    if version:
        data["schema_version"] = version
    with pytest.raises(ValueError, match=f"version is {shown}, this dubsar reads {SCHEMA_VERSION}"):
        Tablet.from_dict(data)


def test_a_later_minor_version_is_read() -> None:
    assert Tablet.from_dict({**tablet().to_dict(), "schema_version": "1.7"}) == tablet()


@pytest.mark.parametrize(
    ("box", "message"),
    [
        ((5, 5, 1, 9), "swapped corners"),
        ((5, 5, 9, 1), "swapped corners"),
        ((5, 5, 5, 9), "is empty"),
        ((math.nan, 0, 1, 1), "not a finite pixel"),
        ((0, 0, math.inf, 1), "not a finite pixel"),
        ((0, 0, 1e9, 1), "not a finite pixel"),
    ],
)
def test_a_box_that_cannot_be_is_refused(box: tuple[float, float, float, float], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Sign(box=box)
    with pytest.raises(ValidationError, match=message):
        Face(box=box)


@pytest.mark.parametrize("probability", [-0.1, 1.1, math.nan])
def test_a_probability_lies_between_0_and_1(probability: float) -> None:
    with pytest.raises(ValidationError):
        Candidate(glyph="𒀀", probability=probability)


def test_unknown_fields_damage_and_faces_are_refused() -> None:
    with pytest.raises(ValidationError, match="gylph"):
        Candidate(gylph="𒀀", glyph="𒀀", probability=1)  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="damage"):
        Sign(damage="lost")  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="name"):
        Face(name="front")  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="width"):
        Tablet(identifier="a", width=0, height=1)


def test_parts_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        tablet().faces[0].lines[0].signs[0].reading = "a"  # type: ignore[misc]


def test_glyph_is_the_first_candidates_or_empty() -> None:
    first, lost = tablet().signs()
    assert first.glyph == "𒋗𒉀"
    assert lost.glyph == ""


def test_lines_come_in_reading_order_and_box_their_signs() -> None:
    lines = list(tablet().lines())
    assert [(face.name, line.label) for face, line in lines] == [("obverse", "1′"), ("obverse", "2′")]
    assert lines[0][1].box == (1.0, 2.0, 11.5, 20.0)
    assert lines[1][1].box is None


@given(st.lists(st.tuples(*[st.floats(-1e6, 1e6)] * 4), min_size=1))
def test_enclosing_box_holds_every_box(boxes: list[tuple[float, float, float, float]]) -> None:
    x0, y0, x1, y1 = enclosing_box(boxes) or (0, 0, 0, 0)
    assert all(x0 <= b[0] and y0 <= b[1] and x1 >= b[2] and y1 >= b[3] for b in boxes)


def test_nothing_encloses_nothing() -> None:
    assert enclosing_box([]) is None
