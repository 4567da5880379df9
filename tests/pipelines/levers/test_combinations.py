"""Levers together: real trainings of a tiny classifier, every pair of levers in at least one of them.

Each row also stops behind step 3 and is resumed, and writes weights that load without any lever. The compiler is
``aot_eager`` in all rows but one: it traces, functionalises and recomputes as inductor does, and is built in a second.
"""

import copy
import itertools
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback

from dubsar.configs.base import load
from dubsar.configs.schema import ClassifyConfig
from dubsar.models.adapters import merge_adapters
from dubsar.models.backbones import SignClassifier
from dubsar.pipelines.callbacks import read_metrics, write_json
from dubsar.pipelines.levers.apply import apply_levers
from dubsar.pipelines.levers.resolve import resolve_config
from dubsar.pipelines.stages.classify import ClassifySystem, Crops
from dubsar.pipelines.stream import Stream
from dubsar.pipelines.training import RunFolder, build_trainer, fit, seed_everything

DEBUG = Path(__file__).resolve().parents[3] / "configs" / "debug" / "classify.yaml"
STEPS, STOP = 6, 3
DORA = "{rank: 2, alpha: 4, targets: [qkv, fc1]}"
VALUES: dict[str, tuple[str, ...]] = {
    "checkpointing": ("off", "full", "selective"),
    "compile": ("off", "per_block"),
    "dora": ("null", DORA),
    "precision": ("fp32", "bf16"),
    "ema": ("null", "{decay: 0.5}"),
}
ROWS = [
    ("off", 0, 0, 0, 0),
    ("off", 1, 1, 1, 1),
    ("full", 0, 0, 1, 1),
    ("full", 1, 1, 0, 0),
    ("selective", 0, 1, 0, 1),
    ("selective", 1, 0, 1, 0),
]
WITH_INDUCTOR = ROWS[5]


def test_every_pair_of_levers_is_in_a_row() -> None:
    columns = list(zip(*ROWS, strict=True))
    for one, two in itertools.combinations(range(len(columns)), 2):
        pairs = set(zip(columns[one], columns[two], strict=True))
        assert len(pairs) == len(set(columns[one])) * len(set(columns[two]))


class Random(Stream):
    """Crops and classes, made up."""

    def batch(self, number: int) -> dict[str, torch.Tensor]:
        draw = torch.Generator().manual_seed(number)
        return {
            "pixels_BCHW": torch.rand(4, 3, 32, 32, generator=draw),
            "classes_B": torch.randint(5, (4,), generator=draw),
        }

    def epoch_batches(self) -> int:
        return 100


class Stop(Callback):  # type: ignore[misc]
    """Save and stop behind a step, as if the run's time had been up."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *rest: Any) -> None:
        if trainer.global_step == STOP:
            trainer.save_checkpoint(self.run.last, weights_only=False)
            trainer.should_stop = True


def make() -> SignClassifier:
    torch.manual_seed(0)
    tiny = {"img_size": 32, "embed_dim": 16, "depth": 1, "num_heads": 2, "mlp_ratio": 2.0}
    return SignClassifier("vit_tiny_patch16_224", 5, backbone_args=tiny, drop_rate=0.1)


def configured(row: tuple[Any, ...]) -> ClassifyConfig:
    chosen = [row[0], *(VALUES[name][on] for name, on in zip(list(VALUES)[1:], row[1:], strict=True))]
    levers = [f"efficiency.{name}={value}" for name, value in zip(VALUES, chosen, strict=True)]
    plain = (f"trainer.max_steps={STEPS}", "trainer.val_every_steps=100", "optim.lr=1.0e-3", "optim.warmup_steps=0")
    return load(DEBUG, ClassifyConfig, (*plain, "efficiency.fused_optimizer=true", *levers))


def train(row: tuple[Any, ...], folder: Path, *, stop: bool = False, resume: bool = False) -> ClassifySystem:
    config = configured(row)
    levers, run = resolve_config(config), RunFolder(folder)
    seed_everything(config.trainer)
    network = make()
    torch._dynamo.reset()
    apply_levers(network, levers, backend="inductor" if row == WITH_INDUCTOR else "aot_eager")
    crops = Crops(np.zeros((4, 32, 32, 3), np.uint8), np.arange(4))
    system = ClassifySystem(network, crops, torch.full((5,), 0.2), config, levers)
    folder.mkdir(exist_ok=True)
    write_json(folder / "levers.json", levers.to_list())
    trainer = build_trainer(config, run, levers, monitor="val/top1", mode="max")
    trainer.callbacks += [Stop(run)] if stop else []
    fit(trainer, system, Random(), run, resume=resume)
    return system


def losses(folder: Path) -> list[float]:
    return [row["train/loss"] for row in read_metrics(folder / "metrics.jsonl") if "train/loss" in row]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    folder = tmp_path_factory.mktemp("reference") / "run"
    train(ROWS[0], folder)
    return losses(folder)


@pytest.mark.parametrize("row", ROWS, ids=lambda r: "-".join(map(str, r)))
def test_levers_together_train_resume_and_write_plain_weights(
    row: tuple[Any, ...], tmp_path: Path, reference: list[float]
) -> None:
    whole = train(row, tmp_path / "whole")
    trace = losses(tmp_path / "whole")
    assert len(trace) == STEPS
    _, _, dora, bf16, _ = row
    compared = 1 if dora else STEPS  # adapters change nothing at first, and learn otherwise
    assert trace[:compared] == pytest.approx(reference[:compared], rel=2e-2 if bf16 else 1e-5)

    train(row, tmp_path / "broken", stop=True)
    RunFolder(tmp_path / "broken").best.unlink(missing_ok=True)  # of the validation that Lightning ends with
    resumed = train(row, tmp_path / "broken", resume=True)
    assert losses(tmp_path / "broken") == trace
    left, again = whole.state_dict(), resumed.state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in left.items())

    network = copy.deepcopy(whole.network)
    merge_adapters(network)
    fresh = make()
    fresh.load_state_dict(network.state_dict())
    pixels = torch.rand(2, 3, 32, 32)
    with torch.compiler.set_stance("force_eager"), torch.no_grad():
        assert torch.allclose(fresh.eval()(pixels), whole.network.eval()(pixels), atol=1e-5)
