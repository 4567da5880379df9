"""YOLO11 with a P2 level: Ultralytics' network and loss, as a plain module.

Two things are ours. Loss and box decoding run in float32 with autocast off: in bfloat16 the anchor grid itself is wrong
(up to 6 px at 1280), and more than half of the small boxes get other anchors. And a weight per anchor lets regions that
nobody annotated count less as background, because photographs of tablets are labelled in part.

This is the only module that imports ultralytics, so it is the one that keeps it offline and in
its place.
"""

import copy
import io
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import torch
from PIL import Image
from torch import nn

os.environ.setdefault("YOLO_OFFLINE", "true")
os.environ.setdefault("YOLO_AUTOINSTALL", "false")
os.environ.setdefault("YOLO_VERBOSE", "false")
os.environ.setdefault("YOLO_CONFIG_DIR", str(Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "dubsar"))
Path(os.environ["YOLO_CONFIG_DIR"]).mkdir(parents=True, exist_ok=True)

_FOR_ALL = Image.open, torch.save

from ultralytics.nn.tasks import DetectionModel, yaml_model_load  # noqa: E402
from ultralytics.utils.loss import v8DetectionLoss  # noqa: E402

# Ultralytics replaces both for the whole process; its Image.open asks pip for a plug-in where a picture is broken
Image.open, torch.save = _FOR_ALL

from dubsar.models.checkpoint import write_atomically  # noqa: E402
from dubsar.models.detection_features import AddedFeatures  # noqa: E402
from dubsar.models.precision import at_least_float32  # noqa: E402
from dubsar.models.ssl.encoder import SslEncoder  # noqa: E402

ARCHITECTURE = Path(__file__).resolve().parent / "yolo11-p2.yaml"
STRIDE = 32  # tile sides must be multiples of it
P3 = 4  # the layer of the architecture whose map, of stride 8, a backbone's features are added to
Scale = Literal["n", "s", "m", "l", "x"]


