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
from dubsar.models.precision import at_least_float32  # noqa: E402

ARCHITECTURE = Path(__file__).resolve().parent / "yolo11-p2.yaml"
STRIDE = 32  # tile sides must be multiples of it
Scale = Literal["n", "s", "m", "l", "x"]


class Detector(nn.Module):
    """Find signs in tiles.

    Args:
        scale: YOLO11 size.
        classes: number of sign classes; 1 finds signs without naming them.
        gains: weights of the box, class and distribution losses.
        batch_norm_momentum: 0.1, not Ultralytics' 0.03: after a short run the running statistics would lag far behind.
    """

    def __init__(
        self,
        scale: Scale = "n",
        classes: int = 1,
        gains: tuple[float, float, float] = (7.5, 0.5, 1.5),
        batch_norm_momentum: float = 0.1,
    ) -> None:
        super().__init__()
        architecture = yaml_model_load(ARCHITECTURE)
        architecture["scale"] = scale
        self.net = DetectionModel(architecture, ch=3, nc=classes, verbose=False)
        self.net.args = SimpleNamespace(box=gains[0], cls=gains[1], dfl=gains[2])
        for module in self.net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = batch_norm_momentum
        self.classes = classes

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
        ValueError: ``names`` are not those of the detector's classes.
        OSError: the file cannot be written.
    """
    if sorted(names) != list(range(detector.classes)):
        raise ValueError(f"names has ids {sorted(names)[:5]}…, expected 0 to {detector.classes - 1}")
    model = copy.deepcopy(detector.net).cpu().float().eval()
    model.names, model.args = names, {"task": "detect"}
    model.yaml["yaml_file"] = ARCHITECTURE.name  # not the folder of this computer
    buffer = io.BytesIO()
    torch.save({"model": model, "train_args": {"task": "detect"}, "epoch": -1}, buffer)
    write_atomically(path, lambda file: file.write(buffer.getbuffer()))
