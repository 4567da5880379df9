"""Sign classification: which sign of the inventory a crop shows.

    dubsar train classify                               # configs/classify.yaml
    dubsar train classify --config configs/debug/classify.yaml
    dubsar evaluate classify --split test

The tail is long: of 335 classes 107 have 20 crops or more. Classes are sampled by ``count ** -balance_power``, and
signs rendered on clay are mixed in, so that a class with two photographs is seen in more than two lights. Nothing is
mirrored. With ``model.teacher`` the network also learns what a larger one, or an ensemble, thinks of each crop.

Reads ``tablet-signs`` below the data root, or what ``data.source`` and ``data.root`` name (a folder per class, COCO);
writes ``runs/classify/<name>/``.
"""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import numpy.typing as npt
import torch

from dubsar.configs.schema import ClassifyConfig, ClassifyData
from dubsar.datasets.augment import crop_augmentation
from dubsar.datasets.crops import CropSize, cut_crops
from dubsar.datasets.formats.collect import is_cuneiform
from dubsar.datasets.formats.tablet_signs import Photograph
from dubsar.datasets.inventory import Inventory
from dubsar.datasets.photographs import open_photographs
from dubsar.datasets.signs import SignSource
from dubsar.datasets.sources import data_root
from dubsar.datasets.synthetic.glyphs import GlyphFont
from dubsar.datasets.synthetic.scene import render_sign
from dubsar.models.adapters import merge_adapters
from dubsar.models.backbones import SignClassifier
from dubsar.models.checkpoint import save_model
from dubsar.models.ensemble import resized
from dubsar.models.precision import at_least_float32
from dubsar.pipelines.crop_cache import Arrays, crop_folder, crop_key, kept
from dubsar.pipelines.distillation import Teacher, load_teacher
from dubsar.pipelines.features import embed
from dubsar.pipelines.levers.apply import apply_levers
from dubsar.pipelines.levers.resolve import Resolved, resolve_config
from dubsar.pipelines.metrics import ClassScores, score_classes
from dubsar.pipelines.mixing import mix
from dubsar.pipelines.networks import build_classifier
from dubsar.pipelines.optim import build_optimizer, clip_gradients, groups_by_depth
from dubsar.pipelines.reading.engine import classify_crops, to_input
from dubsar.pipelines.schedules import SIDE_STEP, growing_side
from dubsar.pipelines.signs import open_signs, training_font
from dubsar.pipelines.stream import Stream, count_names
from dubsar.pipelines.training import RunFolder, build_trainer, fit, is_first_rank, model_card, open_run

LICENCE = (
    "Weights: CC BY-NC-SA 4.0, non-commercial. Trained on photographs (c) The Trustees of the British Museum; "
    "boxes: eBL (MIT) and Dencker et al. 2020."
)
OTHER_LICENCE = "Weights: as the licence of the pictures in {} allows, which dubsar does not know; state it here."
BORDER = 0.2  # room around a training crop, as a share of its side


@dataclass(frozen=True)
class Crops:
    """Crops (N, S, S, 3) uint8, their class ids (N,), and the tablet that each was cut from, where it is known."""

    pixels_NSS3: npt.NDArray[np.uint8]
    classes_N: npt.NDArray[np.int64]
    tablets_N: npt.NDArray[np.str_] = field(default_factory=lambda: np.zeros(0, dtype=np.str_))

    def chosen(self, index_M: npt.NDArray[np.int64]) -> "Crops":
        """Return some of the crops."""
        return Crops(self.pixels_NSS3[index_M], self.classes_N[index_M], self.tablets_N[index_M])


