"""The tablet model: what a photograph was read as, and what every format converts to and from.

Tablet > Face > Line > Sign, all frozen. Boxes are ``(x0, y0, x1, y1)`` in pixels of the file *as stored on disk*
(before any EXIF rotation), origin at the top left, x1 and y1 exclusive. A sign keeps its ranked candidates, so nothing
that a later reader could need is thrown away when one reading is chosen.

JSON carries ``schema_version``; a file of another major version is refused rather than guessed at.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

SCHEMA_VERSION = "1.1"

Damage = Literal["intact", "damaged", "broken", "erased"]
FaceName = Literal["obverse", "reverse", "left", "right", "top", "bottom", "unknown"]
BoxXYXY = tuple[float, float, float, float]
Probability = Annotated[float, Field(ge=0.0, le=1.0)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _check_box(box: BoxXYXY | None) -> BoxXYXY | None:
    if box is None:
        return None
    x0, y0, x1, y1 = box
    if not all(abs(v) < 1e7 for v in box):  # also false for nan
        raise ValueError(f"box {box} has a coordinate that is not a finite pixel position")
    if x1 <= x0 or y1 <= y0:
        raise ValueError(f"box {box} is empty or has swapped corners; expected x0 < x1 and y0 < y1")
    return box


class Candidate(_Frozen):
    """One sign that a mark on the clay may be: glyph (one or more code points), its name, and a probability."""

    glyph: str
    name: str = ""
    probability: Probability


class Sign(_Frozen):
    """One sign on the clay, or one stretch that is lost (``damage="broken"`` and no box).

    Attributes:
        confidence: how sure the reader is which sign it is.
        found: how sure the reader is that a sign is there at all.
    """

    box: BoxXYXY | None = None
    candidates: tuple[Candidate, ...] = ()
    damage: Damage = "intact"
    flags: tuple[Literal["?", "!"], ...] = ()
    reading: str = ""
    confidence: Probability = 1.0
    found: Probability = 1.0
    provenance: str = ""

    _box = field_validator("box")(_check_box)

    @property
    def glyph(self) -> str:
        """The likeliest glyph, or an empty string where nothing was recognised."""
        return self.candidates[0].glyph if self.candidates else ""


class Line(_Frozen):
    """Signs from left to right, and the transliteration that was made of them."""

    label: str
    signs: tuple[Sign, ...] = ()
    text: str = ""
    confidence: Probability = 1.0
    provenance: str = ""

    @property
    def box(self) -> BoxXYXY | None:
        """The box around all signs that have one."""
        return enclosing_box([s.box for s in self.signs if s.box is not None])


class Face(_Frozen):
    """One view of the tablet.

    Attributes:
        box: the view's place in the photograph.
        aside: seen at an angle beside another face, whose lines it may repeat; not part of the running text.
    """

    name: FaceName = "unknown"
    box: BoxXYXY | None = None
    aside: bool = False
    lines: tuple[Line, ...] = ()

    _box = field_validator("box")(_check_box)


class Tablet(_Frozen):
    """A photograph that was read, or a tablet that was annotated or rendered."""

    identifier: str
    image: str = ""
    width: int = Field(ge=1)
    height: int = Field(ge=1)
    faces: tuple[Face, ...] = ()
    provenance: dict[str, str] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def lines(self) -> Iterator[tuple[Face, Line]]:
        """Yield each line with its face, in reading order."""
        for face in self.faces:
            for line in face.lines:
                yield face, line

    def text(self) -> Iterator[Line]:
        """Yield the lines of the running text, in reading order: those of all faces that are not ``aside``."""
        return (line for face, line in self.lines() if not face.aside)

    def signs(self) -> Iterator[Sign]:
        """Yield each sign in reading order."""
        for _, line in self.lines():
            yield from line.signs

    def to_dict(self) -> dict[str, Any]:
        """Return plain types, ready for JSON, with the schema version."""
        return {"schema_version": SCHEMA_VERSION, **self.model_dump(mode="json")}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Tablet":
        """Build a tablet from `to_dict`'s output.

        Raises:
            ValueError: the schema version is absent or of another major version, or a field is wrong.
        """
        data = dict(data)
        version = str(data.pop("schema_version", "absent"))
        if version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
            raise ValueError(
                f"tablet schema version is {version}, this dubsar reads {SCHEMA_VERSION}; read the photograph again"
            )
        return cls.model_validate(data)


def enclosing_box(boxes_xyxy: list[BoxXYXY]) -> BoxXYXY | None:
    """Return the smallest box around all given boxes, or None where there are none."""
    if not boxes_xyxy:
        return None
    x0, y0, x1, y1 = zip(*boxes_xyxy, strict=True)
    return min(x0), min(y0), max(x1), max(y1)
