"""Turn a run's weights into those that ship: rounded to float16, scored on dev before and after, with a full card."""

import itertools
import tempfile
from pathlib import Path

import torch

from dubsar.datasets.inventory import read_inventory
from dubsar.datasets.sources import data_root
from dubsar.models.checkpoint import load_model, save_model, shipped
from dubsar.pipelines.callbacks import read_metrics
from dubsar.pipelines.evaluation import SCORERS
from dubsar.pipelines.networks import load_classifier
from dubsar.pipelines.signs import open_signs


def ship(stage: str, run: Path) -> None:
    """Write ``models/weights/<stage>`` from a run folder and print the dev scores before and after rounding.

    Both are scored with the same card, temperature and all, in a temporary folder, so that those that ship are replaced
    once, with their scores.

    Raises:
        FileNotFoundError: the run has no weights.
        CheckpointError: they are damaged, or of another stage.
        InventoryMismatch: they were trained for other classes than those of the data folder.
    """
    file = load_model(run, stage)
    card = dict(file.card)
    if "members" not in card:  # an ensemble has the time of its members in its card
        card["training_seconds"] = training_seconds(run)
    for made_anew in ("format", "sha256", "parameters", "versions"):
        card.pop(made_anew, None)
    if "inventory" in card:  # the same classes, with all catalogue numbers that the sign list gives by now
        inventory = (
            open_signs(load_classifier(run / stage)[1].data).inventory()
            if stage == "classify"
            else read_inventory(data_root())
        )
        inventory.require(card["inventory_hash"], str(run))
        card["inventory"] = inventory.to_list()
    if stage == "classify":
        card["temperature"] = fit_temperature(run / stage)
    found = []
    for dtype in (torch.float32, torch.float16):
        with tempfile.TemporaryDirectory() as folder:
            save_model(Path(folder) / stage, file.state, card, dtype=dtype)
            found.append(SCORERS[stage](Path(folder) / stage, "dev", 0))
    before, rounded = found
    card["metrics"] = {"dev": rounded}
    save_model(shipped(stage), file.state, card, dtype=torch.float16)
    for part, scores in rounded.items():
        print(f"{stage}, {part}: " + "  ".join(f"{k} {before[part][k]:.2f} -> {v:.2f}" for k, v in scores.items()))
    print(f"{shipped(stage)}.safetensors: {shipped(stage).with_suffix('.safetensors').stat().st_size / 1e6:.1f} MB")


def fit_temperature(weights: Path) -> float:
    """Find the temperature at which a classifier fits dev best (least negative log likelihood).

    It is fitted as reading uses it: on the mean over three margins, which is less sure than any one of them.
    """
    from dubsar.pipelines.calibration import score_calibration
    from dubsar.pipelines.scoring.evaluate import examine_signs
    from dubsar.pipelines.scoring.scores import answers

    looks = examine_signs(weights, "dev").looks
    candidates = torch.logspace(-0.7, 0.5, 61).tolist()
    losses = [score_calibration(answers(looks, t).probabilities_NC, looks.classes_N).nll for t in candidates]
    return float(candidates[losses.index(min(losses))])


def training_seconds(run: Path) -> float:
    """Return how long the run's training took, as its log says."""
    clock = [float(r["seconds"]) for r in read_metrics(run / "metrics.jsonl") if "seconds" in r]
    # a resumed run starts its clock again: the last reading before each restart counts
    return sum(now for now, later in itertools.pairwise([*clock, -1.0]) if later < now)
