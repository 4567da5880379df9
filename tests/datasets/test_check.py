"""`data check`: planted defects are found with file and line, clean data is clean, and no file is changed."""

import hashlib
import io
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dubsar.datasets.check import check_data
from dubsar.datasets.check_lines import text_faults, unbalanced
from dubsar.datasets.check_pictures import MAX_HASH_DISTANCE, average_hash
from dubsar.datasets.issues import Issue

ROOT = Path(os.environ.get("DUBSAR_DATA", "../shared/data"))
CLASSES = "class_id\tglyph\tsign_name\tmzl\tn_total\n0\t𒀀\tA\t839\t2\n1\t𒈾\tNI\t110\t1\n"
SIGN_HEADER = "file\tx\ty\tw\th\tsource\tlabel_raw\tmzl\tsign_name\tglyph\tview\tflag\tsplit\n"
HITTITE_HEADER = "line_id\tdocument\tline_label\tlang\tsigns\ttranslit\ttranslit_marked\tsplit\n"


def jpeg(seed: int, size: tuple[int, int] = (64, 48), quality: int = 90) -> bytes:
    coarse = np.random.default_rng(seed).integers(0, 255, (16, 16, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize(size, Image.Resampling.BILINEAR).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def put(root: Path, name: str, content: str | bytes) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def image_row(file: str, object_id: str, split: str, data: bytes, *, n_boxes: int, size: str = "64\t48") -> str:
    sha = hashlib.sha256(data).hexdigest()
    return f"{file}\tebl\t{object_id}\t\t\t{size}\t{n_boxes}\t{split}\t{len(data)}\t{sha}\n"


IMAGE_HEADER = "file\tsource\tobject_id\tmuseum_no\tcollection\twidth\theight\tn_boxes\tsplit\tbytes\tsha256\n"


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    one, two = jpeg(1), jpeg(2)
    put(root, "tablet-signs/images/e/a.jpg", one)
    put(root, "tablet-signs/images/e/b.jpg", two)
    rows = image_row("e/a.jpg", "K.1", "train", one, n_boxes=2) + image_row("e/b.jpg", "K.2", "test", two, n_boxes=1)
    put(root, "tablet-signs/images.tsv", IMAGE_HEADER + rows)
    put(root, "tablet-signs/classes.tsv", CLASSES)
    signs = (
        "e/a.jpg\t1\t2\t10\t20\tebl\tA\t839\tA\t𒀀\t\t\ttrain\n"
        "e/a.jpg\t20\t2\t10\t20\tebl\tNI\t110\tNI\t𒈾\t\t\ttrain\n"
        "e/b.jpg\t1\t2\t10\t20\tebl\tA\t839\tA\t𒀀\t\t\ttest\n"
    )
    put(root, "tablet-signs/signs.tsv", SIGN_HEADER + signs)
    lines = "a\tKBo 1.1\t1\thit\t𒀀\ta\t[a]\ttrain\nb\tKBo 2.2\t1\thit\t𒈾\tna\tn[a]\ttest\n"
    put(root, "hittite-lines/lines.tsv", HITTITE_HEADER + lines)
    return root


def edit(root: Path, name: str, old: str, new: str) -> None:
    path = root / name
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def found(issues: list[Issue], name: str, line: int, message: str) -> list[Issue]:
    return [i for i in issues if i.path.as_posix().endswith(name) and i.line == line and re.search(message, i.message)]


def test_clean_data_has_no_issue(clean: Path) -> None:
    assert [str(i) for i in check_data(clean)] == []


SIGNS = "tablet-signs/signs.tsv"
IMAGES = "tablet-signs/images.tsv"
CLASS_TABLE = "tablet-signs/classes.tsv"
LINES = "hittite-lines/lines.tsv"


@pytest.mark.parametrize(
    ("name", "old", "new", "line", "message", "severity"),
    [
        (SIGNS, "e/a.jpg\t1\t", "e/a.jpg\t-9\t", 2, "negative coordinate", "error"),
        (SIGNS, "e/a.jpg\t1\t", "e/a.jpg\tNaN\t", 2, "not a finite number", "error"),
        (SIGNS, "e/a.jpg\t1\t", "e/a.jpg\tx\t", 2, "expected x, y, w, h in pixels", "error"),
        (SIGNS, "e/a.jpg\t20\t", "e/a.jpg\t60\t", 3, "beyond the picture, which is 64 x 48", "error"),
        (SIGNS, "1\t2\t10\t20", "1\t2\t0\t20", 2, "no area", "error"),
        (SIGNS, "1\t2\t10\t20", "1\t2\t-10\t20", 2, "swapped corners or a negative size", "error"),
        (SIGNS, "20\t2\t10\t20\tebl\tNI", "1\t2\t10\t20\tebl\tA", 3, "the same box and label A as on line 2", "error"),
        (SIGNS, "20\t2\t10\t20\tebl\tNI", "1\t2\t10\t20\tebl\tNI", 3, "label NI here and A on line 2", "error"),
        (SIGNS, "NI\t𒈾", "NI\t𒅆", 3, r"label NI \(𒅆\) is not in classes\.tsv", "error"),
        (SIGNS, "NI\t𒈾", "NI\t", 3, "label NI has no glyph", "error"),
        (SIGNS, "𒈾\t\t\ttrain", "𒈾\t\t\ttest", 3, "split is 'test', that of its picture is 'train'", "error"),
        (SIGNS, "e/b.jpg", "e/c.jpg", 4, r"e/c\.jpg is not in images\.tsv", "error"),
        (SIGNS, "\tebl\tA", "\tA", 2, "12 cells, expected 13", "error"),
        (SIGNS, "e/a.jpg\t1\t2\t10\t20\tebl\tA\t839\tA\t𒀀\t\t\t", "e/a.jpg\t1\t2\t0\t0\tebl\tA\t839\tA\t𒀀\t\ttiny\t",
         2, r"no area.*flagged tiny, not used", "note"),
        (IMAGES, "64\t48", "48\t64", 2, "the table says 48 x 64 pixels, the file has 64 x 48", "error"),
        (IMAGES, "K.1\t\t\t64\t48\t2", "K.1\t\t\t64\t48\t5", 2, "n_boxes is 5, signs.tsv has 2", "warning"),
        (IMAGES, "\ttest\t", "\tval\t", 3, "split is 'val'", "error"),
        (CLASS_TABLE, "1\t𒈾", "7\t𒈾", 3, "class_id is '7', expected 1", "error"),
        (CLASS_TABLE, "1\t𒈾", "1\t𒀀", 3, "glyph 𒀀 stands on line 2 already", "error"),
        (CLASS_TABLE, "839\t2", "839\t9", 2, "n_total is 9, signs.tsv has 2 unflagged", "warning"),
        (LINES, "\ttrain", "\ttraining", 2, "split is 'training'", "error"),
        (LINES, "\thit\t𒀀\ta\t", "\thit\t𒀀\th\u032ea\t", 2, "translit: not NFC", "warning"),
        (LINES, "\thit\t𒀀\ta\t", "\thit\t𒀀\ta\x00\t", 2, "translit: a NUL character", "warning"),
        (LINES, "\thit\t𒀀\ta\t", "\thit\t𒀀\t\ufeffa\t", 2, "translit: a byte order mark", "warning"),
        (LINES, "\thit\t𒀀\ta\t", "\thit\t𒀀\t\t", 2, "translit is empty", "warning"),
        (LINES, "\thit\t𒀀\ta\t", "\thit\t𒀀\t{d a\t", 2, "translit: { without its partner", "warning"),
        (LINES, "[a]", "a]", 2, "translit_marked: ] without its partner", "note"),
        (LINES, "[a]", "⸢a", 2, "translit_marked: ⸢ without its partner", "note"),
    ],
)  # fmt: skip
def test_a_planted_defect_is_found_with_file_and_line(
    clean: Path, name: str, old: str, new: str, line: int, message: str, severity: str
) -> None:
    edit(clean, name, old, new)
    issues = found(check_data(clean), name, line, message)
    assert [i.severity for i in issues] == [severity]


def test_names_like_missing_values_are_kept_and_noted(clean: Path) -> None:
    edit(clean, SIGNS, "\tNI\t110\tNI", "\tNA\t110\tNULL")
    assert "NA 1x, NULL 1x" in found(check_data(clean), SIGNS, 0, "kept as text")[0].message


def test_unmapped_signs_are_counted(clean: Path) -> None:
    edit(clean, LINES, "𒈾", "𒈾□\ufffd")
    assert found(check_data(clean), LINES, 0, "1 lines hold a sign without a known code point")


def test_repeated_lines_are_found(clean: Path) -> None:
    edit(clean, LINES, "b\tKBo 2.2", "c\tKBo 1.1\t1\thit\t𒀀\ta\t[a]\ttrain\nb\tKBo 2.2")
    assert found(check_data(clean), LINES, 3, "the same row as on line 2")


def test_shared_sign_strings_are_a_note_with_counts(clean: Path) -> None:
    edit(clean, LINES, "hit\t𒈾", "hit\t𒀀")
    (issue,) = found(check_data(clean), "hittite-lines", 0, "sign string of train")
    assert issue.message.startswith("1 of 1 test lines (100.0 %)")
    assert issue.severity == "note"


# --- pictures --------------------------------------------------------------------------------------------------------


def replace_picture(root: Path, file: str, data: bytes, *, table: bool = True) -> None:
    """Swap a picture; with ``table`` its size and sum in the table follow."""
    old = (root / "tablet-signs" / "images" / file).read_bytes()
    (root / "tablet-signs" / "images" / file).write_bytes(data)
    if table:
        pair = f"{len(old)}\t{hashlib.sha256(old).hexdigest()}", f"{len(data)}\t{hashlib.sha256(data).hexdigest()}"
        edit(root, IMAGES, *pair)


def test_a_missing_and_a_spare_picture(clean: Path) -> None:
    (clean / "tablet-signs" / "images" / "e" / "a.jpg").rename(clean / "tablet-signs" / "images" / "e" / "z.jpg")
    issues = check_data(clean)
    assert found(issues, IMAGES, 2, r"e/a\.jpg: the picture is missing")
    assert found(issues, "images/e/z.jpg", 0, "not in images.tsv")[0].severity == "warning"


def test_changed_bytes_are_found_by_size_and_by_sum(clean: Path) -> None:
    replace_picture(clean, "e/a.jpg", jpeg(3) + b"\0", table=False)
    issues = check_data(clean)
    assert found(issues, IMAGES, 2, "bytes, the file has")
    assert found(issues, IMAGES, 2, "sha256 is")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (jpeg(1, (640, 480))[:-3000], r"e/a\.jpg: the picture is damaged"),
        (b"", r"e/a\.jpg: the file is empty"),
        (b"text", r"e/a\.jpg: not a picture"),
    ],
)
def test_pictures_that_do_not_decode(clean: Path, data: bytes, message: str) -> None:
    replace_picture(clean, "e/a.jpg", data)
    assert found(check_data(clean), IMAGES, 2, message)[0].severity == "error"


