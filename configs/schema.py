"""The config of each stage. One class per stage, one YAML per class; the stage's module turns it into objects."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from dubsar.configs.base import Block
from dubsar.configs.blocks import (
    Count,
    Distill,
    Efficiency,
    Fraction,
    LikePrototypes,
    Natural,
    Optim,
    Positive,
    Trainer,
    usable_for_byt5,
)

Name = Annotated[str, Field(pattern=r"^\w[\w.-]*$")]  # of a run: a folder is called so
Device = Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:[0-9]+)?)$")]  # auto: the first GPU, or the CPU without one


Span = tuple[Positive, Positive]


class ViewChanges(Block):
    """How the same clay differs between views: see `dubsar.datasets.views.ViewSettings` for the units."""

    rotate: Annotated[float, Field(ge=0, le=15)] = 6.0  # degrees
    stretch: Fraction = 0.15
    light: Fraction = 0.5
    relief: Fraction = 0.25
    colour: Fraction = 0.3
    grey: Fraction = 0.25  # from here on: probabilities
    blur: Fraction = 0.4
    grain: Fraction = 0.3
    jpeg: Fraction = 0.2


class PretrainData(Block):
    """Unlabelled photographs, cached as tiles in which a sign is ``sign_px`` high, and the views cut from them.

    Windows are measured in sign heights, so that a local view holds a few signs whatever the photograph's resolution;
    or they lie around single signs.
    """

    folders: tuple[str, ...] = ()  # of photographs, searched through; none: the training photographs of tablet-signs
    cache: str = ""  # where tiles are kept; empty: the user's cache folder
    synthetic_tablets: Natural = 0  # rendered ones beside the photographs
    sign_px: Positive = 32.0  # square root of the median box area after scaling
    tile: Count = 384
    global_px: Count = 64
    local_px: Count = 32
    locals: Count = 8  # local views of an image, beside its two global ones
    global_signs: Span = (2.5, 6.0)  # sign heights that a global view is high
    local_signs: Span = (0.9, 2.5)
    around_signs: Fraction = 0.0  # share of images that show one sign, stretched to a square as a classifier sees it
    global_boxes: Span = (1.0, 1.5)  # sides of those views, over those of the box that the detector found
    local_boxes: Span = (0.5, 0.9)
    changes: ViewChanges = ViewChanges()
    batch_size: Count = 32  # images; each gives all of its views
    together: Count = 1  # images of one photograph in a row: what tells them apart is the signs, not the clay
    labelled: bool = True  # validate on the labelled signs of tablet-signs: k-NN from train to dev
    crop_px: Count = 64  # of those signs
    context: Fraction = 0.15
    limit: Natural = 0  # at most so many photographs, and labelled crops per split; 0: all
    max_bad: Natural = 10  # photographs that cannot be read are skipped and listed, up to so many

    @model_validator(mode="after")
    def _views_fit_into_tiles(self) -> "PretrainData":
        largest = max(self.global_signs[1], self.local_signs[1]) * self.sign_px
        if largest > self.tile:
            raise ValueError(
                f"views of up to {largest:g} px (global_signs, local_signs times sign_px) do not fit into tiles of "
                f"{self.tile} px; lower them, or raise tile"
            )
        for name in ("global_signs", "local_signs", "global_boxes", "local_boxes"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name} is {[low, high]}, expected the smaller one first")
        return self


class Gram(Block):
    """Gram anchoring: similarities of patches stay those of an earlier teacher, which saw a higher resolution."""

    weight: Positive = 1.0
    scale: Count = 2  # resolution of the anchor's views over that of the global ones
    from_step: Natural = 0  # before it the loss is off; then the anchor is the teacher of that step
    refresh_steps: Natural = 0  # every so many steps the anchor becomes the teacher; 0: it stays what it was


class Rope(Block):
    """Random changes of the coordinates of rotary positions in training; 1 changes nothing."""

    shift: Annotated[float, Field(ge=0)] = 0.0
    jitter: Annotated[float, Field(ge=1)] = 1.0
    rescale: Annotated[float, Field(ge=1)] = 2.0


class PretrainModel(Block):
    """A timm backbone, student and averaging teacher, and the two heads that the losses look through."""

    backbone: str
    backbone_args: Annotated[dict[str, Any], Field(default_factory=dict)]  # keyword arguments of timm.create_model
    pretrained: bool = False
    weights: str = ""  # local safetensors: timm's or Meta's key layout, or a former run's pretrain.safetensors
    normalise: Literal["imagenet", "fixed", "per_crop"] = "imagenet"
    drop_path_rate: Fraction = 0.0
    rope: Rope | None = None  # None: as the backbone's own config has it
    prototypes: Count = 65536
    patch_prototypes: Count = 65536
    hidden: Count = 2048  # width of the heads
    bottleneck: Count = 256
    cls_weight: Annotated[float, Field(ge=0)] = 1.0
    patch_weight: Annotated[float, Field(ge=0)] = 1.0
    koleo_weight: Annotated[float, Field(ge=0)] = 0.1
    gram: Gram | None = None
    mask_probability: Fraction = 0.5  # share of global views that are masked
    mask_shares: tuple[Fraction, Fraction] = (0.1, 0.5)  # of a masked view's patches
    student_temperature: Positive = 0.1
    teacher_temperature: Span = (0.04, 0.07)  # at the start, and after warm-up
    teacher_warmup_steps: Natural = 0
    teacher_momentum: tuple[Fraction, Fraction] = (0.992, 1.0)  # at the start and at the end, by a cosine
    weight_decay_end: Annotated[float, Field(ge=0)] | None = None  # at the end, by a cosine; None: constant
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0  # of the learning rate, per block from the last to the first
    freeze_prototypes_steps: Natural = 0  # the heads' last layers stay as they are at first


class PretrainConfig(Block):
    """Self-supervised (continual) pretraining on photographs."""

    stage: Literal["pretrain"] = "pretrain"
    name: Name = "default"
    data: PretrainData = PretrainData()
    model: PretrainModel
    optim: Optim
    trainer: Trainer
    efficiency: Efficiency = Efficiency()


class ClassifyData(Block):
    """Sign crops: the box widened by ``context`` of its side on every side, stretched to ``crop_px``."""

    source: Literal["tablet-signs", "folders", "coco"] = "tablet-signs"  # folders: ROOT/CLASS/*.png, one sign a picture
    root: str = ""  # the folder of that data set; of tablet-signs the one that holds it, empty: DUBSAR_DATA
    # what the labels of folders and coco are: numbers of a catalogue, names as Oracc has them, glyphs, or plain labels
    catalogue: Literal["none", "glyph", "name", "HZL", "MZL", "ABZ"] = "none"
    tablet_pattern: str = ""  # regular expression that finds the tablet in a file name; empty: without its counter
    more_signs: str = ""  # table of further training boxes of tablet-signs, such as `dubsar data align` writes
    font: str = ""  # file of the font that signs are rendered with; empty: Assyrian, or Noto
    crop_px: Count = 64
    first_px: Natural = 0  # side of training crops at first, shrunk; it grows to crop_px; 0: crop_px throughout
    context: Fraction = 0.15
    batch_size: Count = 64
    sampler: Literal["natural", "balanced"] = "natural"
    balance_power: Fraction = 0.5  # weight of a class = count ** -power; 1 is fully balanced
    synthetic_fraction: Fraction = 0.0  # share of a training batch that is rendered
    limit: Natural = 0  # at most so many crops per split; 0: all
    label_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0  # of the training crops, drawn by trainer.seed
    cache: bool | str = False  # keep training and dev crops on disk: in the user's cache folder, or in the one named
    max_bad: Natural = 10  # training photographs that cannot be read are skipped and listed, up to so many
    ignore_unknown: bool = False  # drop and count boxes that cannot be used or have no class, instead of refusing them

    @model_validator(mode="after")
    def _crops_grow(self) -> "ClassifyData":
        if self.first_px > self.crop_px:
            raise ValueError(f"first_px is {self.first_px}, expected at most crop_px ({self.crop_px}): crops grow")
        return self

    @model_validator(mode="after")
    def _source_is_complete(self) -> "ClassifyData":
        if self.source != "tablet-signs" and not self.root:
            raise ValueError(f"source is {self.source} and root is empty; give the data set's folder as data.root")
        if self.source == "tablet-signs" and (self.catalogue != "none" or self.tablet_pattern):
            raise ValueError(
                "catalogue and tablet_pattern say how to read a data set of labels, but source is tablet-signs, whose "
                "tables say both; leave them out, or set source to folders or coco"
            )
        if self.source != "tablet-signs" and self.more_signs:
            raise ValueError(f"more_signs adds to tablet-signs, but source is {self.source}; leave it out")
        try:
            re.compile(self.tablet_pattern)
        except re.error as error:
            raise ValueError(
                f"tablet_pattern {self.tablet_pattern!r} is no regular expression ({error}); "
                r"expected one such as '^(KBo[ _.\d]+)'"
            ) from error
        return self


class ClassifyModel(Block):
    """A timm backbone with a linear head over the whole inventory."""

    backbone: str
    # keyword arguments of timm.create_model, such as the channels of a narrow ResNet
    backbone_args: Annotated[dict[str, Any], Field(default_factory=dict)]
    pretrained: bool = False
    weights: str = ""  # local safetensors: timm's key layout, a run's pretrain.safetensors or classify.safetensors
    # head: the backbone stays as it is, and in evaluation mode (linear probe); adapters: efficiency.dora
    train: Literal["all", "head"] = "all"
    # of the learning rate, from a layer to the one below: a ViT's blocks, other networks' stages
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    # per_crop: each crop to mean 0, deviation 1 over its pixels; imagenet: as timm's weights of that name expect
    normalise: Literal["fixed", "per_crop", "imagenet"] = "fixed"
    drop_rate: Fraction = 0.0
    drop_path_rate: Fraction = 0.0
    label_smoothing: Fraction = 0.0
    # tau of Menon et al. 2021; 1 is the balanced softmax of Ren et al. 2020
    logit_adjustment: Annotated[float, Field(ge=0)] = 0.0
    mixup: Annotated[float, Field(ge=0)] = 0.0  # alpha of the beta distribution
    cutmix: Annotated[float, Field(ge=0)] = 0.0  # likewise; with both, each batch is mixed by one of the two
    prototypes: LikePrototypes | None = None
    teacher: str = ""  # weights of a classifier or an ensemble, or a run folder, that `distill` learns from
    distill: Distill | None = None

    @field_validator("layer_decay")
    @classmethod
    def _a_frozen_backbone_has_one_rate(cls, decay: float, info: ValidationInfo) -> float:
        if decay != 1 and info.data.get("train") == "head":
            raise ValueError("conflicts with train: head, which leaves one layer to train; set it to 1 or train to all")
        return decay

    @model_validator(mode="after")
    def _a_teacher_and_how_to_learn_from_it(self) -> "ClassifyModel":
        if self.distill is not None and not self.teacher:
            raise ValueError(
                "distill is set and teacher is empty; give a classifier's weights as teacher, or no distill"
            )
        if self.teacher and self.distill is None:
            raise ValueError("teacher is given and distill is not; set distill: {weight: 0.5, temperature: 2}")
        return self


class ClassifyConfig(Block):
    """Sign classification."""

    stage: Literal["classify"] = "classify"
    name: Name = "default"
    data: ClassifyData = ClassifyData()
    model: ClassifyModel
    optim: Optim
    trainer: Trainer
    efficiency: Efficiency = Efficiency()

    @field_validator("efficiency")
    @classmethod
    def _usable(cls, efficiency: Efficiency, info: ValidationInfo) -> Efficiency:
        model, data = info.data.get("model"), info.data.get("data")  # absent where they are faulty
        if efficiency.dora is not None and model is not None and model.train == "head":
            raise ValueError("dora conflicts with model.train: head, which trains no layer below; keep one of the two")
        if efficiency.cuda_graphs and data is not None and data.first_px:
            raise ValueError("cuda_graphs needs one side for all crops; leave data.first_px out, or cuda_graphs")
        return efficiency


class DetectData(Block):
    """Tiles of photographs whose scale is normalised so that a sign is about ``sign_px`` high."""

    tile: Count = 640
    overlap: Fraction = 0.2
    sign_px: Positive = 32.0  # square root of the median box area after scaling
    scale_jitter: Fraction = 0.25
    batch_size: Count = 4
    synthetic_fraction: Fraction = 0.0
    synthetic_tablets: Natural = 0
    limit: Natural = 0  # at most so many photographs per split; 0: all
    max_bad: Natural = 10  # training photographs that cannot be read are skipped and listed, up to so many
    ignore_unknown: bool = False  # drop and count boxes that cannot be used or have no class, instead of refusing them


class DetectFeatures(Block):
    """A pretrained backbone beside YOLO: what it sees is added to the map of stride 8, at the start with weight zero.

    ``data.tile`` must be a multiple of its stride, px per patch.
    """

    backbone: str  # timm model name, as stage pretrain takes it
    backbone_args: Annotated[dict[str, Any], Field(default_factory=dict)]
    normalise: Literal["imagenet", "fixed", "per_crop"] = "imagenet"  # as in its pretraining
    # local safetensors, as of PretrainModel, or the folder of such a run; read when a training starts, never later
    weights: Annotated[str, Field(min_length=1)]
    frozen: bool = True  # false: trained as well, at the detector's own rate


class DetectModel(Block):
    """YOLO11 with a P2 level; ``classes: agnostic`` finds signs, ``inventory`` also names them."""

    scale: Literal["n", "s", "m", "l", "x"] = "n"
    classes: Literal["agnostic", "inventory"] = "agnostic"
    box_gain: Positive = 7.5
    cls_gain: Positive = 0.5
    dfl_gain: Positive = 1.5
    features: DetectFeatures | None = None


class DetectConfig(Block):
    """Sign detection."""

    stage: Literal["detect"] = "detect"
    name: Name = "default"
    data: DetectData = DetectData()
    model: DetectModel = DetectModel()
    optim: Optim
    trainer: Trainer
    efficiency: Efficiency = Efficiency()


class TransliterateData(Block):
    """Line pairs. An optimizer step has as many lines as fit, packed, into ``batch_tokens`` ids (source and target)."""

    sources: tuple[Literal["oracc", "hittite", "ebl"], ...] = ("oracc", "hittite")
    hittite_repeat: Count = 1
    batch_tokens: Count = 6000
    max_signs: Count = 60  # longer lines are left out of training (counted and printed), never of evaluation
    broken_noise: Fraction = 0.0  # share of training lines that get a random break
    val_lines: Natural = 400  # dev lines per source that choose the checkpoint; 0: all
    limit: Natural = 0  # at most so many training lines per source; 0: all


class TransliterateModel(Block):
    """A ByT5: from a local Hugging Face folder, or an own size from scratch."""

    pretrained: str = ""  # local folder or hub name, e.g. google/byt5-small
    d_model: Count = 256
    d_kv: Count = 64
    d_ff: Count = 768
    heads: Count = 4
    encoder_layers: Count = 4
    decoder_layers: Count = 2
    dropout: Fraction = 0.1
    sign_encoding: Literal["utf8", "compact"] = "compact"
    beams: Count = 1
    readings_weight: Annotated[float, Field(ge=0)] = 1.0  # of the table of readings in decoding; 0: the network alone


class TransliterateConfig(Block):
    """Sign sequences to transliteration."""

    stage: Literal["transliterate"] = "transliterate"
    name: Name = "default"
    data: TransliterateData = TransliterateData()
    model: TransliterateModel = TransliterateModel()
    optim: Optim
    trainer: Trainer
    efficiency: Efficiency = Efficiency()

    _usable = field_validator("efficiency")(usable_for_byt5)


class ReadConfig(Block):
    """Reading a photograph with trained weights. Empty paths mean the weights that ship with dubsar."""

    stage: Literal["read"] = "read"
    detector: str = ""
    classifier: str = ""
    transliterator: str = ""
    language: Literal["akk", "hit", "xhu"] = "akk"
    detect_threshold: Fraction = 0.25
    doubtful_below: Fraction = 0.5  # a sign below this gets `?`
    unread_below: Fraction = 0.20  # a sign below this is written `x`
    # weight of a find on an edge or outside all views: it is seen at an angle, and often for a second time
    edge_weight: Fraction = 0.5
    edges: Literal["aside", "text"] = "aside"  # aside: edges are read, but kept out of the running text
    relight: Natural = 0  # name each sign under so many other exposures as well, see `dubsar evaluate classify`
    top_k: Count = 5
    beams: Count = 1
    max_megapixels: Positive = 400.0
    threads: Natural = 0
    device: Device = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"  # of detector and classifier; the transliterator computes in fp32

    @model_validator(mode="after")
    def _unread_is_more_doubtful(self) -> "ReadConfig":
        if self.unread_below > self.doubtful_below:
            raise ValueError(
                f"unread_below is {self.unread_below:g}, expected at most doubtful_below ({self.doubtful_below:g})"
            )
        return self


STAGES: dict[str, type[PretrainConfig] | type[ClassifyConfig] | type[DetectConfig] | type[TransliterateConfig]] = {
    "pretrain": PretrainConfig,
    "classify": ClassifyConfig,
    "detect": DetectConfig,
    "transliterate": TransliterateConfig,
}
StageConfig = PretrainConfig | ClassifyConfig | DetectConfig | TransliterateConfig


def shipped_config(name: str) -> Path:
    """Return the YAML that ships for a stage."""
    return Path(__file__).resolve().parent / f"{name}.yaml"
