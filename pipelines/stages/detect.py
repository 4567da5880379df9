"""Sign detection: where on the photograph signs stand, by YOLO11 with a P2 level on tiles.

    dubsar train detect                                 # configs/detect.yaml
    dubsar train detect --config configs/debug/detect.yaml
    dubsar evaluate detect --split test

Photographs are scaled so that a sign is about ``data.sign_px`` large, cut into random windows around labelled signs,
and changed in light and focus, never mirrored. Validation runs the same search as reading: the scale is estimated, not
given. With ``model.features`` the features of a pretrained backbone help YOLO.

Reads ``tablet-signs`` below the data root; writes ``runs/detect/<name>/``.
"""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch

from dubsar.configs.schema import DetectConfig, DetectData
from dubsar.datasets.augment import tile_augmentation
from dubsar.datasets.formats.tablet_signs import Photograph
from dubsar.datasets.inventory import Inventory, read_inventory
from dubsar.datasets.photographs import labelled_photographs, open_photographs
from dubsar.datasets.sources import data_root
from dubsar.datasets.windows import UNLABELLED_WEIGHT, Picture, make_picture, random_window, sign_size
from dubsar.models.checkpoint import save_model
from dubsar.models.detector import STRIDE, Detector
from dubsar.pipelines.levers.apply import apply_levers
from dubsar.pipelines.levers.resolve import Resolved, resolve_config
from dubsar.pipelines.metrics import Found, average_precision
from dubsar.pipelines.networks import build_detector
from dubsar.pipelines.optim import build_optimizer, clip_gradients
from dubsar.pipelines.reading.engine import find_signs, tile_settings
from dubsar.pipelines.stream import Stream, count_names
from dubsar.pipelines.training import RunFolder, build_trainer, fit, is_first_rank, model_card, open_run

LICENCE = (
    "Weights: CC BY-NC-SA 4.0, non-commercial. Trained on photographs (c) The Trustees of the British Museum; "
    "boxes: eBL (MIT) and Dencker et al. 2020. Network: Ultralytics YOLO11 (AGPL-3.0)."
)
OF_FEATURES = " The weights of the backbone beside it (model.features) come under their own licence as well."


class DetectSystem(L.LightningModule):  # type: ignore[misc]
    """Ultralytics' detection loss per tile, in float32."""

    def __init__(self, network: Detector, dev: list[Photograph], config: DetectConfig, levers: Resolved) -> None:
        super().__init__()
        self.network, self.dev, self.config, self.levers = network, dev, config, levers

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        """Return the mean loss per tile."""
        pixels = batch["tiles_BCHW"]
        if self.levers["channels_last"]:
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        loss, parts = self.network.loss(self.network(pixels), batch)
        self.log("train/loss", loss)
        self.log_dict({f"train/{name}": value for name, value in parts.items()})
        return loss

    def validation_step(self, batch: torch.Tensor, _: int) -> None:
        """Search the dev photographs as reading does; ``val/ap50`` is class-agnostic."""
        self.log_dict({f"val/{k}": v for k, v in score_photographs(self.network, self.dev, self.config).items()})

    def configure_optimizers(self) -> dict[str, Any]:
        """AdamW with warm-up."""
        fused, swa = self.levers["fused_optimizer"], self.levers["swa"]
        return build_optimizer(self.network, self.config.optim, self.config.trainer.max_steps, fused=fused, swa=swa)

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Clip here: Lightning's own clipping refuses fused AdamW under bf16."""
        clip_gradients(self.network, self.config.trainer.clip_norm)


