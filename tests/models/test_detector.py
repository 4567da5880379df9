"""The detector: four levels, loss and boxes in float32, background that counts by its weight, export to Ultralytics.

Ultralytics is imported inside of tests, behind the module that keeps it offline.
"""

import copy
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, UnidentifiedImageError

from dubsar.models.detector import STRIDE, Detector, export_ultralytics


@pytest.fixture(scope="module")
def detector() -> Detector:
    torch.manual_seed(0)
    return Detector("n")


def batch(boxes: list[list[float]], count: int, side: int) -> dict[str, torch.Tensor]:
    return {
        "batch_idx": torch.zeros(len(boxes)),
        "cls": torch.zeros(len(boxes), 1),
        "bboxes": torch.tensor(boxes).reshape(-1, 4),
        "weight_BHW": torch.ones(count, side // 4, side // 4),
    }


def predictions(side: int, count: int = 1, dtype: torch.dtype = torch.float32) -> dict[str, object]:
    draw = torch.Generator().manual_seed(0)
    anchors = sum((side // s) ** 2 for s in (4, 8, 16, 32))
    return {
        "boxes": torch.randn(count, 64, anchors, generator=draw).to(dtype),
        "scores": torch.randn(count, 1, anchors, generator=draw).to(dtype),
        "feats": [torch.zeros(count, 1, side // s, side // s, dtype=dtype) for s in (4, 8, 16, 32)],
    }


def test_it_has_levels_down_to_stride_4(detector: Detector) -> None:
    assert detector.net.model[-1].stride.tolist() == [4, 8, 16, 32]
    assert max(detector.net.model[-1].stride) == STRIDE
    raw = detector.train()(torch.zeros(2, 3, 64, 96))
    assert [tuple(f.shape[-2:]) for f in raw["feats"]] == [(16, 24), (8, 12), (4, 6), (2, 3)]


def test_all_scales_grow() -> None:
    sizes = [sum(p.numel() for p in Detector(scale).parameters()) for scale in ("n", "s", "m", "l", "x")]
    assert sizes == sorted(sizes)
    assert 2e6 < sizes[0] < 4e6
    assert sizes[-1] > 5e7


def test_batch_norm_follows_faster_than_in_ultralytics(detector: Detector) -> None:
    assert {m.momentum for m in detector.modules() if isinstance(m, torch.nn.BatchNorm2d)} == {0.1}


def test_gains_weigh_the_three_losses() -> None:
    raw, truth = predictions(64), batch([[0.5, 0.5, 0.3, 0.3]], 1, 64)
    parts = [Detector(gains=gains).loss(raw, truth)[1] for gains in ((1.0, 1.0, 1.0), (2.0, 3.0, 4.0))]
    for name, factor in (("box_loss", 2), ("cls_loss", 3), ("dfl_loss", 4)):
        assert float(parts[1][name]) == pytest.approx(factor * float(parts[0][name]), rel=1e-5)


def test_the_same_tile_twice_has_the_same_loss(detector: Detector) -> None:
    side = 128
    box = [[0.5, 0.5, 60 / side, 60 / side]]  # what a uniform distribution at stride 4 predicts
    one = predictions(side) | {"boxes": torch.zeros(1, 64, sum((side // s) ** 2 for s in (4, 8, 16, 32)))}
    two = {k: [torch.cat((f, f)) for f in v] if k == "feats" else torch.cat((v, v)) for k, v in one.items()}
    twice = batch(box * 2, 2, side) | {"batch_idx": torch.tensor([0.0, 1.0])}
    once = float(detector.loss(one, batch(box, 1, side))[0])
    assert float(detector.loss(two, twice)[0]) == pytest.approx(once, rel=1e-4)


def test_without_a_box_only_the_background_counts(detector: Detector) -> None:
    loss, parts = detector.loss(predictions(64), batch([], 1, 64))
    assert torch.isfinite(loss)
    assert float(parts["box_loss"]) == 0
    assert float(parts["cls_loss"]) > 0


def test_under_bf16_the_loss_is_computed_in_float32(detector: Detector) -> None:
    from ultralytics.utils.loss import v8DetectionLoss

    truth = batch([[0.7, 0.7, 0.03, 0.03], [0.9, 0.3, 0.02, 0.04], [0.81, 0.92, 0.05, 0.02]], 1, 640)
    raw = predictions(640, dtype=torch.bfloat16)
    wide = {k: [f.float() for f in v] if k == "feats" else v.float() for k, v in raw.items()}
    with torch.autocast("cpu", torch.bfloat16):
        ours = detector.loss(raw, truth)[0]
        theirs = v8DetectionLoss(detector.net)(raw, truth)[0].sum()  # negative control
    exact = detector.loss(wide, truth)[0]
    assert ours.dtype == torch.float32
    assert torch.equal(ours, exact)
    assert abs(float(theirs) - float(exact)) > 1e-3 * float(exact)


def test_bf16_anchors_are_wrong_and_ours_are_not(detector: Detector) -> None:
    from ultralytics.utils.tal import make_anchors

    side = 640
    right = torch.cat([_grid(side, s) for s in (4, 8, 16, 32)])
    wrong, strides = make_anchors(
        [torch.zeros(1, 1, side // s, side // s, dtype=torch.bfloat16) for s in (4, 8, 16, 32)],
        detector.net.model[-1].stride,
        0.5,
    )
    off = ((wrong.float() * strides.float()) - right).abs().max(1).values[: (side // 4) ** 2]
    assert 0.3 < float((off > 0).float().mean()) < 0.45  # 36 % of the P2 anchors
    assert float(off.max()) >= 1
    head = detector.net.model[-1]
    uniform = Detector("n").eval()
    for level in uniform.net.model[-1].cv2:  # a uniform distribution on all sides: each box is centred on its anchor
        torch.nn.init.zeros_(level[-1].weight)
        torch.nn.init.zeros_(level[-1].bias)
    with torch.autocast("cpu", torch.bfloat16):
        found = uniform.detect(torch.rand(1, 3, side, side))
    assert found.dtype == torch.float32
    centres = (found[0, :, :2] + found[0, :, 2:4]) / 2
    assert float((centres - right).abs().max()) < 1e-3
    assert head.training is detector.training


def _grid(side: int, stride: int) -> torch.Tensor:
    along = (torch.arange(side // stride) + 0.5) * stride
    y, x = torch.meshgrid(along, along, indexing="ij")
    return torch.stack((x.flatten(), y.flatten()), 1)


def test_background_without_weight_gives_no_gradient(detector: Detector) -> None:
    side = 64
    raw = predictions(side)
    raw["scores"].requires_grad_()
    truth = batch([], 1, side)
    truth["weight_BHW"][:, :, : side // 8] = 0  # the left half
    detector.loss(raw, truth)[0].backward()
    x = torch.cat([_grid(side, s) for s in (4, 8, 16, 32)])[:, 0]
    gradient = raw["scores"].grad[0, 0].abs()
    assert float(gradient[x < side / 2 - 1].max()) == 0
    assert float(gradient[x > side / 2 + 1].min()) > 0


def test_half_weight_is_half_the_loss_but_signs_count_in_full(detector: Detector) -> None:
    side = 64
    full, half = batch([], 1, side), batch([], 1, side)
    half["weight_BHW"] *= 0.5
    assert float(detector.loss(predictions(side), half)[0]) == pytest.approx(
        0.5 * float(detector.loss(predictions(side), full)[0])
    )
    raw = predictions(side)
    raw["scores"].requires_grad_()
    none = batch([[0.5, 0.5, 0.3, 0.3]], 1, side)
    none["weight_BHW"] *= 0
    loss, parts = detector.loss(raw, none)
    loss.backward()
    assert float(parts["cls_loss"]) > 0
    assert int((raw["scores"].grad != 0).sum()) in range(1, 11)  # the anchors of the one sign


def test_detect_gives_every_anchor_and_keeps_the_mode(detector: Detector) -> None:
    detector.eval()
    found = detector.detect(torch.rand(2, 3, 128, 160))
    assert found.shape == (2, sum(128 // s * (160 // s) for s in (4, 8, 16, 32)), 5)  # 1,700: far above 300
    assert not detector.net.model[-1].training
    assert bool((found[..., 2:4] >= found[..., :2]).all())
    assert bool(((found[..., 4] >= 0) & (found[..., 4] <= 1)).all())
    decoded, _ = detector(torch.zeros(1, 3, 64, 64))
    ours = detector.detect(torch.zeros(1, 3, 64, 64))
    theirs = decoded.transpose(1, 2)
    assert torch.allclose((ours[..., :2] + ours[..., 2:4]) / 2, theirs[..., :2], atol=1e-4)
    assert torch.allclose(ours[..., 4:], theirs[..., 4:])


def test_the_export_loads_in_ultralytics_and_finds_the_same_boxes(tmp_path: Path) -> None:
    from ultralytics import YOLO

    torch.manual_seed(1)
    ours = Detector("n", classes=3).eval()
    for level in ours.net.model[-1].cv3:
        torch.nn.init.normal_(level[-1].weight)
        torch.nn.init.zeros_(level[-1].bias)
    before = {k: v.clone() for k, v in ours.state_dict().items()}
    export_ultralytics(ours, {0: "𒀀", 1: "𒈾", 2: "𒌋"}, tmp_path / "out.pt")
    assert all(torch.equal(v, before[k]) for k, v in ours.state_dict().items())
    assert str(Path.cwd()).encode() not in (tmp_path / "out.pt").read_bytes()
    pixels = np.random.default_rng(0).integers(0, 255, (128, 128, 3), dtype=np.uint8)
    yolo = YOLO(str(tmp_path / "out.pt"))
    result = yolo.predict(Image.fromarray(pixels), imgsz=128, conf=0.05, iou=0.5, max_det=2000, verbose=False)[0]
    assert result.names == {0: "𒀀", 1: "𒈾", 2: "𒌋"}
    found = ours.detect(torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255)[0]
    score, label = found[:, 4:].max(1)
    assert len(result.boxes) > 5
    inner = result.boxes.data[
        (result.boxes.xyxy > 1).all(1) & (result.boxes.xyxy < 127).all(1)
    ]  # the others are clipped
    assert len(inner) > 0
    for row in inner:
        near = (found[:, :4] - row[:4]).abs().max(1).values
        match = int(near.argmin())
        assert float(near[match]) < 0.1
        assert float(score[match]) == pytest.approx(float(row[4]), abs=1e-3)
        assert int(label[match]) == int(row[5])


def test_export_wants_a_name_for_each_class(detector: Detector, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected 0 to 0"):
        export_ultralytics(detector, {0: "a", 1: "b"}, tmp_path / "out.pt")
    assert not (tmp_path / "out.pt").exists()


def test_ultralytics_replaces_nothing_outside_of_itself(tmp_path: Path) -> None:
    assert (Image.open.__module__, torch.save.__module__) == ("PIL.Image", "torch.serialization")
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    with pytest.raises(UnidentifiedImageError):
        Image.open(tmp_path / "broken.jpg")


def test_ultralytics_is_kept_offline() -> None:
    from ultralytics.utils import ONLINE, SETTINGS

    assert (os.environ["YOLO_OFFLINE"], os.environ["YOLO_AUTOINSTALL"]) == ("true", "false")
    assert ONLINE is False
    assert os.environ["YOLO_CONFIG_DIR"] in str(SETTINGS.file)


def test_an_export_of_a_copy_leaves_the_detector_alive() -> None:
    """A cold export of the live network leaves fake tensors in its anchors: a real pass first, then a copy."""
    detector = Detector("n").eval()
    tiles = torch.rand(1, 3, 64, 64)
    before = detector.detect(tiles)
    torch.export.export(copy.deepcopy(detector.net), (tiles,))
    after = detector.detect(tiles)
    assert type(after) is torch.Tensor
    assert torch.equal(before, after)
