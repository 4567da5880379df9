"""Networks from configs and from trained files: what both training and reading need."""

import re
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from transformers import T5Config

from dubsar.configs.schema import STAGES, ClassifyConfig, DetectConfig, PretrainConfig, TransliterateConfig
from dubsar.datasets.inventory import Inventory
from dubsar.datasets.text import CANONICAL_FORM
from dubsar.models.attention import FLEX, use_offset_bias
from dubsar.models.backbones import SignClassifier
from dubsar.models.checkpoint import CheckpointError, ModelFile, load_model
from dubsar.models.detector import Detector
from dubsar.models.ensemble import Classifier, SignEnsemble
from dubsar.models.readings import ReadingCounts
from dubsar.models.ssl.encoder import RopeAugmentation, SslEncoder
from dubsar.models.ssl.heads import ProjectionHead
from dubsar.models.ssl.network import Branch, SslNetwork
from dubsar.models.ssl.weights import load_backbone
from dubsar.models.transliterator import SignAlignedT5, Size, build_transliterator, load_pretrained

READINGS = "readings"  # name of the table of readings among a transliterator's tensors
_AGAIN = "copy .safetensors and .json again, both of one training"


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


def build_detector(config: DetectConfig, inventory_size: int, *, fresh: bool = False) -> Detector:
    """Build a detector with random weights, and with the backbone of ``model.features``, where that is asked for.

    Args:
        config: what to build.
        inventory_size: how many classes the inventory has.
        fresh: leave the backbone's weights random too.

    Raises:
        ValueError: the backbone or its weights cannot be used, or tiles do not hold whole patches of it.
        FileNotFoundError: its weights are not there.
    """
    model = config.model
    return Detector(
        model.scale,
        inventory_size if model.classes == "inventory" else 1,
        (model.box_gain, model.cls_gain, model.dfl_gain),
        encoder=_build_features(config, fresh=fresh),
        frozen=model.features is None or model.features.frozen,
    )


def _build_features(config: DetectConfig, *, fresh: bool) -> SslEncoder | None:
    """Build the backbone beside a detector, whose own first weights are drawn as if there were none."""
    wanted = config.model.features
    if wanted is None:
        return None
    try:
        with torch.random.fork_rng(devices=[]):
            encoder = SslEncoder(wanted.backbone, backbone_args=wanted.backbone_args, normalise=wanted.normalise)
        if not fresh:
            load_backbone(encoder, Path(wanted.weights))
    except ValueError as error:
        raise ValueError(f"in model.features: {error}") from error
    if config.data.tile % encoder.stride:
        raise ValueError(
            f"data.tile is {config.data.tile}, expected a multiple of {encoder.stride}, the px per patch of "
            f"model.features.backbone ({wanted.backbone}); change either"
        )
    return encoder


def build_classifier(config: ClassifyConfig, inventory_size: int, *, fresh: bool = False) -> SignClassifier:
    """Build a classifier; ``fresh``: as one to load weights into, which are random, and prototypes have a place."""
    model = config.model
    network = SignClassifier(
        model.backbone,
        inventory_size,
        pretrained=model.pretrained and not fresh,
        weights="" if fresh else model.weights,
        backbone_args=model.backbone_args,
        normalise=model.normalise,
        drop_rate=model.drop_rate,
        drop_path_rate=model.drop_path_rate,
    )
    if fresh and model.prototypes:
        network.add_prototypes(model.prototypes.weight, model.prototypes.temperature)
    return network


def build_ssl(config: PretrainConfig, attention: str = "eager") -> SslNetwork:
    """Build student, teacher and anchor with one set of weights: random, timm's, or those of a file.

    Args:
        config: what to build.
        attention: ``eager``, or else `scaled_dot_product_attention`.
    """
    model = config.model
    encoder = build_encoder(config, drop_path=model.drop_path_rate)
    for module in encoder.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = attention != "eager"  # type: ignore[assignment]
    heads = [
        ProjectionHead(encoder.width, count, hidden=model.hidden, bottleneck=model.bottleneck)
        for count in (model.prototypes, model.patch_prototypes)
    ]
    return SslNetwork(Branch(encoder, *heads), anchored=model.gram is not None)


