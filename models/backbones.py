"""Sign classifiers: any timm backbone with a linear head over the inventory."""

import difflib
import json
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from dubsar.models.prototypes import Prototypes

# statistics of sign crops matter little next to the relighting that they are trained with: one simple range for all
MEAN, STD = 0.45, 0.22
_BEFORE_HEAD = ("norm.", "fc_norm.", "head.")  # timm's names differ with the way of pooling
_LEFT_OUT = (*_BEFORE_HEAD, "head_dist.", "fc.", "classifier.", "mask_token")  # of a file: heads, and what only trains
_OWN = "net."  # before timm's names in a classifier's own file
NORMALISATIONS = ("fixed", "per_crop", "imagenet")
# arguments of timm.create_model that name files or addresses to load, or that are set here: no config may give them
RESERVED = frozenset(
    {
        "checkpoint_path",
        "cache_dir",
        "num_classes",
        "pretrained",
        "pretrained_cfg",
        "pretrained_cfg_overlay",
        "scriptable",
    }
)
FLAT = 0.02  # of 0-1: keeps the grain of a crop without contrast from being blown up


class SignClassifier(nn.Module):
    """Name the sign in a crop.

    Args:
        backbone: timm model name.
        classes: size of the inventory.
        pretrained: load timm's weights for that name (from the hub, or its local cache).
        weights: local safetensors in timm's key layout instead, or a classifier's of before; a head of another size is
            left out.
        backbone_args: keyword arguments of that timm model, such as ``channels``.
        normalise: one of `NORMALISATIONS`, see `normalised`.
        drop_rate: dropout before the head.
        drop_path_rate: stochastic depth.

    Raises:
        ValueError: timm does not know the name or an argument, or the weights are for another backbone.
        FileNotFoundError: ``weights`` is not there, or pretrained weights cannot be had offline.
    """

    def __init__(
        self,
        backbone: str,
        classes: int,
        *,
        pretrained: bool = False,
        weights: str = "",
        backbone_args: dict[str, Any] | None = None,
        normalise: str = "fixed",
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        options = {"drop_rate": drop_rate} | ({"drop_path_rate": drop_path_rate} if drop_path_rate else {})
        self.normalise, self.frozen = check_normalisation(normalise), False
        self.net = create_backbone(
            backbone, classes, pretrained=pretrained and not weights, given=backbone_args or {}, options=options
        )
        self.prototypes: Prototypes | None = None
        if weights:
            _load(self.net, Path(weights), normalise)

    def freeze_backbone(self) -> None:
        """Train the head alone: what stands before it stays in evaluation mode, batch norms and dropout included."""
        self.frozen = True
        self.net.requires_grad_(requires_grad=False)
        self.net.get_classifier().requires_grad_(requires_grad=True)
        self.train(self.training)

    def train(self, mode: bool = True) -> "SignClassifier":
        """Set training or evaluation mode; a frozen backbone stays in the latter."""
        super().train(mode)
        if self.frozen:
            self.net.eval()
            self.net.get_classifier().train(mode)
        return self

    def forward(self, pixels_BCHW: torch.Tensor) -> torch.Tensor:
        """Return logits (B, classes) for RGB crops in 0-1."""
        pixels_BCHW = self.normalised(pixels_BCHW)
        if self.prototypes is None:
            logits: torch.Tensor = self.net(pixels_BCHW)
            return logits
        return self.name(self.net.forward_features(pixels_BCHW))

    def name(self, features: torch.Tensor) -> torch.Tensor:
        """Return logits (B, classes) for what the backbone saw, as its ``forward_features`` gives it."""
        if self.prototypes is None:
            logits: torch.Tensor = self.net.forward_head(features)
            return logits
        features_BD = self.before_head(features)
        return self.prototypes(self.net.get_classifier()(features_BD), features_BD)  # type: ignore[no-any-return]

    def embed(self, pixels_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the features (B, D) that the last layer is given, for RGB crops in 0-1."""
        return self.before_head(self.net.forward_features(self.normalised(pixels_BCHW)))

    def before_head(self, features: torch.Tensor) -> torch.Tensor:
        """Return what the last layer is given (B, D), for what the backbone saw."""
        pooled_BD: torch.Tensor = self.net.forward_head(features, pre_logits=True)
        return pooled_BD

    def add_prototypes(self, weight: float, temperature: float) -> Prototypes:
        """Let the likeness to prototypes speak beside the head; they are still to be filled or loaded."""
        head = self.net.get_classifier()
        self.prototypes = Prototypes(head.out_features, head.in_features, weight, temperature)
        return self.prototypes

    def normalised(self, pixels_BCHW: torch.Tensor) -> torch.Tensor:
        """Return what the backbone is fed (B, 3, H, W) for RGB crops in 0-1."""
        return normalised(pixels_BCHW, self.normalise, self.net)


def create_backbone(
    backbone: str, classes: int, *, pretrained: bool, given: dict[str, Any], options: dict[str, Any]
) -> Any:
    """Create a timm model.

    Args:
        backbone: timm model name.
        classes: columns of its head; 0 for none.
        pretrained: load timm's weights for that name (from the hub, or its local cache).
        given: keyword arguments of that timm model, from a config.
        options: more of them, which those that are given outweigh.

    Raises:
        ValueError: timm does not know the name or an argument, or an argument is not a config's to give.
        FileNotFoundError: pretrained weights cannot be had offline.
    """
    if not timm.is_model(backbone):
        near = ", ".join(difflib.get_close_matches(backbone, timm.list_models(), n=5))
        raise ValueError(f"model.backbone: timm knows no {backbone!r}" + (f"; near it are {near}" if near else ""))
    if taken := sorted(RESERVED & set(given)):
        raise ValueError(
            f"model.backbone_args: {', '.join(taken)} cannot be given here; weights come from model.weights, "
            "and the number of classes from the inventory"
        )
    try:
        return timm.create_model(backbone, pretrained=pretrained, num_classes=classes, **options | given)
    except TypeError as error:
        raise ValueError(f"model.backbone_args: {backbone}: {error}") from error
    except OSError as error:
        raise FileNotFoundError(
            f"model.pretrained: weights of {backbone} cannot be fetched; bring the file and give it as model.weights"
        ) from error


def check_normalisation(kind: str) -> str:
    """Return ``kind``.

    Raises:
        ValueError: it is none of `NORMALISATIONS`.
    """
    if kind not in NORMALISATIONS:
        raise ValueError(f"model.normalise is {kind!r}, expected one of {', '.join(NORMALISATIONS)}")
    return kind


def normalised(pixels_BCHW: torch.Tensor, kind: str, net: Any) -> torch.Tensor:
    """Shift and scale pixels to what a backbone is fed.

    Args:
        pixels_BCHW: RGB in 0-1.
        kind: ``fixed`` treats all crops and channels alike; ``per_crop`` takes each crop's own mean and deviation, so
            that neither the lamp nor the colour of the clay shows; ``imagenet`` takes each channel's as timm's weights
            of that name expect.
        net: the timm model.

    Returns:
        The same shape.
    """
    if kind == "per_crop":
        deviation, mean = torch.std_mean(pixels_BCHW, dim=(1, 2, 3), keepdim=True)
        return (pixels_BCHW - mean) / (deviation + FLAT)
    if kind == "imagenet":
        # plain numbers: tensors of them would have to be brought to the device at each call
        means, deviations = net.pretrained_cfg["mean"], net.pretrained_cfg["std"]
        channels = zip(pixels_BCHW.chunk(len(means), dim=1), means, deviations, strict=True)
        return torch.cat([(channel - mean) / deviation for channel, mean, deviation in channels], dim=1)
    return (pixels_BCHW - MEAN) / STD


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a local safetensors file.

    Raises:
        ValueError: another kind of file.
        FileNotFoundError: there is none.
    """
    if path.suffix != ".safetensors":
        raise ValueError(f"{path}: weights are read from .safetensors only (a pickle can run code); convert them first")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such weights")
    try:
        tensors: dict[str, torch.Tensor] = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path}: not a safetensors file ({error})") from error
    if any(name.startswith("members.") for name in tensors):
        raise ValueError(f"{path}: an ensemble of classifiers, expected one network; give the weights of one member")
    return tensors


def check_card(card: Path, normalise: str) -> None:
    """Refuse weights whose model card says that they were trained on pixels normalised in another way.

    Args:
        card: the JSON beside the weights; there may be none.
        normalise: how pixels are normalised here.

    Raises:
        ValueError: they were normalised otherwise.
    """
    if not card.is_file():
        return
    try:
        trained = json.loads(card.read_text(encoding="utf-8"))["config"]["model"]["normalise"]
    except (ValueError, KeyError, TypeError):
        return  # whoever loads a whole model complains of its card; here it is asked for one thing
    if trained != normalise:
        raise ValueError(f"trained on pixels normalised {trained!r}, here {normalise!r}; set model.normalise={trained}")


def _load(net: Any, path: Path, normalise: str) -> None:
    """Load a backbone's weights; only the head, and norms that stand at its door, may be others."""
    own, found = net.state_dict(), read_weights(path)
    if of_classifier := {k.removeprefix(_OWN): t for k, t in found.items() if k.startswith(_OWN)}:
        found = of_classifier  # prototypes beside it are of other crops
    fitting = {k: t for k, t in found.items() if k in own and own[k].shape == t.shape}
    head = {id(p) for p in net.get_classifier().parameters()}
    of_head = {name for name, p in net.named_parameters() if id(p) in head}
    absent = [k for k in own if k not in fitting and k not in of_head and not k.startswith(_BEFORE_HEAD)]
    if absent:
        raise ValueError(
            f"{path}: only {len(fitting)} of {len(own)} tensors fit this backbone, for example not {absent[:3]}"
        )
    if surplus := [k for k in found if k not in fitting and k not in of_head and not k.startswith(_LEFT_OUT)]:
        raise ValueError(
            f"{path}: {len(surplus)} of {len(found)} tensors have no place in this backbone, for example "
            f"{surplus[:3]}; give the file's own network as model.backbone and model.backbone_args"
        )
    try:
        check_card(path.with_suffix(".json"), normalise)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    net.load_state_dict(fitting, strict=False)
