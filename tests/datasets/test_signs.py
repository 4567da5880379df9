"""One way to labelled signs, whatever their layout: classes, photographs, what is printed and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dubsar.datasets.inventory import Inventory, SignClass
from dubsar.datasets.signs import SignSource

HEADER = "sign_name\tform_of\tglyph\tmzl\thzl\thzl_extra\n"


@pytest.fixture
def source(tmp_path: Path) -> SignSource:
    """Three labels as HZL numbers, one of which is no sign's own."""
    for split, tablets in (("train", "KLM"), ("valid", "N")):
        for tablet in tablets:
            for label in ("8", "335", "40"):
                path = tmp_path / "crops" / split / label / f"{tablet}1_{label}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (30, 20)).save(path)
    (tmp_path / "sign-list").mkdir()
    rows = "AN\t\t𒀭\t10\t8\t\nHI\t\t𒄭\t631\t335\t\nŠAR₂\t\t𒊹\t632\t335\t\nEN\t\t𒂗\t164\t40\t\n"
    (tmp_path / "sign-list" / "signs.tsv").write_text(HEADER + rows, encoding="utf-8")
    return SignSource(tmp_path / "crops", "folders", "HZL", tmp_path)


def test_boxes_carry_the_glyph_by_which_their_class_is_known(source: SignSource) -> None:
    inventory = source.inventory()
    assert [(c.name, c.glyph, c.numbers) for c in inventory.classes] == [
        ("335", "335", "MZL 631/632 · HZL 335"),
        ("40", "𒂗", "MZL 164 · HZL 40"),
        ("8", "𒀭", "MZL 10 · HZL 8"),
    ]
    photographs = source.photographs("train")
    assert sorted({b.glyph for p in photographs for b in p.boxes}) == sorted(inventory.id_of_glyph)
    assert {p.object_id for p in photographs} == {"K1", "L1", "M1"}
    assert len({p.boxes[0].name for p in photographs[:4]}) > 1  # a limit must not leave one class alone
    assert photographs == source.photographs("train", inventory)


def test_weights_know_labels_even_without_the_sign_list_that_they_were_trained_with(source: SignSource) -> None:
    inventory = source.inventory()
    (source.root.parent / "sign-list" / "signs.tsv").unlink()
    assert {b.glyph for p in source.photographs("dev", inventory) for b in p.boxes} == {"𒀭", "𒂗", "335"}
    with pytest.raises(FileNotFoundError, match="set DUBSAR_DATA to the folder that holds sign-list"):
        source.inventory()


def test_a_label_that_weights_do_not_know_is_refused(source: SignSource) -> None:
    small = Inventory((SignClass("𒀭", "8"), SignClass("335", "335")))
    with pytest.raises(ValueError, match=rf"label '40' is not in sign inventory {small.hash} \(2 classes\); score"):
        source.photographs("dev", small)


def test_a_split_without_a_sign_is_refused(source: SignSource) -> None:
    with pytest.raises(ValueError, match="split test holds no labelled sign; give it a folder of its own"):
        source.photographs("test")
    with pytest.raises(ValueError, match="split is 'validation', expected one of train, dev, test"):
        source.photographs("validation")
    with pytest.raises(ValueError, match="ignore_unknown is for training; in split dev a dropped box would vanish"):
        source.photographs("dev", ignore_unknown=True)


def test_findings_are_printed_once_in_training_the_worst_first(source: SignSource, capsys: Any) -> None:
    for number in range(6):
        (source.root / "train" / "8" / f"{number}.txt").write_text("x")
    (source.root / "train" / "9").mkdir()
    source.photographs("dev")
    assert capsys.readouterr().err == ""
    source.photographs("train")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("train/9: warning: class '9' has no picture here")
    assert lines[1].endswith("train/8/0.txt: note: no picture; not read")
    assert lines[-1].endswith("crops: 2 findings more; `dubsar data labels` lists all")
    assert len(lines) == 6


def test_a_data_set_without_a_label_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"images": [], "categories": [], "annotations": []}')
    with pytest.raises(ValueError, match="no sign is labelled; expected boxes with a category"):
        SignSource(tmp_path, "coco").inventory()
