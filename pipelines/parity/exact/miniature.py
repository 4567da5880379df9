"""Each stage in small, without a data file: the real system, stream and collator, a tiny network, made-up data.

The same seed gives the same first weights and the same batches, whatever the levers, so that two miniatures differ in
their levers alone. Levers are resolved and applied as in a training, and `fit` trains through the same trainer.
"""

import io
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from torch.utils._pytree import tree_map
from transformers.models.t5.modeling_t5 import T5LayerNorm

from dubsar.configs.blocks import Efficiency, Optim, Trainer
from dubsar.configs.schema import (
    ClassifyConfig,
    ClassifyData,
    ClassifyModel,
    DetectConfig,
    DetectData,
    DetectModel,
    Gram,
    PretrainConfig,
    PretrainData,
    PretrainModel,
    StageConfig,
    TransliterateConfig,
    TransliterateData,
    TransliterateModel,
)
from dubsar.datasets.crops import CropSize
from dubsar.datasets.inventory import Inventory, SignClass
from dubsar.datasets.windows import make_picture
from dubsar.models.detector import Detector
from dubsar.pipelines.levers.apply import apply_levers
from dubsar.pipelines.levers.observe import Observer
from dubsar.pipelines.levers.resolve import Resolved, resolve_config
from dubsar.pipelines.networks import build_classifier, build_detector, build_ssl
from dubsar.pipelines.stages import classify, detect, pretrain, transliterate
from dubsar.pipelines.stream import Stream
from dubsar.pipelines.training import RunFolder, build_trainer, seed_everything
from dubsar.pipelines.training import fit as fit_stage

CLASSES = 6
TILE = 128
LARGE_TILE = 640  # from here on the anchors of stride 4 need more than the 8 significand bits of bfloat16
SIGN_PX = 40.0
# one of most kinds of block that YOLO11 has, at strides 4 and 8: far quicker to compile than its 23 layers
SMALL_YOLO: dict[str, Any] = {
    "nc": 1,
    "scale": "n",
    "scales": {"n": [0.5, 1.0, 64]},
    "backbone": [
        [-1, 1, "Conv", [8, 3, 2]],
        [-1, 1, "Conv", [8, 3, 2]],
        [-1, 1, "C3k2", [16, False, 0.5]],
        [-1, 1, "Conv", [16, 3, 2]],
        [-1, 1, "SPPF", [16, 5]],
    ],
    "head": [
        [-1, 1, "nn.Upsample", [None, 2, "nearest"]],
        [[-1, 2], 1, "Concat", [1]],
        [-1, 1, "Conv", [16, 1, 1]],
        [[7, 4], 1, "Detect", ["nc"]],
    ],
}


@dataclass(frozen=True)
class Miniature:
    """One stage in small, ready to train.

    Attributes:
        config: as of a real run.
        levers: what became of ``config.efficiency`` here.
        system: the stage's own.
        stream: the stage's own.
    """

    config: StageConfig
    levers: Resolved
    system: Any
    stream: Stream


Change = Callable[[Miniature], None]  # what a negative control breaks in a miniature


def build(
    stage: str,
    efficiency: Efficiency,
    *,
    seed: int = 0,
    steps: int = 1,
    large: bool = False,
    change: Change | None = None,
) -> Miniature:
    """Build a stage in small.

    Args:
        stage: stage name.
        efficiency: the levers.
        seed: of weights, made-up data and batches.
        steps: optimizer steps that it will train for.
        large: detect computes tiles of `LARGE_TILE`.
        change: what to do to it when it is built.
    """
    trainer = Trainer(
        max_steps=steps,
        val_every_steps=10**9,  # never: there is no dev set
        clip_norm=0.0,  # would hide a gradient that is wrong by a factor
        seed=seed,
        threads=torch.get_num_threads(),
        log_every_steps=10**9,
    )
    settings = {
        "name": "miniature",
        "optim": Optim(lr=1e-3, warmup_steps=0, schedule="constant"),
        "trainer": trainer,
        "efficiency": efficiency,
    }
    seed_everything(trainer)
    miniature = _detect(settings, LARGE_TILE if large else TILE) if stage == "detect" else _BUILDERS[stage](settings)
    if change:
        change(miniature)
    return miniature


