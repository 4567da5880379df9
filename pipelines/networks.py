"""Networks from configs and from trained files: what both training and reading need."""

import re
from pathlib import Path
from typing import Any

import torch
from transformers import T5Config

from dubsar.configs.schema import ClassifyConfig, DetectConfig, TransliterateConfig
from dubsar.datasets.inventory import Inventory
from dubsar.models.backbones import SignClassifier
from dubsar.models.checkpoint import ModelFile, load_model
from dubsar.models.detector import Detector
from dubsar.models.readings import ReadingCounts
from dubsar.models.transliterator import SignAlignedT5, Size, build_transliterator, load_pretrained

READINGS = "readings"  # name of the table of readings among a transliterator's tensors


def find_device(name: str) -> torch.device:
    """Return the device that a setting names.

    Args:
        name: ``cpu``, ``cuda``, ``cuda:N``, or ``auto``: the first GPU, or the CPU where there is none.

    Raises:
        ValueError: another name, or a GPU that is not there.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", name):
        raise ValueError(f"device is {name!r}, expected auto, cpu, cuda or cuda:N")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda" if count else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ValueError(f"device is {name!r}, but PyTorch finds {count} CUDA devices here; give cpu or auto")
    return device


def build_detector(config: DetectConfig, inventory_size: int) -> Detector:
    """Build a detector with random weights."""
    model = config.model
    classes = inventory_size if model.classes == "inventory" else 1
    return Detector(model.scale, classes, (model.box_gain, model.cls_gain, model.dfl_gain))


def build_classifier(config: ClassifyConfig, inventory_size: int, *, fresh: bool = False) -> SignClassifier:
    """Build a classifier; ``fresh`` leaves the weights random that the config would start from."""
    model = config.model
    return SignClassifier(
        model.backbone,
        inventory_size,
        pretrained=model.pretrained and not fresh,
        weights="" if fresh else model.weights,
        backbone_args=model.backbone_args,
        normalise=model.normalise,
        drop_rate=model.drop_rate,
        drop_path_rate=model.drop_path_rate,
    )


def build_byt5(config: TransliterateConfig, attention: str = "eager") -> Any:
    """Build a transliterator, pretrained or of an own size with random weights."""
    model = config.model
    if model.pretrained:
        return load_pretrained(model.pretrained, attention)
    size = Size(
        model.d_model, model.d_kv, model.d_ff, model.heads, model.encoder_layers, model.decoder_layers, model.dropout
    )
    return build_transliterator(size, attention)


def load_detector(path: Path) -> tuple[Detector, DetectConfig, ModelFile]:
    """Load a trained detector in evaluation mode, with the config that it was trained by and its file."""
    file = load_model(path, "detect")
    config = DetectConfig.model_validate(file.card["config"], strict=False)
    network = build_detector(config, len(file.card["inventory"]))
    network.load_state_dict(file.state)
    return network.eval(), config, file


def load_classifier(path: Path) -> tuple[SignClassifier, ClassifyConfig, ModelFile]:
    """Load a trained classifier in evaluation mode, with the config that it was trained by and its file."""
    file = load_model(path, "classify")
    config = ClassifyConfig.model_validate(file.card["config"], strict=False)
    network = build_classifier(config, len(inventory_of(file, path)), fresh=True)
    network.load_state_dict(file.state)
    return network.eval(), config, file


def load_byt5(path: Path) -> tuple[Any, TransliterateConfig, ModelFile]:
    """Load a trained transliterator in evaluation mode, with the config that it was trained by and its file."""
    file = load_model(path, "transliterate")
    config = TransliterateConfig.model_validate(file.card["config"], strict=False)
    # a fine-tuned ByT5 is built from its own description: the weights it began with need not be at hand
    described = file.card.get("architecture")
    network = SignAlignedT5(T5Config(**described)) if described else build_byt5(config)
    state = dict(file.state)
    if READINGS in state:
        network.readings = ReadingCounts.from_tensor(state.pop(READINGS))
        network.readings_weight = config.model.readings_weight
    network.load_state_dict(state)
    return network.eval(), config, file


def inventory_of(file: ModelFile, path: Path) -> Inventory:
    """Return the inventory that a file's outputs index, checked against the hash beside it."""
    inventory = Inventory.from_list(file.card["inventory"])
    inventory.require(file.card["inventory_hash"], str(path))
    return inventory
