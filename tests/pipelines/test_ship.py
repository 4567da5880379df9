"""Shipping: the card that ships has all catalogue numbers, and weights for other classes are refused."""

from pathlib import Path

import pytest

from dubsar.configs.base import load
from dubsar.configs.schema import DetectConfig, shipped_config
from dubsar.datasets.inventory import Inventory, InventoryMismatch, SignClass, read_inventory
from dubsar.models.checkpoint import load_model, save_model
from dubsar.models.detector import Detector
from dubsar.pipelines import ship


def a_run(folder: Path, inventory: Inventory) -> Path:
    """Write a run folder with a detector whose card has rows as they were before there were HZL and ABZ numbers."""
    config = load(shipped_config("detect"), DetectConfig)
    card = {
        "stage": "detect",
        "config": config.model_dump(mode="json"),
        "inventory": [row[:3] for row in inventory.to_list()],
        "inventory_hash": inventory.hash,
    }
    save_model(folder / "detect", Detector(config.model.scale).state_dict(), card)
    (folder / "metrics.jsonl").write_text('{"step": 1, "seconds": 2.5}\n', encoding="utf-8")
    return folder


@pytest.fixture
def shipped_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ship into a temporary folder, with a score that takes no time."""
    monkeypatch.setattr(ship, "shipped", lambda stage: tmp_path / "weights" / stage)
    monkeypatch.setattr(ship, "SCORERS", {"detect": lambda *_: {"compvis": {"ap50": 1.0}}})
    return tmp_path / "weights"


@pytest.mark.data
def test_the_shipped_card_has_the_numbers_of_the_sign_list(
    tmp_path: Path, shipped_to: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUBSAR_DATA", str(data_root))
    inventory = read_inventory(data_root)
    ship.ship("detect", a_run(tmp_path / "run", inventory))
    card = load_model(shipped_to, "detect").card
    assert Inventory.from_list(card["inventory"]) == inventory
    assert card["inventory_hash"] == inventory.hash
    assert ["𒀀", "A", "839", "364|365", "579"] in card["inventory"]
    assert (card["training_seconds"], card["metrics"]) == (2.5, {"dev": {"compvis": {"ap50": 1.0}}})


@pytest.mark.data
def test_weights_ship_once_and_only_with_their_scores(
    tmp_path: Path, shipped_to: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUBSAR_DATA", str(data_root))
    run = a_run(tmp_path / "run", read_inventory(data_root))

    scored_before: list[Path] = []

    def breaks_off(weights: Path, *_: object) -> dict[str, dict[str, float]]:
        if not scored_before:
            scored_before.append(weights)
            return {"compvis": {"ap50": 1.0}}
        scored = [t for t in load_model(weights, "detect").state.values() if t.is_floating_point()]
        assert all(t.half().float().equal(t) for t in scored)  # what is scored is rounded
        raise KeyboardInterrupt

    monkeypatch.setattr(ship, "SCORERS", {"detect": breaks_off})
    with pytest.raises(KeyboardInterrupt):
        ship.ship("detect", run)
    assert not shipped_to.exists()


def test_the_time_of_a_training_is_read_past_a_line_that_was_cut_off(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "seconds": 2.5}\n{"step": 2, "sec', encoding="utf-8")
    assert ship.training_seconds(tmp_path) == 2.5


@pytest.mark.data
def test_weights_for_other_classes_are_not_shipped(
    tmp_path: Path, shipped_to: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUBSAR_DATA", str(data_root))
    with pytest.raises(InventoryMismatch, match="run: made for sign inventory"):
        ship.ship("detect", a_run(tmp_path / "run", Inventory((SignClass("𒀀", "A", "839"),))))
    assert not shipped_to.exists()