def test_exif_orientation_is_noted(clean: Path) -> None:
    buffer = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(io.BytesIO(jpeg(1))).save(buffer, "JPEG", exif=exif)
    replace_picture(clean, "e/a.jpg", buffer.getvalue())
    issues = check_data(clean)
    assert found(issues, IMAGES, 2, "EXIF orientation 6")[0].severity == "note"
    assert not found(issues, IMAGES, 2, "the table says")


def test_the_same_file_in_two_splits(clean: Path) -> None:
    replace_picture(clean, "e/b.jpg", jpeg(1))
    (issue,) = found(check_data(clean), IMAGES, 3, "two splits")
    assert issue.severity == "error"
    assert "e/b.jpg (test) is the same file (sha256) as e/a.jpg on line 2 (train)" in issue.message


def test_the_same_photograph_saved_again_in_two_splits(clean: Path) -> None:
    replace_picture(clean, "e/b.jpg", jpeg(1, quality=60))
    (issue,) = found(check_data(clean), IMAGES, 3, "two splits")
    assert "e/b.jpg (test) looks the same (average hash) as e/a.jpg on line 2 (train)" in issue.message


def test_a_duplicate_in_one_split_is_a_warning(clean: Path) -> None:
    data = jpeg(1)
    put(clean, "tablet-signs/images/e/c.jpg", data)
    with (clean / IMAGES).open("a", encoding="utf-8") as file:
        file.write(image_row("e/c.jpg", "K.5", "train", data, n_boxes=0))
    assert found(check_data(clean), IMAGES, 4, r"c\.jpg is the same file .* on line 2$")[0].severity == "warning"


