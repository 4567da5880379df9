"""Trained files whose card and weights do not fit together: one line that names the file and both sides."""

import json
from pathlib import Path
from typing import Any

import pytest

from dubsar.configs.base import load
from dubsar.configs.schema import STAGES
from dubsar.datasets.inventory import Inventory, SignClass
from dubsar.datasets.text import CANONICAL_FORM
from dubsar.models.checkpoint import CheckpointError, load_model, save_model
from dubsar.pipelines.networks import build_byt5, build_classifier, load_byt5, load_classifier, load_detector

DEBUG = Path(__file__).resolve().parents[2] / "configs" / "debug"
SIGNS = Inventory((SignClass("𒀀", "A"), SignClass("𒈾", "NA")))


def classifier(folder: Path, **changes: Any) -> Path:
    config = load(DEBUG / "classify.yaml", STAGES["classify"])
    card = {"stage": "classify", "config": config.model_dump(mode="json"), "inventory": SIGNS.to_list()}
    card |= {"inventory_hash": SIGNS.hash} | changes
    state = build_classifier(config, len(SIGNS)).state_dict()
    save_model(folder / "classify", state, {k: v for k, v in card.items() if v is not None})
    return folder / "classify"


def byt5(folder: Path, **extra: Any) -> Path:
    config = load(DEBUG / "transliterate.yaml", STAGES["transliterate"])
    card = {"stage": "transliterate", "config": config.model_dump(mode="json")} | extra
    save_model(folder / "transliterate", build_byt5(config).state_dict(), card)
    return folder / "transliterate"


@pytest.mark.parametrize("key", ["config", "inventory", "inventory_hash"])
def test_a_card_that_lacks_a_part_is_refused(tmp_path: Path, key: str) -> None:
    path = classifier(tmp_path, **{key: None})
    with pytest.raises(CheckpointError, match=rf"^{path}: its model card has no '{key}' \(found .*stage.*\), expected"):
        load_classifier(path)


def test_a_detector_and_a_transliterator_without_a_config_are_refused(tmp_path: Path) -> None:
    save_model(tmp_path / "detect", {}, {"stage": "detect"})
    save_model(tmp_path / "transliterate", {}, {"stage": "transliterate"})
    for stage, read in (("detect", load_detector), ("transliterate", load_byt5)):
        with pytest.raises(CheckpointError, match=rf"{stage}: its model card has no 'config'"):
            read(tmp_path / stage)


def test_a_part_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    path = classifier(tmp_path, inventory=[["𒀀"]])
    with pytest.raises(CheckpointError, match=rf"^{path}: the inventory in its model card .*row 0 has 1 cells"):
        load_classifier(path)
    path = classifier(tmp_path, config={"stage": "classify"})
    with pytest.raises(CheckpointError, match=rf"^{path}: the config in its model card .*: model: Field required") as e:
        load_classifier(path)
    assert "\n" not in str(e.value)


def test_weights_of_another_shape_are_refused_with_both_shapes(tmp_path: Path) -> None:
    three = Inventory((*SIGNS.classes, SignClass("𒋗", "ŠU")))
    path = classifier(tmp_path, inventory=three.to_list(), inventory_hash=three.hash)
    with pytest.raises(CheckpointError) as caught:
        load_classifier(path)
    message = str(caught.value)
    assert message.startswith(
        f"{path}: its weights do not fit the config in its model card: net.fc.weight has shape (2, "
    )
    assert ", expected (3, " in message
    assert "\n" not in message


def test_absent_and_foreign_tensors_are_named(tmp_path: Path) -> None:
    path = byt5(tmp_path)
    file = load_model(path, "transliterate")
    state = {("foreign" if name == "shared.weight" else name): t for name, t in file.state.items()}
    save_model(path, state, {"stage": "transliterate", "config": file.card["config"]})
    with pytest.raises(CheckpointError, match=r"shared\.weight is absent, .*foreign is not expected"):
        load_byt5(path)


def test_a_transliterator_of_another_form_of_text_is_refused(tmp_path: Path) -> None:
    for extra in ({}, {"text_form": CANONICAL_FORM}):  # a card of before forms were named is accepted
        assert not load_byt5(byt5(tmp_path, **extra))[0].training
    path = byt5(tmp_path, text_form="other-1: NFKC")
    assert json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["text_form"] == "other-1: NFKC"
    with pytest.raises(CheckpointError) as caught:
        load_byt5(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: trained on text of the form 'other-1: NFKC', but this dubsar writes ")
    assert repr(CANONICAL_FORM) in message