def build_encoder(config: PretrainConfig, *, drop_path: float = 0.0, fresh: bool = False) -> SslEncoder:
    """Build a backbone for self-supervision; ``fresh`` leaves the weights random that the config would start from."""
    model = config.model
    encoder = SslEncoder(
        model.backbone,
        pretrained=model.pretrained and not model.weights and not fresh,
        backbone_args=model.backbone_args,
        normalise=model.normalise,
        drop_path=drop_path,
        rope=RopeAugmentation(**model.rope.model_dump()) if model.rope else None,
    )
    if model.weights and not fresh:
        load_backbone(encoder, Path(model.weights))
    return encoder


def load_encoder(path: Path) -> tuple[SslEncoder, PretrainConfig, ModelFile]:
    """Load a pretrained backbone in evaluation mode, with the config that it was trained by and its file.

    Raises:
        FileNotFoundError: there are no weights.
        CheckpointError: they are damaged, or card and weights do not fit together.
    """
    file = load_model(path, "pretrain")
    config: PretrainConfig = _config_of(file, path)
    encoder = build_encoder(config, fresh=True)
    _load_state(encoder.net, file.state, path)
    return encoder.eval(), config, file


def build_byt5(config: TransliterateConfig, attention: str = "eager") -> Any:
    """Build a transliterator, pretrained or of an own size with random weights.

    Args:
        config: what to build.
        attention: ``eager``, ``sdpa`` or ``flex``.
    """
    model = config.model
    implementation = FLEX if attention == "flex" else attention
    size = Size(
        model.d_model, model.d_kv, model.d_ff, model.heads, model.encoder_layers, model.decoder_layers, model.dropout
    )
    network = (
        load_pretrained(model.pretrained, implementation)
        if model.pretrained
        else build_transliterator(size, implementation)
    )
    if implementation == FLEX:
        use_offset_bias(network)
    return network


def load_detector(path: Path) -> tuple[Detector, DetectConfig, ModelFile]:
    """Load a trained detector in evaluation mode, with the config that it was trained by and its file.

    Raises:
        FileNotFoundError: there are no weights.
        CheckpointError: they are damaged, or card and weights do not fit together.
        InventoryMismatch: the card's inventory is not the one that its hash names.
    """
    file = load_model(path, "detect")
    config: DetectConfig = _config_of(file, path)
    network = build_detector(config, len(inventory_of(file, path)), fresh=True)
    _load_state(network, file.state, path)
    return network.eval(), config, file


def load_classifier(path: Path) -> tuple[Classifier, ClassifyConfig, ModelFile]:
    """Load a trained classifier or an ensemble, in evaluation mode, with its config and its file.

    The config is the one that it was trained by; of an ensemble it says how crops are to be cut, and is else that of
    the member that was best on dev.

    Raises:
        FileNotFoundError, CheckpointError, InventoryMismatch: see `load_detector`.
    """
    file = load_model(path, "classify")
    config: ClassifyConfig = _config_of(file, path)
    size = len(inventory_of(file, path))
    network: Classifier = (
        _build_ensemble(file, path, size) if "members" in file.card else build_classifier(config, size, fresh=True)
    )
    _load_state(network, file.state, path)
    return network.eval(), config, file


def _build_ensemble(file: ModelFile, path: Path, inventory_size: int) -> SignEnsemble:
    """Build the ensemble that a card describes, with random weights."""
    weights, temperatures = (_from_card(file, path, key) for key in ("weights", "temperatures"))
    members = _from_card(file, path, "members")
    if not isinstance(members, list):
        raise CheckpointError(f"{path}: members in its model card are {type(members).__name__}, expected a list")
    configs = [
        _checked_config(member, "classify", path, f"the config of member {i}") for i, member in enumerate(members)
    ]
    contexts = {config.data.context for config in (_config_of(file, path), *configs)}
    if len(contexts) > 1:
        raise CheckpointError(
            f"{path}: its members were trained on crops of data.context={sorted(contexts)}, expected one; {_AGAIN}"
        )
    try:
        networks = [build_classifier(config, inventory_size, fresh=True) for config in configs]
        return SignEnsemble(networks, [config.data.crop_px for config in configs], weights, temperatures)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: the members in its model card cannot be put together: {error}; {_AGAIN}"
        ) from error


