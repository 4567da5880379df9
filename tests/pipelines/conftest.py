"""Small worlds for the stages: a data folder of noise, and run folders with random classifiers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from dubsar.configs.base import load
from dubsar.configs.schema import STAGES
from dubsar.datasets.formats.tablet_signs import IMAGE_COLUMNS, SIGN_COLUMNS
from dubsar.datasets.inventory import Inventory, SignClass
from dubsar.models.checkpoint import save_model
from dubsar.pipelines.networks import build_classifier

DEBUG = Path(__file__).resolve().parents[2] / "configs" / "debug" / "classify.yaml"
SIGNS = Inventory((SignClass("𒀀", "A", "839"), SignClass("𒈾", "NA", "110"), SignClass("𒋗", "ŠU", "567")))
GLYPHS = [c.glyph for c in SIGNS.classes]


@pytest.fixture
def a_member() -> Callable[..., Path]:
    """What writes a run folder with a random classifier of three signs."""
    return _write_member


def _write_member(folder: Path, *overrides: str, signs: Inventory = SIGNS, seed: int = 0, **card: Any) -> Path:
    """Write a run folder with a random classifier."""
    torch.manual_seed(seed)
    config = load(DEBUG, STAGES["classify"], ("model.backbone_args={channels: [8, 8, 16, 16]}", *overrides))
    about = {"stage": "classify", "config": config.model_dump(mode="json"), "inventory": signs.to_list()}
    about |= {"inventory_hash": signs.hash, "licence": "Weights: CC BY.", "training_seconds": 7.0} | card
    save_model(folder / "classify", build_classifier(config, len(signs)).state_dict(), about)
    (folder / "metrics.jsonl").write_text('{"step": 1, "seconds": 2.5}\n', encoding="utf-8")
    return folder


@pytest.fixture
def noise_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The parent of a data folder of noise: 2 photographs in train, 4 in dev and in test each, 3 signs on each."""
    folder = tmp_path / "data" / "tablet-signs"
    (folder / "images").mkdir(parents=True)
    images, signs = ["\t".join(IMAGE_COLUMNS)], ["\t".join(SIGN_COLUMNS)]
    for number, split in enumerate(["train"] * 2 + ["dev"] * 4 + ["test"] * 4):
        file = f"{number}.png"
        Image.effect_noise((160, 80), 60 + number).convert("RGB").save(folder / "images" / file)
        row = {"file": file, "source": "ebl", "object_id": file, "width": "160", "height": "80", "split": split}
        images.append("\t".join(row.get(c, "") for c in IMAGE_COLUMNS))
        for x, glyph in zip((5, 55, 105), GLYPHS, strict=True):
            row = {"file": file, "x": str(x), "y": "20", "w": "40", "h": "40", "sign_name": "x", "glyph": glyph}
            signs.append("\t".join((row | {"split": split}).get(c, "") for c in SIGN_COLUMNS))
    (folder / "images.tsv").write_text("\n".join(images) + "\n", encoding="utf-8")
    (folder / "signs.tsv").write_text("\n".join(signs) + "\n", encoding="utf-8")
    rows = [f"{i}\t{c.glyph}\t{c.name}\t{c.mzl}" for i, c in enumerate(SIGNS.classes)]
    (folder / "classes.tsv").write_text("\n".join(["class_id\tglyph\tsign_name\tmzl", *rows]) + "\n", encoding="utf-8")
    monkeypatch.setenv("DUBSAR_DATA", str(tmp_path / "data"))
    return tmp_path