def test_average_hash_ignores_size_and_brightness_but_not_content() -> None:
    def look(image: Image.Image) -> int:
        found = average_hash(np.asarray(image.convert("RGB")))
        assert found is not None
        return found

    base = Image.open(io.BytesIO(jpeg(7, (320, 240))))
    smaller = base.resize((160, 120), Image.Resampling.BOX)
    darker = base.point(lambda v: v * 7 // 10)
    other = Image.open(io.BytesIO(jpeg(8, (320, 240))))
    for alike in (smaller, darker):
        assert (look(base) ^ look(alike)).bit_count() <= MAX_HASH_DISTANCE
    assert (look(base) ^ look(other)).bit_count() > 10 * MAX_HASH_DISTANCE
    assert average_hash(np.full((40, 40, 3), 9, np.uint8)) is None


# --- one tablet in two splits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [("K.2\t", "K.1\t"), ("K.2\t", "K 00001\t"), ("K.2\t", "Sm.5 + K.1\t"), ("K.2\t\t", "P123\tK 00001+\t")],
)
def test_the_same_tablet_in_two_splits(clean: Path, old: str, new: str) -> None:
    edit(clean, IMAGES, old, new)
    (issue,) = found(check_data(clean), IMAGES, 3, "is in split test here and in train on images.tsv:2")
    assert issue.severity == "error"