def load_byt5(path: Path) -> tuple[Any, TransliterateConfig, ModelFile]:
    """Load a trained transliterator in evaluation mode, with the config that it was trained by and its file.

    A card of before text forms were named is accepted.

    Raises:
        FileNotFoundError: there are no weights.
        CheckpointError: they are damaged, card and weights do not fit together, or they write another form of text.
    """
    file = load_model(path, "transliterate")
    config: TransliterateConfig = _config_of(file, path)
    form = file.card.get("text_form", CANONICAL_FORM)
    if form != CANONICAL_FORM:
        raise CheckpointError(
            f"{path}: trained on text of the form {form!r}, but this dubsar writes {CANONICAL_FORM!r}; train again, or "
            "use the version of dubsar that made these weights"
        )
    # a fine-tuned ByT5 is built from its own description: the weights it began with need not be at hand
    described = file.card.get("architecture")
    network = SignAlignedT5(T5Config(**described)) if described else build_byt5(config)
    state = dict(file.state)
    if READINGS in state:
        network.readings = ReadingCounts.from_tensor(state.pop(READINGS))
        network.readings_weight = config.model.readings_weight
    _load_state(network, state, path)
    return network.eval(), config, file


def inventory_of(file: ModelFile, path: Path) -> Inventory:
    """Return the inventory that a file's outputs index, checked against the hash beside it.

    Raises:
        CheckpointError: the card has no inventory, no hash of it, or one that cannot be read.
        InventoryMismatch: the two do not belong together.
    """
    rows, wanted = (_from_card(file, path, key) for key in ("inventory", "inventory_hash"))
    try:
        inventory = Inventory.from_list(rows)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: the inventory in its model card cannot be read ({error}), expected rows of 3 or 5 cells; {_AGAIN}"
        ) from error
    inventory.require(wanted, str(path))
    return inventory


def _from_card(file: ModelFile, path: Path, key: str) -> Any:
    if key not in file.card:
        raise CheckpointError(
            f"{path}: its model card has no {key!r} (found {', '.join(sorted(file.card))}), expected all that "
            f"`dubsar train {file.card.get('stage')}` writes; {_AGAIN}"
        )
    return file.card[key]


def _config_of(file: ModelFile, path: Path) -> Any:
    return _checked_config(_from_card(file, path, "config"), file.card["stage"], path, "the config")


def _checked_config(found: Any, stage: str, path: Path, what: str) -> Any:
    try:
        return STAGES[stage].model_validate(found, strict=False)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, e['loc'])) or 'config'}: {e['msg']}" for e in error.errors()]
        raise CheckpointError(
            f"{path}: {what} in its model card is not one of this dubsar: {_some(faults)}; {_AGAIN}, or use the "
            "version of dubsar that made these weights"
        ) from error


def _load_state(network: torch.nn.Module, state: dict[str, torch.Tensor], path: Path) -> None:
    """Load tensors into the network that the card describes.

    Raises:
        CheckpointError: a tensor is absent, is one too many, or has another shape.
    """
    expected = network.state_dict()
    faults = [f"{name} is absent" for name in expected if name not in state]
    faults += [f"{name} is not expected" for name in state if name not in expected]
    faults += [
        f"{name} has shape {tuple(state[name].shape)}, expected {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in state and state[name].shape != tensor.shape
    ]
    if faults:
        raise CheckpointError(f"{path}: its weights do not fit the config in its model card: {_some(faults)}; {_AGAIN}")
    network.load_state_dict(state)


def _some(faults: list[str]) -> str:
    return ", ".join(faults[:3]) + (f" and {len(faults) - 3} more" if len(faults) > 3 else "")