class ClassifySystem(L.LightningModule):  # type: ignore[misc]
    """Cross-entropy over the inventory, with label smoothing, mixup or CutMix, and logit adjustment by frequency."""

    def __init__(
        self,
        network: SignClassifier,
        dev: Crops,
        prior_C: torch.Tensor,
        config: ClassifyConfig,
        levers: Resolved,
        teacher: Teacher | None = None,
    ) -> None:
        super().__init__()
        self.network, self.dev, self.config, self.levers = network, dev, config, levers
        self.teacher = teacher
        data, steps = config.data, config.trainer.max_steps
        self.side_at = growing_side(data.first_px or data.crop_px, data.crop_px, steps)
        self.register_buffer("log_prior_C", prior_C.clamp(min=1e-6).log(), persistent=False)

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        """Return the mean loss per crop; the softmax runs in float32."""
        model = self.config.model
        pixels, classes = resized(batch["pixels_BCHW"], self.side_at(self.global_step)), batch["classes_B"]
        if self.levers["channels_last"]:
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        mixed = mix(pixels, mixup=model.mixup, cutmix=model.cutmix)
        plain = at_least_float32(self.network(mixed.pixels_BCHW))
        logits = plain + model.logit_adjustment * self.log_prior_C
        loss = mixed.share * _cross_entropy(logits, classes, model.label_smoothing)
        if model.mixup or model.cutmix:
            loss = loss + (1 - mixed.share) * _cross_entropy(logits, classes[mixed.other_B], model.label_smoothing)
        if self.teacher:
            loss = self.teacher.blend(loss, plain, mixed.pixels_BCHW)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: torch.Tensor, _: int) -> None:
        """Score the dev crops."""
        scores = score_crops(self.network, self.dev)
        self.log_dict({"val/top1": scores.top1, "val/top5": scores.top5, "val/macro_f1": scores.macro_f1})

    def configure_optimizers(self) -> dict[str, Any]:
        """AdamW with warm-up, with a rate per layer where that is asked for."""
        network, optim, decay = self.network, self.config.optim, self.config.model.layer_decay
        groups = groups_by_depth(network, network.net, optim, decay) if decay < 1 else None
        fused, swa = self.levers["fused_optimizer"], self.levers["swa"]
        return build_optimizer(network, optim, self.config.trainer.max_steps, fused=fused, swa=swa, groups=groups)

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Clip here: Lightning's own clipping refuses fused AdamW under bf16."""
        clip_gradients(self.network, self.config.trainer.clip_norm)


def _cross_entropy(logits_BC: torch.Tensor, classes_B: torch.Tensor, smoothing: float) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits_BC, classes_B, label_smoothing=smoothing)