class Detector(nn.Module):
    """Find signs in tiles.

    Args:
        scale: YOLO11 size.
        classes: number of sign classes; 1 finds signs without naming them.
        gains: weights of the box, class and distribution losses.
        batch_norm_momentum: 0.1, not Ultralytics' 0.03: after a short run the running statistics would lag far behind.
        encoder: a backbone whose features are added to the map of stride 8, at the start with weight zero; sides of
            tiles must then be multiples of its stride too.
        frozen: that backbone is not trained.
    """

    def __init__(
        self,
        scale: Scale = "n",
        classes: int = 1,
        gains: tuple[float, float, float] = (7.5, 0.5, 1.5),
        batch_norm_momentum: float = 0.1,
        *,
        encoder: SslEncoder | None = None,
        frozen: bool = True,
    ) -> None:
        super().__init__()
        architecture = yaml_model_load(ARCHITECTURE)
        architecture["scale"] = scale
        kind = DetectionModel if encoder is None else _NetWithFeatures
        self.net = kind(architecture, ch=3, nc=classes, verbose=False)
        self.net.args = SimpleNamespace(box=gains[0], cls=gains[1], dfl=gains[2])
        for module in self.net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = batch_norm_momentum
        if encoder is not None:
            self.net.features = AddedFeatures(encoder, self.net.model[P3].cv2.conv.out_channels, frozen=frozen)
        self.classes = classes

    @property
    def features(self) -> AddedFeatures | None:
        """The backbone beside YOLO, and how it is added; None without."""
        found: AddedFeatures | None = getattr(self.net, "features", None)
        return found

    def forward(self, tiles_BCHW: torch.Tensor) -> Any:
        """Return Ultralytics' raw predictions: a dict in training; in evaluation see `detect`."""
        return self.net(tiles_BCHW)

    def loss(self, predictions: Any, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Compute the mean loss per tile, in float32.

        Args:
            predictions: what `forward` returned in training.
            batch: ``batch_idx`` (N,), ``cls`` (N, 1), ``bboxes`` (N, 4) xywh in 0-1 of the tile, ``weight_BHW``
                (B, H/4, W/4) the weight of background at stride 4.

        Returns:
            The loss, and its parts (box, cls, dfl) detached.
        """
        with torch.autocast(predictions["scores"].device.type, enabled=False):
            raw: dict[str, Any] = {
                "boxes": at_least_float32(predictions["boxes"]),
                "scores": at_least_float32(predictions["scores"]),
                "feats": [at_least_float32(f) for f in predictions["feats"]],
            }
            criterion = v8DetectionLoss(self.net)
            criterion.bce = _BackgroundWeight(_anchor_weights(batch["weight_BHW"], raw["feats"]))
            total, parts = criterion(raw, batch)
        return total.sum() / len(raw["scores"]), parts

    @torch.inference_mode()
    def detect(self, tiles_BCHW: torch.Tensor) -> torch.Tensor:
        """Return decoded predictions (B, anchors, 4 + classes): xyxy in tile pixels, then a probability per class.

        Nothing is suppressed and nothing is capped here; see `dubsar.datasets.boxes`.
        """
        head = self.net.model[-1]
        was_training, head.training = head.training, True  # raw maps, so that decoding happens in float32
        try:
            raw = self.net(tiles_BCHW)
        finally:
            head.training = was_training
        with torch.autocast(tiles_BCHW.device.type, enabled=False):
            raw = {
                "boxes": at_least_float32(raw["boxes"]),
                "scores": at_least_float32(raw["scores"]),
                "feats": [at_least_float32(f) for f in raw["feats"]],
            }
            decoded = head._inference(raw).transpose(1, 2)
        centre, size = decoded[..., :2], decoded[..., 2:4]
        return torch.cat((centre - size / 2, centre + size / 2, decoded[..., 4:]), -1)


class _NetWithFeatures(DetectionModel):  # type: ignore[misc]
    """Ultralytics' network, in which a backbone's features are added to one map."""

    def forward(self, tiles_BCHW: torch.Tensor) -> Any:
        maps: dict[int, Any] = {-1: tiles_BCHW}  # -1: of the layer before
        for layer in self.model:
            maps[-1] = layer(maps[layer.f] if isinstance(layer.f, int) else [maps[i] for i in layer.f])
            if layer.i == P3 and hasattr(self, "features"):  # Ultralytics tries the network out before there are any
                maps[-1] = self.features(tiles_BCHW, maps[-1])
            if layer.i in self.save:
                maps[layer.i] = maps[-1]
        return maps[-1]


class _BackgroundWeight(nn.Module):
    """Binary cross-entropy in which anchors without a target count by their weight (B, A)."""

    def __init__(self, weight_BA: torch.Tensor) -> None:
        super().__init__()
        self.weight_BA = weight_BA

    def forward(self, scores_BAC: torch.Tensor, targets_BAC: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.binary_cross_entropy_with_logits(scores_BAC, targets_BAC, reduction="none")
        background = targets_BAC.sum(-1) == 0
        return loss * torch.where(background, self.weight_BA, 1.0)[..., None]


def _anchor_weights(weight_BHW: torch.Tensor, feats: list[torch.Tensor]) -> torch.Tensor:
    """Sample the stride-4 weight map at every level's cells: (B, A) in the order of Ultralytics' anchors."""
    levels = [
        nn.functional.adaptive_avg_pool2d(weight_BHW[:, None].float(), (f.shape[-2], f.shape[-1])).flatten(1)
        for f in feats
    ]
    return torch.cat(levels, 1)


def export_ultralytics(detector: Detector, names: dict[int, str], path: Path) -> None:
    """Write a ``.pt`` that ``ultralytics.YOLO(path)`` loads and predicts with; ``detector`` itself is not changed.

    Ultralytics' own format is a pickle. dubsar never reads one; this is for use elsewhere. Mind that Ultralytics keeps
    300 boxes a picture unless told otherwise (``max_det``), and its pictures are not scaled to the size of their signs.

    Args:
        detector: what to export.
        names: name of each class id.
        path: the file, written atomically; a file that is there is replaced.

    Raises:
        ValueError: ``names`` are not those of the detector's classes, or it uses features of a backbone.
        OSError: the file cannot be written.
    """
    if detector.features is not None:
        raise ValueError(
            "model.features: this detector adds the features of a backbone, which a network of Ultralytics cannot "
            "express; export one that was trained with model.features=null"
        )
    if sorted(names) != list(range(detector.classes)):
        raise ValueError(f"names has ids {sorted(names)[:5]}…, expected 0 to {detector.classes - 1}")
    model = copy.deepcopy(detector.net).cpu().float().eval()
    model.names, model.args = names, {"task": "detect"}
    model.yaml["yaml_file"] = ARCHITECTURE.name  # not the folder of this computer
    buffer = io.BytesIO()
    torch.save({"model": model, "train_args": {"task": "detect"}, "epoch": -1}, buffer)
    write_atomically(path, lambda file: file.write(buffer.getbuffer()))