class Windows(Stream):
    """Batches of random windows; a photograph is drawn by the square root of its number of signs."""

    def __init__(
        self, real: list[Picture], rendered: list[Picture], names: list[str], data: DetectData, seed: int
    ) -> None:
        self.real, self.rendered, self.names, self.data, self.seed = real, rendered, names, data, seed
        weights = np.sqrt([len(p.boxes_N4) for p in real])
        self.share = weights / weights.sum()
        self.augment = tile_augmentation()

    def batch(self, number: int) -> dict[str, torch.Tensor]:
        """Return a batch for `Detector.loss`."""
        rng = np.random.default_rng((self.seed, number))
        self.augment.set_random_seed(int(rng.integers(2**31)))
        return collate([self._draw(rng) for _ in range(self.data.batch_size)])

    def epoch_batches(self) -> int:
        """Return how many batches hold as many windows as there are pictures."""
        return -(-(len(self.real) + len(self.rendered)) // self.data.batch_size)

    def counts(self) -> dict[str, int]:
        """Count the labelled signs of each class that has any, photographed and rendered."""
        return count_names(np.concatenate([p.classes_N for p in (*self.real, *self.rendered)]), self.names)

    def _draw(self, rng: np.random.Generator) -> dict[str, Any]:
        rendered = self.rendered and rng.random() < self.data.synthetic_fraction
        picture = (
            self.rendered[rng.integers(len(self.rendered))]
            if rendered
            else self.real[rng.choice(len(self.real), p=self.share)]
        )
        tile, boxes, classes, labelled = random_window(picture, self.data.tile, self.data.scale_jitter, rng)
        return self.augment(image=tile, bboxes=boxes, classes=classes, mask=labelled)  # type: ignore[no-any-return]


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Stack augmented windows: pixels 0-1 (B, 3, S, S), boxes xywh 0-1 with their tile's index, background weights."""
    side = rows[0]["image"].shape[0]
    boxes = [np.asarray(r["bboxes"], dtype=np.float32).reshape(-1, 4) for r in rows]
    xyxy = np.concatenate(boxes) / side
    labelled = torch.from_numpy(np.stack([r["mask"] for r in rows])[:, 2::4, 2::4].copy())
    return {
        # contiguous: permuted pixels are channels-last already, and then the lever would be on where it is off
        "tiles_BCHW": (
            torch.from_numpy(np.stack([r["image"] for r in rows])).permute(0, 3, 1, 2).float() / 255
        ).contiguous(),
        "batch_idx": torch.from_numpy(np.repeat(np.arange(len(rows)), [len(b) for b in boxes])),
        "cls": torch.from_numpy(np.concatenate([np.asarray(r["classes"], np.float32).reshape(-1, 1) for r in rows])),
        "bboxes": torch.from_numpy(np.concatenate(((xyxy[:, :2] + xyxy[:, 2:]) / 2, xyxy[:, 2:] - xyxy[:, :2]), 1)),
        "weight_BHW": torch.where(labelled > 127, 1.0, UNLABELLED_WEIGHT),
    }


Prepared = tuple[list[Picture], list[Picture], list[Photograph]]


def prepare(config: DetectConfig, root: Path) -> Prepared:
    """Load and scale the training photographs, and render synthetic tablets; all stay in memory.

    Returns:
        Photographed and rendered pictures, and the photographs of dev.

    Raises:
        ValueError: the data cannot be used, see `labelled_photographs` and `open_photographs`, or none is left.
        FontError: tablets are to be rendered and there is no font.
    """
    data = config.data
    inventory = read_inventory(root)
    named = config.model.classes == "inventory"
    real = []
    photographs = labelled_photographs(root, "train", inventory if named else None, ignore_unknown=data.ignore_unknown)
    for photograph, image in islice(open_photographs(photographs, max_bad=data.max_bad), data.limit or None):
        classes = [inventory.id_of_glyph[b.glyph] if named else 0 for b in photograph.boxes]
        boxes = image.from_file_pixels(np.array([b.box_xyxy for b in photograph.boxes]))
        real.append(make_picture(image.rgb_HW3, boxes, classes, data.sign_px, exhaustive=False))
    if not real:
        raise ValueError(f"{root / 'tablet-signs'}: no training photograph with a box is left; `dubsar data check`")
    rendered = [
        _render(seed, root, inventory if named else None, data.sign_px) for seed in range(data.synthetic_tablets)
    ]
    print(f"detect: {len(real)} photographs, {len(rendered)} rendered tablets, signs {data.sign_px:g} px")
    dev = labelled_photographs(root, "dev")[: data.limit or None]
    for _ in open_photographs(dev):  # a damaged one is to fail here, not at the first validation
        pass
    return real, rendered, dev


def _render(seed: int, root: Path, inventory: Inventory | None, sign_px: float) -> Picture:
    from dubsar.datasets.synthetic.glyphs import assyrian_table, available_fonts
    from dubsar.datasets.synthetic.scene import render_tablet

    rendered = render_tablet(seed, fonts=available_fonts(assyrian_table(root)))
    signs = [s for s in rendered.tablet.signs() if s.box is not None and s.damage in {"intact", "damaged"}]
    if inventory:  # a sign that has no class is not taught as another; its clay counts as background
        signs = [s for s in signs if s.glyph in inventory.id_of_glyph]
    classes = [inventory.id_of_glyph[s.glyph] if inventory else 0 for s in signs]
    return make_picture(rendered.rgb_HW3, [s.box for s in signs if s.box], classes, sign_px, exhaustive=True)


def score_photographs(network: Detector, photographs: list[Photograph], config: DetectConfig) -> dict[str, float]:
    """Search photographs and score what was found, in percent.

    Returns:
        ``ap50``, ``ap``, ``recall50`` class-agnostic; ``scale_off``, the median of |found / true sign size - 1|; and
        where the detector names signs ``map50``, over the classes that occur as truth.
    """
    network.eval()
    settings = tile_settings(config)
    named = config.model.classes == "inventory"
    ids = read_inventory(data_root()).id_of_glyph if named else {}
    with_class, off = [], []
    for photograph, image in open_photographs(photographs):
        result = find_signs(network, image.rgb_HW3, settings)
        truth = image.from_file_pixels(np.array([b.box_xyxy for b in photograph.boxes]))
        # a sign that the inventory lacks can be found, but never named right
        classes = np.array([ids.get(b.glyph, len(ids)) for b in photograph.boxes], dtype=np.int64)
        with_class.append(Found(result.boxes_N4, result.scores_N, result.classes_N, truth, classes))
        if len(truth):
            off.append(abs(result.sign_px / sign_size(truth) - 1))
    agnostic = [replace(f, classes_N=f.classes_N * 0, true_classes_M=f.true_classes_M * 0) for f in with_class]
    scores = average_precision(agnostic) | {"scale_off": 100 * float(np.median(off)) if off else 0.0}
    return scores | ({"map50": average_precision(with_class)["ap50"]} if named else {})


def build(config: DetectConfig, levers: Resolved, prepared: Prepared | None = None) -> tuple[DetectSystem, Stream]:
    """Turn the config into a system and its training batches.

    Args:
        config: the stage's config.
        levers: what became of its efficiency block.
        prepared: what `prepare` gave, where several systems are built on the same data.

    Raises:
        ValueError: the tile is not a multiple of the network's stride, or the data or features cannot be used.
        FileNotFoundError: the weights of the features are not there.
        FontError: tablets are to be rendered and there is no font.
    """
    if config.data.tile % STRIDE:
        raise ValueError(f"data.tile is {config.data.tile}, expected a multiple of {STRIDE}")
    root = data_root()
    inventory = read_inventory(root)
    network = build_detector(config, len(inventory))
    apply_levers(network, levers)
    real, rendered, dev = prepared or prepare(config, root)
    names = [c.name or c.glyph for c in inventory.classes] if config.model.classes == "inventory" else ["sign"]
    windows = Windows(real, rendered, names, config.data, config.trainer.seed)
    return DetectSystem(network, dev, config, levers), windows


def run(config: DetectConfig, folder: Path, *, resume: bool = False, overwrite: bool = False) -> dict[str, float]:
    """Train, keep and write the weights that are best on dev, and return their dev scores (on the first rank)."""
    levers = resolve_config(config)
    system, stream = build(config, levers)
    trainer = build_trainer(config, RunFolder(folder), levers, monitor="val/ap50", mode="max")
    run_folder = open_run(folder, config, levers, resume=resume, overwrite=overwrite)
    fit(trainer, system, stream, run_folder, resume=resume)
    if not is_first_rank(config.trainer):
        return {}
    scores = score_photographs(system.network, system.dev, config)
    licence = LICENCE + (OF_FEATURES if config.model.features else "")
    card = model_card(config, scores, read_inventory(data_root()), normalisation="RGB 0-1", licence=licence)
    save_model(folder / "detect", system.network.state_dict(), card)
    return scores