@dataclass(frozen=True)
class _Tiles:
    """A cache of tiles (N, S, S, 3) in memory, clay all over."""

    pixels_NSS3: Any

    def __len__(self) -> int:
        return len(self.pixels_NSS3)

    def tile(self, index: int) -> Any:
        return self.pixels_NSS3[index]

    def clay(self, index: int) -> Any:
        return np.full(self.pixels_NSS3.shape[1:3], 255, np.uint8)

    def photograph(self, index: int) -> str:
        return str(index)

    @property
    def spans(self) -> list[tuple[int, int]]:
        return [(index, index + 1) for index in range(len(self))]

    @property
    def writing(self) -> Any:
        return np.zeros(len(self))


def _pretrain(settings: dict[str, Any]) -> Miniature:
    rng = np.random.default_rng(settings["trainer"].seed)
    config = PretrainConfig(
        data=PretrainData(tile=TILE, sign_px=16, global_px=32, local_px=16, locals=2, batch_size=4, labelled=False),
        model=PretrainModel(
            backbone="vit_small_patch16_dinov3",
            # layer scale as timm draws it (1e-5) would leave nothing of a block to compare
            backbone_args={
                "img_size": 32,
                "patch_size": 8,
                "embed_dim": 32,
                "depth": 2,
                "num_heads": 2,
                "init_values": 0.5,
            },
            prototypes=32,
            patch_prototypes=32,
            hidden=32,
            bottleneck=16,
            gram=Gram(scale=2),
        ),
        **settings,
    )
    levers = resolve_config(config)
    network = build_ssl(config, attention=levers["attention"])
    apply_levers(network, levers)
    tiles: Any = _Tiles(np.stack([_clay(rng, TILE) for _ in range(6)]))
    stream = pretrain.ViewStream(tiles, config, network.student.encoder.stride)
    return Miniature(config, levers, pretrain.PretrainSystem(network, None, config, levers), stream)


def _classify(settings: dict[str, Any]) -> Miniature:
    rng = np.random.default_rng(settings["trainer"].seed)
    config = ClassifyConfig(
        data=ClassifyData(crop_px=32, batch_size=8, sampler="balanced"),
        model=ClassifyModel(
            backbone="resnet10t",
            # a last norm of nought, as timm draws it, would let no gradient through to a frozen network's adapters
            backbone_args={"channels": [8, 8, 16, 16], "stem_width": 8, "zero_init_last": False},
            label_smoothing=0.1,
            logit_adjustment=0.5,
        ),
        **settings,
    )
    levers = resolve_config(config)
    side = CropSize(config.data.crop_px, config.data.context, classify.BORDER).side_px
    classes_N = np.arange(4 * CLASSES) % CLASSES
    crops = classify.Crops(np.stack([_clay(rng, side) for _ in classes_N]), classes_N)
    inventory = Inventory(tuple(SignClass(chr(0x12000 + n), f"SIGN{n}") for n in range(CLASSES)))
    network = build_classifier(config, CLASSES)
    apply_levers(network, levers)
    stream = classify.CropStream(crops, inventory, None, config.data, config.trainer.seed)
    prior_C = torch.from_numpy(stream.frequencies()).float()
    return Miniature(config, levers, classify.ClassifySystem(network, crops, prior_C, config, levers), stream)


def _detect(settings: dict[str, Any], tile: int) -> Miniature:
    rng = np.random.default_rng(settings["trainer"].seed)
    config = DetectConfig(
        data=DetectData(tile=tile, sign_px=SIGN_PX, batch_size=1), model=DetectModel(classes="agnostic"), **settings
    )
    levers = resolve_config(config)
    corners_N2 = rng.uniform(0, 840, (40, 2))
    boxes_N4 = np.concatenate((corners_N2, corners_N2 + rng.uniform(20, 60, (40, 2))), 1)
    picture = make_picture(_clay(rng, 900), boxes_N4, np.zeros(40), SIGN_PX, exhaustive=False)
    network = build_detector(config, CLASSES)
    _make_small(network)
    apply_levers(network, levers)
    stream = detect.Windows([picture], [], ["sign"], config.data, config.trainer.seed)
    return Miniature(config, levers, detect.DetectSystem(network, [], config, levers), stream)