def test_a_photograph_and_its_text_in_two_splits(clean: Path) -> None:
    edit(clean, LINES, "KBo 2.2", "K.1")
    issues = [i for i in check_data(clean) if "keep a tablet" in i.message]
    assert [(i.path.name, i.line) for i in issues] == [("lines.tsv", 3)]
    assert "in train on images.tsv:2" in issues[0].message


def test_sentences_of_a_treebank_are_told_apart_by_their_source(clean: Path) -> None:
    def treebank(reference: str, split: str) -> str:
        return f"x\tUD_Hittite\t{reference}\thit\t𒅆\tigi\tigi\t{split}\n"

    rows = treebank("KUB 1.1 i 36 (NH)", "train") + treebank("KBo 3.4 ii 5", "test") + treebank("", "dev")
    with (clean / LINES).open("a", encoding="utf-8") as file:
        file.write(rows + treebank("KUB 30.21 + KUB 1.1 I 2-4", "dev"))
    leaks = [i for i in check_data(clean) if "keep a tablet" in i.message]
    assert [i.line for i in leaks] == [7]
    assert "KUB 30.21 + KUB 1.1 (there KUB 1.1) is in split dev" in leaks[0].message


# --- exchange files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "line", "message"),
    [
        ("x/labels/a.txt", "0 0.5 0.5 0.1 0.1\n2 0.5 0.5 0.1 0.1\n", 2, "class id 2 is out of range"),
        ("x/labels/train/a.txt", "0 0.5 0.5 0 0.1\n", 1, "no area"),
        ("x/a.yolo.txt", "0 50 50 10 10\n", 1, "percent or pixels"),
        ("x/gt_K.1.txt", "1,2,900,4,A\n", 1, "beyond the picture, which is 64 x 48"),
        ("x/bbox_annotations_all.csv", "segm_idx\n", 1, "^the header lacks"),
        ("x/a.coco.json", '{"images":\n[', 2, "^not JSON"),
    ],
)
def test_label_files_in_exchange_formats(clean: Path, name: str, text: str, line: int, message: str) -> None:
    put(clean, name, text)
    assert found(check_data(clean), name, line, message)[0].severity == "error"


def test_a_list_of_class_names_is_no_label_file(clean: Path) -> None:
    put(clean, "x/labels/classes.txt", "A\nNI\n")
    assert check_data(clean) == []


