"""Line pairs: only what is attested, in the canonical form, each in its split and language."""

import os
from collections import Counter
from pathlib import Path

import pytest

from dubsar.datasets.lines import LinePair, read_line_pairs
from dubsar.datasets.text import canonical

ROOT = Path(os.environ.get("DUBSAR_DATA", "../shared/data"))
needs_data = pytest.mark.skipif(
    not (ROOT / "hittite-lines").is_dir(), reason="the shared data folder is not here (DUBSAR_DATA)"
)
ORACC = "project\ttext_id\tline_label\tlang\tsigns\ttranslit\tsigns_full\ttranslit_full\n"
HITTITE = "line_id\tdocument\tline_label\tlang\tsigns\ttranslit\ttranslit_marked\tsplit\n"
EBL = "fragment_id\tsurface\tline_label\tsigns\tatf\tsplit\n"


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    for split in ("train", "dev", "test"):
        row = f"p\tP1{split}\to 1\takk-x-neoass\t𒀀𒈾…\ta-na ...\t𒀀𒈾𒈗\ta-na LUGAL\n"
        put(tmp_path, f"akkadian-oracc-lines/{split}.tsv", ORACC + row)
    rows = "b\tKBo 1.1\tVs. I 1\thit\t𒈾\th\u032ea NA4\t[h\u032ea]\ttest\nc\tKBo 1.1\tVs. I 2\txhu\t𒀀\ta\ta\ttest\n"
    put(tmp_path, "hittite-lines/lines.tsv", HITTITE + rows + "d\tKBo 2.2\tRs. 1\thit\t𒅗\tka\tka\ttrain\n")
    put(tmp_path, "akkadian-ebl-lines/lines.tsv", EBL + "K.1\tobverse\t1'\t𒅆\t%sux igi#\ttrain\nK.2\t\t2\t𒀀\ta\tdev\n")
    return tmp_path


def test_oracc_gives_the_attested_columns_only(small: Path) -> None:
    pairs = read_line_pairs(small, "oracc", None)
    assert [p.split for p in pairs] == ["train", "dev", "test"]
    assert pairs[2] == LinePair("𒀀𒈾…", "a-na …", "akk-x-neoass", "P1test", "o 1", "test", "oracc")
    assert not any("𒈗" in p.signs or "LUGAL" in p.translit for p in pairs)
    assert read_line_pairs(small, "oracc", "dev") == pairs[1:2]


def test_one_split_needs_only_its_own_table(small: Path) -> None:
    (small / "akkadian-oracc-lines" / "train.tsv").unlink()
    assert len(read_line_pairs(small, "oracc", "test")) == 1
    with pytest.raises(FileNotFoundError, match=r"train\.tsv: .*DUBSAR_DATA"):
        read_line_pairs(small, "oracc", None)


def test_hittite_keeps_languages_apart_and_is_canonical(small: Path) -> None:
    pairs = read_line_pairs(small, "hittite", "test")
    assert [(p.language, p.translit) for p in pairs] == [("hit", "\u1e2ba NA₄"), ("xhu", "a")]
    assert pairs[0].text_id == "KBo 1.1"
    assert pairs[0].label == "Vs. I 1"


def test_ebl_tells_sumerian_lines_by_their_shift(small: Path) -> None:
    pairs = read_line_pairs(small, "ebl", None)
    assert [(p.language, p.label) for p in pairs] == [("sux", "obverse 1'"), ("akk", "2")]


def test_names_like_missing_values_stay_text(small: Path) -> None:
    put(small, "hittite-lines/lines.tsv", HITTITE + "b\tNULL\tNAN\thit\t𒈾\tNA\t[NA]\ttrain\n")
    (pair,) = read_line_pairs(small, "hittite", None)
    assert (pair.text_id, pair.label, pair.translit) == ("NULL", "NAN", "NA")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("b\tKBo 1.1\t1\thit\t𒈾\tna\tna\ttraining\n", r"lines\.tsv:2: split is 'training', expected one of train"),
        ("b\tKBo 1.1\t1\thit\n", r"lines\.tsv:2: 4 cells, expected 8"),
    ],
)
def test_a_faulty_row_is_refused_with_file_and_line(small: Path, row: str, message: str) -> None:
    put(small, "hittite-lines/lines.tsv", HITTITE + row)
    with pytest.raises(ValueError, match=message):
        read_line_pairs(small, "hittite", None)


def test_unknown_sources_and_splits_are_refused(small: Path) -> None:
    with pytest.raises(ValueError, match="line source is 'luwian', expected one of oracc, hittite, ebl"):
        read_line_pairs(small, "luwian", None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="split is 'val'"):
        read_line_pairs(small, "oracc", "val")


@pytest.mark.data
@needs_data
def test_the_real_hittite_rows() -> None:
    pairs = read_line_pairs(ROOT, "hittite", None)
    counts = Counter((p.language, p.split) for p in pairs)
    assert counts == {("hit", "train"): 372, ("hit", "dev"): 43, ("hit", "test"): 123, ("xhu", "test"): 104}
    assert all(canonical(p.translit) == p.translit for p in pairs)
    assert {c for p in pairs for c in p.translit} & set("[]⸢⸣*") == set()


@pytest.mark.data
@needs_data
@pytest.mark.parametrize(
    ("source", "split", "count"),
    [("oracc", "dev", 1794), ("oracc", "test", 1940), ("ebl", "train", 19505), ("ebl", "test", 2086)],
)
def test_the_real_akkadian_counts(source: str, split: str, count: int) -> None:
    pairs = read_line_pairs(ROOT, source, split)  # type: ignore[arg-type]
    assert len(pairs) == count
    assert all(p.signs and p.translit and p.split == split for p in pairs)
