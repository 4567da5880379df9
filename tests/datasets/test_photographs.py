"""Photographs for training and scoring: what is skipped or dropped is counted and said, and only in training."""

from pathlib import Path

import pytest
from PIL import Image

from dubsar.datasets.formats.tablet_signs import IMAGE_COLUMNS, SIGN_COLUMNS, Photograph
from dubsar.datasets.images import ImageError
from dubsar.datasets.inventory import Inventory, SignClass
from dubsar.datasets.photographs import DamagedDataError, labelled_photographs, open_photographs

SMALL = Inventory((SignClass("𒀀", "A"),))


def photographs(folder: Path, count: int, *, truncated: tuple[int, ...] = ()) -> list[Photograph]:
    made = []
    for number in range(count):
        path = folder / f"{number}.jpg"
        Image.effect_noise((64, 48), 60).convert("RGB").save(path)
        if number in truncated:
            path.write_bytes(path.read_bytes()[:-900])
        made.append(Photograph(path.name, path, str(number), "", 64, 48, "train", "ebl", ()))
    return made


def test_damaged_pictures_are_skipped_and_listed_with_their_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    all_of_them = photographs(tmp_path, 5, truncated=(1, 3))
    (tmp_path / "4.jpg").unlink()
    opened = list(open_photographs(all_of_them, max_bad=3))
    assert [(p.file, i.rgb_HW3.shape) for p, i in opened] == [("0.jpg", (48, 64, 3)), ("2.jpg", (48, 64, 3))]
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[0].startswith(f"skipped (1 of at most 3): {tmp_path / '1.jpg'}: the picture is damaged (")
    assert lines[1].startswith(f"skipped (2 of at most 3): {tmp_path / '3.jpg'}: the picture is damaged (")
    assert lines[2] == f"skipped (3 of at most 3): {tmp_path / '4.jpg'}: No such file or directory"


@pytest.mark.parametrize("max_bad", [0, 1])
def test_more_than_max_bad_is_one_error_with_count_option_and_files(tmp_path: Path, max_bad: int) -> None:
    bad = tuple(range(1, max_bad + 2))
    with pytest.raises(DamagedDataError) as caught:
        list(open_photographs(photographs(tmp_path, 5, truncated=bad), max_bad=max_bad))
    message = str(caught.value)
    assert message.startswith(
        f"{max_bad + 1} training pictures cannot be read, more than data.max_bad={max_bad} allows: "
    )
    assert all(str(tmp_path / f"{n}.jpg") in message for n in bad)
    assert message.endswith("; copy them again, or raise data.max_bad")
    assert "\n" not in message


def test_outside_training_nothing_is_skipped(tmp_path: Path) -> None:
    all_of_them = photographs(tmp_path, 2, truncated=(1,))
    with pytest.raises(ImageError, match=r"1\.jpg: the picture is damaged"):
        list(open_photographs(all_of_them))
    (tmp_path / "1.jpg").unlink()
    with pytest.raises(FileNotFoundError):
        list(open_photographs(all_of_them))


def test_dropped_boxes_are_counted_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "tablet-signs"
    folder.mkdir()
    images = [dict.fromkeys(IMAGE_COLUMNS, "") | {"file": f, "width": "9", "height": "9"} for f in ("a", "b", "c")]
    signs = [
        dict.fromkeys(SIGN_COLUMNS, "") | {"file": f, "x": x, "y": "1", "w": "2", "h": "2", "glyph": g}
        for f, x, g in (("a", "1", "𒀀"), ("a", "4", "𒈾"), ("b", "-5", "𒀀"))
    ]
    for name, columns, rows in (("images", IMAGE_COLUMNS, images), ("signs", SIGN_COLUMNS, signs)):
        lines = ["\t".join(columns), *("\t".join((row | {"split": "train"})[c] for c in columns) for row in rows)]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"signs\.tsv:3: sign '𒈾' .*drop such boxes with ignore_unknown"):
        labelled_photographs(tmp_path, "train", SMALL)
    found = labelled_photographs(tmp_path, "train", SMALL, ignore_unknown=True)
    assert [(p.file, [b.line for b in p.boxes]) for p in found] == [("a", [2])]
    printed = capsys.readouterr().out
    assert printed.startswith(
        "train: 2 of 3 boxes dropped by data.ignore_unknown, 2 of 3 photographs are without a box; the first: "
    )
    assert "signs.tsv:3: error: sign '𒈾'" in printed


@pytest.mark.parametrize("split", ["dev", "test"])
def test_no_box_is_dropped_where_scores_are_made(tmp_path: Path, split: str) -> None:
    with pytest.raises(ValueError, match=f"ignore_unknown is for training; in split {split} a dropped box would"):
        labelled_photographs(tmp_path, split, SMALL, ignore_unknown=True)