class CropStream(Stream):
    """An endless stream of batches: photographed crops by class weight, and rendered ones by class."""

    def __init__(
        self, crops: Crops, inventory: Inventory, font: GlyphFont | None, data: ClassifyData, seed: int
    ) -> None:
        self.crops, self.data, self.seed = crops, data, seed
        self.classes = inventory.classes
        self.augment = crop_augmentation()
        counts = np.bincount(crops.classes_N, minlength=len(inventory)).astype(float)
        power = data.balance_power if data.sampler == "balanced" else 0.0
        weights = counts[crops.classes_N] ** -power
        self.share = np.cumsum(weights / weights.sum())
        # a label may stand in for a glyph, and a font of cuneiform may have Latin letters as well
        glyphs = [(c, sign.glyph) for c, sign in enumerate(self.classes) if is_cuneiform(sign.glyph)]
        self.covered = [(c, font) for c, glyph in glyphs if font and font.covers(glyph)]

    def batch(self, number: int) -> dict[str, torch.Tensor]:
        """Return pixels in 0-1 (B, 3, S, S) and class ids (B,)."""
        rng = np.random.default_rng((self.seed, number))
        self.augment.set_random_seed(int(rng.integers(2**31)))
        rows = [self._draw(rng) for _ in range(self.data.batch_size)]
        pixels = torch.from_numpy(np.stack([r[0] for r in rows]))
        # contiguous: permuted pixels are channels-last already, and then the lever would be on where it is off
        return {"pixels_BCHW": to_input(pixels).contiguous(), "classes_B": torch.tensor([r[1] for r in rows])}

    def epoch_batches(self) -> int:
        """Return how many batches hold as many crops as there are photographed ones."""
        return -(-len(self.crops.classes_N) // self.data.batch_size)

    def counts(self) -> dict[str, int]:
        """Count the photographed crops of each class that has any."""
        return count_names(self.crops.classes_N, [c.name or c.glyph for c in self.classes])

    def frequencies(self) -> npt.NDArray[np.float64]:
        """Return how often batches show each class (C,), the sum being 1: what logit adjustment makes up for."""
        weights_N = np.diff(self.share, prepend=0.0)
        shown_C = np.bincount(self.crops.classes_N, weights=weights_N, minlength=len(self.classes))
        rendered = self.data.synthetic_fraction if self.covered else 0.0
        drawn_C = np.bincount([c for c, _ in self.covered], minlength=len(self.classes)) / max(1, len(self.covered))
        return np.asarray((1 - rendered) * shown_C + rendered * drawn_C)

    def _draw(self, rng: np.random.Generator) -> tuple[npt.NDArray[np.uint8], int]:
        side = self.data.crop_px
        if self.covered and rng.random() < self.data.synthetic_fraction:
            class_id, font = self.covered[rng.integers(len(self.covered))]
            pixels = render_sign(self.classes[class_id].glyph, font, rng, side, keep_aspect=False)
        else:
            index = min(int(np.searchsorted(self.share, rng.random())), len(self.share) - 1)
            pixels, class_id = self.crops.pixels_NSS3[index], int(self.crops.classes_N[index])
        return centre(self.augment(image=pixels)["image"], side), class_id


def centre(pixels_SS3: npt.NDArray[np.uint8], side: int) -> npt.NDArray[np.uint8]:
    """Cut the middle (side, side, 3) out of a crop that has a border."""
    first = (pixels_SS3.shape[0] - side) // 2
    return pixels_SS3[first : first + side, first : first + side]


def read_crops(
    source: SignSource | Path,
    split: str,
    size: CropSize,
    inventory: Inventory,
    limit: int = 0,
    *,
    max_bad: int | None = None,
    ignore_unknown: bool = False,
    cache: Path | None = None,
) -> Crops:
    """Cut the crops of a split; each photograph is decoded once, or not at all where the crops are in a cache.

    Args:
        source: the labelled signs; of a path the ``tablet-signs/`` in that data folder.
        split: ``train``, ``dev`` or ``test``.
        size: side and margin of a crop.
        inventory: classes that all boxes must belong to.
        limit: at most so many crops; 0: all.
        max_bad: skip so many photographs that cannot be read (for training); none where None.
        ignore_unknown: drop and count boxes that cannot be used or have no class (for training).
        cache: folder where crops are kept, see `dubsar.pipelines.crop_cache`; nowhere where None.

    Raises:
        ValueError: see `SignSource.photographs` and `open_photographs`, as for other errors.
    """
    signs = SignSource(source) if isinstance(source, Path) else source
    photographs = signs.photographs(split, inventory, ignore_unknown=ignore_unknown)
    cut = partial(_cut, photographs, size, inventory, limit, max_bad)
    if cache is None:
        return Crops(**cut()[0])
    try:
        key = crop_key(photographs, size, inventory, limit=limit)
    except OSError:  # a photograph is not there: whoever reads it says so, or skips it
        return Crops(**cut()[0])
    return Crops(**kept(cache, key, cut))


def _cut(
    photographs: list[Photograph], size: CropSize, inventory: Inventory, limit: int, max_bad: int | None
) -> tuple[Arrays, bool]:
    """Return the fields of `Crops`, and whether no photograph was skipped."""
    pixels, classes, tablets = [np.zeros((0, size.side_px, size.side_px, 3), np.uint8)], [], []
    for photograph, image in open_photographs(photographs, max_bad=max_bad):
        in_picture = image.from_file_pixels(np.array([b.box_xyxy for b in photograph.boxes]))
        pixels.append(cut_crops(image.rgb_HW3, in_picture, size))
        classes += [inventory.id_of_glyph[b.glyph] for b in photograph.boxes]
        tablets += [photograph.object_id] * len(photograph.boxes)
        if limit and len(classes) >= limit:
            break
    end = limit or None
    arrays: Arrays = {
        "pixels_NSS3": np.concatenate(pixels)[:end],
        "classes_N": np.array(classes[:end], dtype=np.int64),
        "tablets_N": np.array(tablets[:end], dtype=np.str_),
    }
    wanted = sum(len(p.boxes) for p in photographs)
    return arrays, 0 < len(classes[:end]) == min(limit or wanted, wanted)


def score_crops(network: SignClassifier, crops: Crops) -> ClassScores:
    """Classify and score crops."""
    return score_classes(classify_crops(network, crops.pixels_NSS3).numpy(), crops.classes_N)


def prepare(config: ClassifyConfig, root: Path) -> tuple[Crops, Crops]:
    """Cut the crops of train, with a border, and of dev.

    Raises:
        ValueError: no crop is left to learn from, or the data cannot be used (see `read_crops`).
    """
    data, signs = config.data, open_signs(config.data, root)
    read = partial(read_crops, signs, inventory=signs.inventory(), limit=data.limit, cache=crop_folder(data.cache))
    wide = CropSize(data.crop_px, data.context, BORDER)
    train = read("train", wide, max_bad=data.max_bad, ignore_unknown=data.ignore_unknown)
    dev = read("dev", CropSize(data.crop_px, data.context))
    train = draw_share(train, data.label_fraction, config.trainer.seed)
    if not len(train.classes_N):
        place = signs.root / "tablet-signs" if data.source == "tablet-signs" else signs.root
        raise ValueError(f"{place}: no training photograph with a box is left; `dubsar data check`")
    return train, dev


def draw_share(crops: Crops, share: float, seed: int) -> Crops:
    """Return a share of the crops, at least one, in their order, and say how many classes that leaves without any.

    Which ones is drawn by the seed.
    """
    if share >= 1:
        return crops
    count = len(crops.classes_N)
    order = np.random.default_rng(seed).permutation(count)
    chosen = crops.chosen(np.sort(order[: max(1, round(share * count))]))
    before, after = (len(np.unique(c.classes_N)) for c in (crops, chosen))
    print(
        f"data.label_fraction {share:g}: {len(chosen.classes_N)} of {count} training crops; "
        f"{before - after} of {before} classes are left without one"
    )
    return chosen


def build(
    config: ClassifyConfig, levers: Resolved, prepared: tuple[Crops, Crops] | None = None
) -> tuple[ClassifySystem, CropStream]:
    """Turn the config into a system and its training batches.

    Args:
        config: the stage's config.
        levers: what became of its efficiency block.
        prepared: what `prepare` gave, where several systems are built on the same data.

    Raises:
        ValueError: the data (see `prepare`), a lever (see `apply_levers`) or the teacher (see `load_teacher`) cannot be
            used.
        FontError: signs are to be rendered and there is no font.
    """
    data, root = config.data, data_root()
    font = training_font(root, data.font) if data.synthetic_fraction else None
    inventory = open_signs(data, root).inventory()
    teacher = load_teacher(config, inventory)
    network = build_classifier(config, len(inventory))
    _require_sides(network, data)
    if config.model.train == "head":
        network.freeze_backbone()
    apply_levers(network, levers, static=not data.first_px)
    train, dev = prepared or prepare(config, root)
    stream = CropStream(train, inventory, font, data, config.trainer.seed)
    seen = len(np.unique(train.classes_N))
    print(f"classify: {len(train.classes_N)} training crops of {seen} classes, {len(stream.covered)} rendered")
    prior_C = torch.from_numpy(stream.frequencies()).float()
    return ClassifySystem(network, dev, prior_C, config, levers, teacher), stream


def _require_sides(network: SignClassifier, data: ClassifyData) -> None:
    """Refuse crops of a side that the backbone does not take; some take one alone, some take whole patches."""
    sides = [("crop_px", data.crop_px, f"set another side, or give model.backbone_args={{img_size: {data.crop_px}}}")]
    if data.first_px:
        growing = (data.first_px, min(data.first_px + SIDE_STEP, data.crop_px))
        sides += [("first_px", side, "leave it out") for side in growing]
    for name, side, advice in sides:
        try:
            network.eval()(torch.zeros(1, 3, side, side))
        except (AssertionError, RuntimeError) as error:  # timm's ways of refusing
            fault = f"data.{name} is {getattr(data, name)}, but this backbone takes no crops of {side} px ({error})"
            raise ValueError(f"{fault}; {advice}") from error
    network.train()


def finish(system: ClassifySystem, stream: CropStream) -> None:
    """Make a trained network what is scored and written: adapters merged, prototypes added."""
    merge_adapters(system.network)
    if system.config.model.prototypes:
        add_prototypes(system.network, stream.crops, system.config)


def add_prototypes(network: SignClassifier, crops: Crops, config: ClassifyConfig) -> None:
    """Let likeness to the training crops, seen without augmentation, count beside the head.

    Args:
        network: trained; changed in place.
        crops: of training, with a border.
        config: of the stage, with its ``model.prototypes``.
    """
    wanted, side = config.model.prototypes, config.data.crop_px
    assert wanted is not None
    pixels_NSS3 = np.stack([centre(pixels, side) for pixels in crops.pixels_NSS3])
    device = next(network.parameters()).device
    features_ND = torch.from_numpy(embed(network.eval().embed, pixels_NSS3, device=device))
    prototypes = network.add_prototypes(wanted.weight, wanted.temperature)
    prototypes.fill(features_ND, torch.from_numpy(crops.classes_N), below=wanted.below)
    network.to(device)


def run(config: ClassifyConfig, folder: Path, *, resume: bool = False, overwrite: bool = False) -> dict[str, float]:
    """Train, keep and write the weights that are best on dev, and return their dev scores (on the first rank)."""
    levers = resolve_config(config)
    system, stream = build(config, levers)
    trainer = build_trainer(config, RunFolder(folder), levers, monitor="val/top1", mode="max")
    run_folder = open_run(folder, config, levers, resume=resume, overwrite=overwrite)
    fit(trainer, system, stream, run_folder, resume=resume)
    if not is_first_rank(config.trainer):
        return {}
    finish(system, stream)
    scores = score_crops(system.network, system.dev).to_dict()
    card = model_card(
        config,
        scores,
        open_signs(config.data).inventory(),
        normalisation=f"RGB 0-1, then {config.model.normalise}",
        licence=LICENCE if config.data.source == "tablet-signs" else OTHER_LICENCE.format(config.data.root),
        **({"teacher": system.teacher.provenance} if system.teacher else {}),
    )
    save_model(folder / "classify", system.network.state_dict(), card)
    return scores