def _make_small(network: Detector) -> None:
    """Put `SMALL_YOLO` into a detector, with the settings that the large one had."""
    large = network.net
    network.net = type(large)(dict(SMALL_YOLO), ch=3, nc=network.classes, verbose=False)
    network.net.args = large.args
    for module in network.net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 0.1


def _transliterate(settings: dict[str, Any]) -> Miniature:
    rng = np.random.default_rng(settings["trainer"].seed)
    config = TransliterateConfig(
        data=TransliterateData(batch_tokens=768),
        model=TransliterateModel(
            d_model=32, d_kv=16, d_ff=64, heads=2, encoder_layers=2, decoder_layers=2, dropout=0.0
        ),
        **settings,
    )
    levers = resolve_config(config)
    examples = [_line(rng, signs) for signs in (1, 2, 2, 3, 4, 5, 7, 9, 12, 16)]
    with redirect_stdout(io.StringIO()):  # statistics of made-up lines are of no interest
        system, stream = transliterate.build(config, levers, (examples, {}))
    for stack in (system.network.encoder, system.network.decoder):  # as drawn, where a key stands hardly matters
        stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight.data.mul_(4)
    return Miniature(config, levers, system, stream)


_BUILDERS = {"pretrain": _pretrain, "classify": _classify, "transliterate": _transliterate}


def _clay(rng: np.random.Generator, side: int) -> Any:
    """Return random spots (side, side, 3) uint8."""
    coarse = rng.integers(0, 256, (-(-side // 6), -(-side // 6), 3), dtype=np.uint8)
    return coarse.repeat(6, 0).repeat(6, 1)[:side, :side]


def _line(rng: np.random.Generator, signs: int) -> transliterate.Example:
    glyphs = tuple(chr(0x12000 + int(n)) for n in rng.integers(0, 40, signs))
    pieces = tuple("".join(rng.choice(list("abdegiklmn-"), rng.integers(1, 7))) for _ in range(signs))
    return transliterate.Example(glyphs, pieces, "akk")


def fit(miniature: Miniature, callbacks: Iterable[Callback]) -> None:
    """Train a miniature through the trainer of a real run, in a temporary folder; what is to be watched is given."""
    with tempfile.TemporaryDirectory(prefix="dubsar-parity-") as folder:
        run = RunFolder(Path(folder))
        trainer: L.Trainer = build_trainer(miniature.config, run, miniature.levers, monitor="val/none", mode="max")
        trainer.callbacks = [*callbacks, *(c for c in trainer.callbacks if not isinstance(c, Observer))]
        fit_stage(trainer, miniature.system, miniature.stream, run, resume=False)


@contextmanager
def in_float64(miniature: Miniature) -> Iterator[None]:
    """Compute a miniature in float64 from the weights and batches that it has in float32."""
    before, batch = torch.get_default_dtype(), miniature.stream.batch
    miniature.system.double()
    for module in miniature.system.modules():
        if isinstance(module, T5LayerNorm):  # its own takes the variance in float32, whatever it is given
            module.forward = partial(_rms_norm, module)  # type: ignore[method-assign]
    miniature.stream.batch = lambda number: tree_map(_as_double, batch(number))  # type: ignore[method-assign]
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
        miniature.stream.batch = batch  # type: ignore[method-assign]


def _rms_norm(norm: T5LayerNorm, states_BLD: torch.Tensor) -> torch.Tensor:
    mean_BL1 = states_BLD.square().mean(-1, keepdim=True)
    scaled_BLD: torch.Tensor = norm.weight * states_BLD * torch.rsqrt(mean_BL1 + norm.variance_epsilon)
    return scaled_BLD


def _as_double(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
