"""Pretraining: continue a DINOv3 backbone, or begin one, on photographs of tablets without labels.

A student sees two global and several local views of the same clay, some of the global ones masked; a teacher, its
moving average, sees the global ones whole. The student learns to say of each view what the teacher says of another
(CLS loss), of each masked patch what the teacher sees there (patch loss), to spread its states (KoLeo), and to keep
patches as similar to one another as an earlier teacher found them at a higher resolution (Gram anchoring).

    dubsar train pretrain                               # configs/pretrain.yaml: the CPU size
    dubsar train pretrain --config configs/debug/pretrain.yaml
    torchrun --nproc-per-node 4 -- $(which dubsar) train pretrain --config configs/a100/pretrain.yaml
    dubsar train classify model.backbone=… model.weights=runs/pretrain/<name>/pretrain.safetensors

Reads photographs (``data.folders``, or those of ``tablet-signs``) through a cache of tiles; writes
``runs/pretrain/<name>/``, whose ``pretrain.safetensors`` has timm's key layout.

Sources: Caron et al. 2021 (DINO), Zhou et al. 2022 (iBOT), Oquab et al. 2023 (DINOv2), Siméoni et al. 2025 (DINOv3).
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch.loggers import TensorBoardLogger

from dubsar.configs.schema import PretrainConfig
from dubsar.datasets.crops import CropSize
from dubsar.datasets.inventory import read_inventory
from dubsar.datasets.sources import data_root
from dubsar.datasets.unlabelled import TileCache
from dubsar.datasets.views import ViewSettings, multi_crop
from dubsar.models.checkpoint import save_model, write_atomically
from dubsar.models.ssl.losses import cls_loss, gram, koleo, patch_loss, patch_weights, resize_patches, sinkhorn_knopp
from dubsar.models.ssl.masking import batch_masks
from dubsar.models.ssl.network import SslNetwork
from dubsar.pipelines.feature_pictures import feature_sheet, png
from dubsar.pipelines.features import drift, embed, knn
from dubsar.pipelines.levers.apply import apply_levers
from dubsar.pipelines.levers.resolve import Resolved, resolve_config
from dubsar.pipelines.networks import build_ssl
from dubsar.pipelines.optim import build_optimizer, clip_gradients, groups_by_depth
from dubsar.pipelines.schedules import cosine
from dubsar.pipelines.stages.classify import Crops, read_crops
from dubsar.pipelines.stream import Stream
from dubsar.pipelines.tile_cache import open_tiles
from dubsar.pipelines.training import RunFolder, build_trainer, fit, is_first_rank, model_card, open_run

LICENCE = (
    "Weights: CC BY-NC-SA 4.0, non-commercial, where trained on tablet-signs: photographs (c) The Trustees of the "
    "British Museum. Those continued from DINOv3 come under Meta's DINOv3 licence as well."
)


SEARCHED, SHOWN = 500, 4  # tiles that are looked through for pictures of features, and pictures


@dataclass(frozen=True)
class Labelled:
    """Labelled signs by which features are judged: the bank, and those whose class is asked for."""

    train: Crops
    dev: Crops
    classes: int


class PretrainSystem(L.LightningModule):  # type: ignore[misc]
    """The four losses, and the teacher's update behind each optimizer step."""

    def __init__(
        self, network: SslNetwork, labelled: Labelled | None, config: PretrainConfig, levers: Resolved
    ) -> None:
        super().__init__()
        self.network, self.labelled, self.config, self.levers = network, labelled, config, levers
        model, steps = config.model, config.trainer.max_steps
        self.momentum = cosine(*model.teacher_momentum, steps)
        end = config.optim.weight_decay if model.weight_decay_end is None else model.weight_decay_end
        self.weight_decay = cosine(config.optim.weight_decay, end, steps)
        self.shown_NSS3 = np.zeros((0, 0, 0, 3), np.uint8)  # clay of which each validation shows what is seen in it
        self.start_ND: npt.NDArray[np.float32] | None = None  # features of the start on dev, to measure drift

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        """Return the weighted sum of the losses; all of them are computed in float32."""
        model, network = self.config.model, self.network
        globals_, masks_BN = self.pixels(batch["globals_VBCHW"]), batch["masks_VBN"].flatten(0, 1)
        views, images = batch["globals_VBCHW"].shape[:2]
        with torch.no_grad():
            seen = network.teacher.encoder(globals_)
            cls_targets = self.targets(network.teacher.cls_head(seen.cls_BD)).chunk(views)
            patch_targets = self.targets(network.teacher.patch_head(seen.patches_BND[masks_BN]))
        whole, local = network.student.encoder.forward_shapes(
            [globals_, self.pixels(batch["locals_VBCHW"])], [masks_BN, None]
        )
        logits = network.student.cls_head(torch.cat((whole.cls_BD, local.cls_BD))).split(images)
        losses = {
            "cls": model.cls_weight * cls_loss(logits, cls_targets, model.student_temperature),
            "patch": model.patch_weight
            * patch_loss(
                network.student.patch_head(whole.patches_BND[masks_BN]),
                patch_targets,
                patch_weights(masks_BN),
                len(masks_BN),
                model.student_temperature,
            ),
            "koleo": model.koleo_weight * torch.stack([koleo(c) for c in whole.cls_BD.chunk(views)]).sum(),
        }
        if model.gram and self.done >= model.gram.from_step:
            losses["gram"] = model.gram.weight * self.gram_loss(whole.patches_BND, whole.grid, batch["grams_VBCHW"])
        self.log_dict({f"train/{name}": loss.detach() for name, loss in losses.items()})
        loss = torch.stack(list(losses.values())).sum()
        self.log("train/loss", loss.detach())
        return loss

    @property
    def done(self) -> int:
        """Optimizer steps that are done."""
        return int(self.network.step)

    def pixels(self, views_VBCHW: torch.Tensor) -> torch.Tensor:
        """Return uint8 views as one batch, 0-1, view after view."""
        pixels_BCHW = views_VBCHW.flatten(0, 1).to(self.network.teacher.encoder.mask_token.dtype) / 255
        if self.levers["channels_last"]:
            pixels_BCHW = pixels_BCHW.contiguous(memory_format=torch.channels_last)
        return pixels_BCHW

    def targets(self, logits_NK: torch.Tensor) -> torch.Tensor:
        """Return the teacher's assignments, balanced over prototypes."""
        first, last = self.config.model.teacher_temperature
        share = min(1.0, self.done / max(1, self.config.model.teacher_warmup_steps))
        return sinkhorn_knopp(logits_NK, first + share * (last - first))

    def gram_loss(self, patches_BND: torch.Tensor, grid: tuple[int, int], grams_VBCHW: torch.Tensor) -> torch.Tensor:
        """Hold the patches' similarities to those of the anchor, which sees the same views larger."""
        assert self.network.anchor is not None
        with torch.no_grad():
            held = self.network.anchor(self.pixels(grams_VBCHW))
            held_BND = resize_patches(held.patches_BND, held.grid, grid)
        return gram(patches_BND, held_BND)

    def validation_step(self, batch: torch.Tensor, _: int) -> None:
        """Judge the teacher's features by the labelled signs: k-NN from train to dev, and drift since the start."""
        self.log("val/step", float(self.done))
        if len(self.shown_NSS3) and isinstance(self.logger, TensorBoardLogger):
            picture = feature_sheet(self.network.teacher.encoder, self.shown_NSS3)
            self.logger.experiment.add_image("features", picture, self.done, dataformats="HWC")
        if self.labelled is None:
            return
        scores, dev_MD = self.score()
        self.log_dict({f"val/{name}": value for name, value in scores.items()})
        if self.start_ND is not None:
            self.log_dict({f"val/{name}_to_start": value for name, value in drift(self.start_ND, dev_MD).items()})

    def score(self) -> tuple[dict[str, float], npt.NDArray[np.float32]]:
        """Return how many labelled dev signs k-NN gets right, percent, and their features (M, D)."""
        assert self.labelled is not None
        top5_M5, dev_MD = self.neighbours()
        right_M5 = top5_M5 == self.labelled.dev.classes_N[:, None]
        shares = {"knn_top1": right_M5[:, 0].mean(), "knn_top5": right_M5.any(1).mean()}
        return {name: 100 * float(share) for name, share in shares.items()}, dev_MD

    def neighbours(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Return five classes (M, 5) of each labelled dev sign by its neighbours in train, and the features (M, D)."""
        assert self.labelled is not None
        train_ND, dev_MD = (self.embed(crops.pixels_NSS3) for crops in (self.labelled.train, self.labelled.dev))
        return knn(train_ND, self.labelled.train.classes_N, dev_MD, classes=self.labelled.classes), dev_MD

    def embed(self, pixels_NSS3: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Return the teacher's states (N, D) of whole crops."""
        encoder = self.network.teacher.encoder
        return embed(lambda x_BCHW: encoder(x_BCHW).cls_BD, pixels_NSS3, device=encoder.mask_token.device)

    def configure_optimizers(self) -> dict[str, Any]:
        """AdamW with a rate per layer; behind each step the teacher follows."""
        student, optim, steps = self.network.student, self.config.optim, self.config.trainer.max_steps
        groups = groups_by_depth(student, student.encoder.net, optim, self.config.model.layer_decay)
        chosen = build_optimizer(student, optim, steps, fused=self.levers["fused_optimizer"], groups=groups)
        optimizer = chosen["optimizer"]
        optimizer.register_step_pre_hook(lambda *_: self.before_step(optimizer))
        optimizer.register_step_post_hook(lambda *_: self.after_step())
        return chosen

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Set the decay of weights, a function of the step."""
        for group in optimizer.param_groups:
            group["weight_decay"] = self.weight_decay(self.done) if group["decays"] else 0.0

    def after_step(self) -> None:
        """Let the teacher follow, and the anchor where it is its turn."""
        self.network.update_teacher(self.momentum(self.done))
        self.network.step += 1
        gram = self.config.model.gram
        if gram and (self.done == gram.from_step or (gram.refresh_steps and self.done % gram.refresh_steps == 0)):
            self.network.refresh_anchor()

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Clip here: Lightning's own clipping refuses fused AdamW under bf16. Prototypes learn only after a while."""
        if self.done < self.config.model.freeze_prototypes_steps:
            for head in (self.network.student.cls_head, self.network.student.patch_head):
                head.prototypes.zero_grad()
        clip_gradients(self.network.student, self.config.trainer.clip_norm)


class ViewStream(Stream):
    """An endless stream of batches: images in an order shuffled per epoch, and views of each.

    In an epoch a tile gives as many images as the largest views of it would cover its writing, and at least one.
    ``data.together`` of one photograph come one after the other.
    """

    def __init__(self, tiles: TileCache, config: PretrainConfig, stride: int) -> None:
        data = config.data
        self.tiles, self.config = tiles, config
        self.settings = view_settings(config)
        self.grid = (data.global_px // stride, data.global_px // stride)
        times_N = np.maximum(1, np.rint(tiles.writing / data.global_signs[1] ** 2)).astype(np.int64)
        self.images = [np.repeat(np.arange(first, end), times_N[first:end]) for first, end in tiles.spans]
        self.epoch_images = int(times_N.sum())
        self._shuffled: tuple[int, npt.NDArray[np.int64]] = (-1, np.zeros(0, np.int64))

    def batch(self, number: int) -> dict[str, torch.Tensor]:
        """Return uint8 views (V, B, 3, H, W), global, local and for the anchor, and masks (V, B, N)."""
        size = self.config.data.batch_size
        rng = np.random.default_rng((self.config.trainer.seed, number))
        views = [self._views(number * size + row, rng) for row in range(size)]
        model, count = self.config.model, self.settings.globals_ * size
        masks_BN = batch_masks(count, self.grid, rng, probability=model.mask_probability, shares=model.mask_shares)
        batch = {
            "globals_VBCHW": _stack([v.globals_G for v in views]),
            "locals_VBCHW": _stack([v.locals_L for v in views]),
            "masks_VBN": torch.from_numpy(masks_BN).view(self.settings.globals_, size, -1),
        }
        return batch | ({"grams_VBCHW": _stack([v.grams_G for v in views])} if self.settings.gram_px else {})

    def _views(self, draw: int, rng: np.random.Generator) -> Any:
        epoch, place = divmod(draw, self.epoch_images)
        if self._shuffled[0] != epoch:
            self._shuffled = (epoch, self._order(epoch))
        tile = int(self._shuffled[1][place])
        sign_4 = None
        if rng.random() < self.config.data.around_signs:
            signs_N4 = self.tiles.signs(tile)
            sign_4 = signs_N4[rng.integers(len(signs_N4))] if len(signs_N4) else None
        return multi_crop(self.tiles.tile(tile), self.tiles.clay(tile), self.settings, rng, sign_4)

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return the tile of each image of an epoch."""
        rng, together = np.random.default_rng((self.config.trainer.seed, 1, epoch)), self.config.data.together
        groups = []
        for images in map(rng.permutation, self.images):
            groups += [images[first : first + together] for first in range(0, len(images), together)]
        return np.concatenate([groups[group] for group in rng.permutation(len(groups))])

    def epoch_batches(self) -> int:
        """Return how many batches hold an epoch."""
        return math.ceil(self.epoch_images / self.config.data.batch_size)

    def counts(self) -> dict[str, int]:
        """Count photographs and tiles."""
        return {"photographs": sum(p.tiles > 0 for p in self.tiles.photographs), "tiles": len(self.tiles)}


def _stack(views_B: list[Any]) -> torch.Tensor:
    """Return views (V, H, W, 3) of each image as one tensor (V, B, 3, H, W), still uint8: a quarter of the bytes."""
    return torch.from_numpy(np.stack(views_B, 1)).permute(0, 1, 4, 2, 3).contiguous()


def view_settings(config: PretrainConfig) -> ViewSettings:
    """Return how views are cut."""
    data, scale = config.data, config.model.gram.scale if config.model.gram else 0
    return ViewSettings(
        global_px=data.global_px,
        local_px=data.local_px,
        locals_=data.locals,
        global_signs=data.global_signs,
        local_signs=data.local_signs,
        global_boxes=data.global_boxes,
        local_boxes=data.local_boxes,
        gram_px=scale * data.global_px,
        sign_px=data.sign_px,
        **data.changes.model_dump(),
    )


Prepared = tuple[TileCache, Labelled | None]


def prepare(config: PretrainConfig, root: Path) -> Prepared:
    """Cache the tiles of all photographs, and cut the labelled signs.

    Raises:
        ValueError: no photograph, or none that shows clay; or the labelled data cannot be used (see `read_crops`).
    """
    data = config.data
    tiles = open_tiles(config, root)
    if not data.labelled:
        return tiles, None
    inventory, size = read_inventory(root), CropSize(data.crop_px, data.context)
    train, dev = (read_crops(root, split, size, inventory, data.limit) for split in ("train", "dev"))
    return tiles, Labelled(train, dev, len(inventory))


def build(
    config: PretrainConfig, levers: Resolved, prepared: Prepared | None = None
) -> tuple[PretrainSystem, ViewStream]:
    """Turn the config into a system and its training batches.

    Args:
        config: the stage's config.
        levers: what became of its efficiency block.
        prepared: what `prepare` gave, where several systems are built on the same data.

    Raises:
        ValueError: the data (see `prepare`), the weights to start from or a lever cannot be used.
    """
    network = build_ssl(config, attention=levers["attention"])
    stride = network.student.encoder.stride
    data, model = config.data, config.model
    for name, pixels in (("global_px", data.global_px), ("local_px", data.local_px), ("crop_px", data.crop_px)):
        if pixels % stride:
            raise ValueError(f"data.{name} is {pixels}, expected a multiple of the backbone's stride of {stride} px")
    if model.gram and not (model.weights or model.pretrained or model.gram.from_step or model.gram.refresh_steps):
        raise ValueError(
            "model.gram: the anchor would stay the random weights of the start; begin with model.weights or "
            "model.pretrained, or set gram.from_step or gram.refresh_steps"
        )
    apply_levers(network, levers)
    tiles, labelled = prepared or prepare(config, data_root())
    stream = ViewStream(tiles, config, stride)
    print("pretrain: " + ", ".join(f"{count:,} {name}" for name, count in stream.counts().items()))
    system = PretrainSystem(network, labelled, config, levers)
    system.shown_NSS3 = shown(tiles, stride)
    if labelled:
        scores, system.start_ND = system.score()
        print("pretrain: the start's features, k-NN on dev: " + "  ".join(f"{k} {v:.1f}" for k, v in scores.items()))
    return system, stream


def shown(tiles: TileCache, stride: int) -> npt.NDArray[np.uint8]:
    """Return the middle of the tiles that show most clay (N, S, S, 3), of as many photographs."""
    best: dict[str, tuple[int, int]] = {}
    for index in range(min(len(tiles), SEARCHED)):
        clay = int(np.count_nonzero(tiles.clay(index)))
        best[tiles.photograph(index)] = max(best.get(tiles.photograph(index), (0, 0)), (clay, index))
    side = tiles.tile_px // 2 // stride * stride
    first = (tiles.tile_px - side) // 2
    chosen = sorted(best.values(), reverse=True)[:SHOWN]
    return np.stack([tiles.tile(index)[first : first + side, first : first + side] for _, index in chosen])


def run(config: PretrainConfig, folder: Path, *, resume: bool = False, overwrite: bool = False) -> dict[str, float]:
    """Train, keep and write the last teacher, and return its features' scores on dev (on the first rank).

    The last, not the best on dev: some hundreds of labelled signs tell k-NN within a point or two, about what thousands
    of steps bring, and whoever has no labelled signs gets the same.
    """
    levers = resolve_config(config)
    system, stream = build(config, levers)
    trainer = build_trainer(config, RunFolder(folder), levers, monitor="val/step", mode="max")
    run_folder = open_run(folder, config, levers, resume=resume, overwrite=overwrite)
    fit(trainer, system, stream, run_folder, resume=resume)
    if not is_first_rank(config.trainer):
        return {}
    scores = system.score()[0] if system.labelled else {}
    encoder = system.network.teacher.encoder
    write_atomically(folder / "features.png", lambda f: f.write(png(feature_sheet(encoder.eval(), system.shown_NSS3))))
    card = model_card(config, scores, normalisation=encoder.normalise, licence=LICENCE)
    save_model(folder / "pretrain", encoder.backbone_state(), card)
    return scores