def test_label_files_alone_are_enough(tmp_path: Path) -> None:
    put(tmp_path, "labels/a.txt", "9 0.5 0.5 0.1 0.1\n")
    (issue,) = check_data(tmp_path)
    assert (issue.severity, "not checked" in issue.message) == ("note", True)


# --- the whole -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["classes", "images", "signs"])
def test_a_missing_table_is_an_issue_not_a_crash(clean: Path, name: str) -> None:
    (clean / "tablet-signs" / f"{name}.tsv").unlink()
    assert found(check_data(clean), f"{name}.tsv", 0, "the table is missing")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"\x00" * 100, b"file\tfile\n"])
def test_tables_of_rubbish_are_issues_not_crashes(clean: Path, content: bytes) -> None:
    for name in (SIGNS, IMAGES, CLASS_TABLE, LINES):
        (clean / name).write_bytes(content)
        assert found(check_data(clean), name, 1, "the header lacks")


def test_nothing_to_check_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no such folder.*DUBSAR_DATA"):
        check_data(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match="nothing to check; expected tablet-signs"):
        check_data(tmp_path)


def test_issues_come_sorted_and_no_file_is_changed(clean: Path) -> None:
    edit(clean, SIGNS, "1\t2\t10\t20", "1\t2\t0\t20")
    edit(clean, LINES, "[a]", "[a")

    def state() -> dict[str, tuple[str, int]]:
        return {
            str(p): (hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_mtime_ns)
            for p in clean.rglob("*")
            if p.is_file()
        }

    before = state()
    issues = check_data(clean)
    assert state() == before
    assert [(str(i.path), i.line) for i in issues] == sorted((str(i.path), i.line) for i in issues)
    assert len(issues) == 2


@pytest.mark.parametrize(
    ("text", "lone"),
    [
        ("[a] {d}b ⸢c⸣ (d)", ""),
        ("[a ⸢b] c⸣", ""),
        ("a]", "]"),
        ("[a", "["),
        ("]a[", "]"),
        ("{d", "{"),
        ("", ""),
        ("[" * 50_000 + "]" * 50_000, ""),
    ],
)
def test_unbalanced_brackets(text: str, lone: str) -> None:
    assert unbalanced(text) == lone


def test_text_faults_take_any_string() -> None:
    assert text_faults("ḫa") == []
    assert text_faults("h\u032e\x00\ufeff\ud800") == [
        "not NFC (composed characters expected)",
        "a NUL character",
        "a byte order mark inside the text",
        "a lone surrogate",
    ]


@pytest.fixture(scope="module")
def real() -> Callable[[], list[Issue]]:
    kept: list[list[Issue]] = []

    def check() -> list[Issue]:
        if not kept:
            start = time.perf_counter()
            kept.append(check_data(ROOT))
            assert time.perf_counter() - start < 60
        return kept[0]

    return check


@pytest.mark.data
@pytest.mark.slow
def test_the_real_data_shows_the_defects_its_readme_names(real: Callable[[], list[Issue]]) -> None:
    issues = real()
    signs = [i for i in issues if i.path.name == "signs.tsv" and i.line]
    assert not [i for i in signs if i.severity != "note"]  # every faulty box is flagged already
    kinds = Counter(re.search(r"\(flagged ([\w,]+), not used", i.message)[1] for i in signs)  # type: ignore[index]
    assert (kinds["dup"], kinds["nomap"], kinds["conflict"] >= 1) == (133, 34, True)
    shared = {(i.path.name, i.message.split(" (")[0]) for i in issues if "sign string of train" in i.message}
    assert ("akkadian-oracc-lines", "144 of 1940 test lines") in shared
    assert ("akkadian-ebl-lines", "328 of 2086 test lines") in shared
    assert [i for i in issues if i.path.name == "lines.tsv" and "343 lines hold a sign" in i.message]
    leaks = [i for i in issues if "keep a tablet" in i.message]
    assert {i.path.parent.name for i in leaks} == {"hittite-lines"}
    assert any(i.message.startswith("tablet KBo 4.9 is in split dev here and in train") for i in leaks)
    assert not [i for i in issues if i.path.name == "images.tsv"]
