"""Checks on a GPU of what computes numbers otherwise: fused AdamW, the float32 island under bf16, float16."""

import copy
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from dubsar.configs.blocks import Efficiency
from dubsar.models.backbones import SignClassifier
from dubsar.models.detector import Detector
from dubsar.models.precision import at_least_float32
from dubsar.pipelines.parity.exact.miniature import CLASSES
from dubsar.pipelines.parity.exact.miniature import build as build_miniature
from dubsar.pipelines.parity.gpu.figures import (
    BF16,
    IN_FLOAT32,
    RATIO,
    Batch,
    Found,
    Values,
    adamw,
    error_ratio,
    timed,
    traced,
    vit,
    yolo,
)

PIXELS = 0.01  # that a box may be off
TRIES = 16  # of a step in float16: the loss scale starts too high and is halved


def fused_adamw(device: torch.device, *, tiny: bool = False) -> Found:
    """Compare fused AdamW with foreach, both against float64, after 50 steps on the same gradients."""
    network, _ = vit(device, tiny=tiny)
    steps = 5 if tiny else 50
    exact = _stepped(copy.deepcopy(network).double(), steps, fused=False)[0]
    (foreach, plain), (fused, optimizer) = (_stepped(copy.deepcopy(network), steps, fused=f) for f in (False, True))
    ratio, worst = error_ratio(fused, foreach, exact)
    calls = traced(optimizer.step).count("aten::_fused_adam")
    ulp = max(int((_ordered(fused[n]) - _ordered(foreach[n])).abs().max()) for n in exact)
    return Found(
        ratio,
        IN_FLOAT32,
        RATIO,
        calls > 0,
        f"{calls} calls of the fused kernel in a step; {ulp} ulp from foreach at most; worst in {worst}",
        timed(("foreach", lambda _: plain.step()), ("fused", lambda _: optimizer.step()), "optimizer step", tiny=tiny),
    )


def _stepped(network: nn.Module, steps: int, *, fused: bool) -> tuple[Values, torch.optim.Optimizer]:
    """Step with gradients that are always the same; return the weights and the optimizer, gradients in place."""
    optimizer = adamw(network, fused=fused)
    torch.manual_seed(1)
    for _ in range(steps):
        for parameter in network.parameters():
            parameter.grad = torch.randn_like(parameter, dtype=torch.float32).to(parameter.dtype)
        optimizer.step()
    return {name: p.detach().clone() for name, p in network.named_parameters()}, optimizer


def _ordered(tensor: Tensor) -> Tensor:
    """Number float32 values so that neighbours differ by one."""
    bits = tensor.view(torch.int32).long()
    return torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def float32_island(device: torch.device, *, tiny: bool = False) -> Found:
    """Decode the maps that a detector computes under bf16: boxes against float64, the loss against float32."""
    network, batch = yolo(device, tiny=tiny, count=1)
    tiles = batch["pixels"]
    for level in network.net.model[-1].cv2:  # as drawn, all distributions are uniform once they are rounded
        nn.init.normal_(level[-1].weight, std=0.5)
    maps: list[Any] = []
    hook = network.net.model[-1].register_forward_hook(lambda *args: maps.append(args[-1]))
    with torch.autocast(device.type, BF16):
        boxes_A4 = network.eval().detect(tiles)[0, :, :4]
        raw = network.train()(tiles)
        loss = network.loss(raw, _truth(tiles))[0]
    hook.remove()
    wide = tree_map(at_least_float32, raw)
    expected = network.loss(wide, _truth(tiles))[0]
    apart = float((loss - expected).detach().abs() / expected.detach().abs())
    strides = network.net.model[-1].stride.tolist()
    off = float((boxes_A4.double() - _boxes(maps[0], strides)).abs().max())
    grid_A2 = torch.cat([_grid(f, s)[0] for f, s in zip(maps[0]["feats"], strides, strict=True)])
    rounded = float(((grid_A2 / strides[0]).bfloat16().double() * strides[0] - grid_A2).abs().max())
    island = loss.dtype == boxes_A4.dtype == torch.float32
    faults = (
        "" if island else f"the loss is {loss.dtype}, boxes are {boxes_A4.dtype}",
        "" if apart <= 1e-5 else f"the loss is {apart:.1e} from that of the same maps in float32",
    )
    engaged = maps[0]["boxes"].dtype == raw["boxes"].dtype == BF16
    dtype = str(raw["boxes"].dtype).removeprefix("torch.")
    seen = f"maps {dtype}, losses {apart:.0e} apart; anchors in bf16 would be up to {rounded:.1f} px off"
    return Found(off, PIXELS, "px", engaged, seen, fault="; ".join(filter(None, faults)))


def _truth(tiles_BCHW: Tensor) -> Batch:
    """Return signs in a tile, as `Detector.loss` takes them."""
    boxes = [[0.7, 0.7, 0.03, 0.03], [0.9, 0.3, 0.02, 0.04], [0.81, 0.92, 0.05, 0.02]]
    side = tiles_BCHW.shape[-1] // 4
    truth = {
        "batch_idx": torch.zeros(len(boxes)),
        "cls": torch.zeros(len(boxes), 1),
        "bboxes": torch.tensor(boxes),
        "weight_BHW": torch.ones(len(tiles_BCHW), side, side),
    }
    return {name: tensor.to(tiles_BCHW.device) for name, tensor in truth.items()}


def _grid(feature_BCHW: Tensor, stride: float) -> tuple[Tensor, Tensor]:
    """Return the anchors (A, 2) of a level in pixels, float64, and the stride of each (A, 1)."""
    y, x = (torch.arange(n, device=feature_BCHW.device).double() + 0.5 for n in feature_BCHW.shape[-2:])
    rows, columns = torch.meshgrid(y, x, indexing="ij")
    grid_A2 = torch.stack((columns.flatten(), rows.flatten()), 1) * stride
    return grid_A2, torch.full_like(grid_A2[:, :1], stride)


def _boxes(maps: dict[str, Any], strides: Sequence[float]) -> Tensor:
    """Decode the first tile's boxes (A, 4) in float64: an anchor, less and plus the expected distances to the sides."""
    levels = [_grid(f, s) for f, s in zip(maps["feats"], strides, strict=True)]
    grid_A2, stride_A1 = (torch.cat(parts) for parts in zip(*levels, strict=True))
    bins_4RA = maps["boxes"][0].double().unflatten(0, (4, -1)).softmax(1)
    far_R1 = torch.arange(bins_4RA.shape[1], device=bins_4RA.device).double()[:, None]
    distance_A4 = (bins_4RA * far_R1).sum(1).T * stride_A1
    return torch.cat((grid_A2 - distance_A4[:, :2], grid_A2 + distance_A4[:, 2:]), 1)


def float16_step(device: torch.device, *, tiny: bool = False, stage: Literal["classify", "detect"] = "detect") -> Found:
    """Take one optimizer step of a stage in float16 with a loss scale: the gradients have to be finite."""
    small = build_miniature(stage, Efficiency(), large=stage == "detect" and not tiny)
    system = small.system
    if not tiny:
        system.network = Detector("s") if stage == "detect" else SignClassifier("resnet50", CLASSES)
    system.log = system.log_dict = lambda *_, **__: None
    system.to(device).train()
    batch = tree_map(lambda value: value.to(device) if isinstance(value, Tensor) else value, small.stream.batch(0))
    optimizer, scaler = adamw(system.network, fused=False), torch.amp.GradScaler(device.type)
    before, infinite, losses = copy.deepcopy(system.network.state_dict()), 1, []

    def forward() -> None:
        with torch.autocast(device.type, torch.float16):
            losses.append(system.training_step(batch, 0))

    dtypes = traced(forward).compute_dtypes()
    for _ in range(TRIES):
        optimizer.zero_grad()
        forward()
        scaler.scale(losses[-1]).backward()
        scaler.unscale_(optimizer)
        gradients = [p.grad for p in system.network.parameters() if p.grad is not None]
        infinite = sum(not bool(g.isfinite().all()) for g in gradients)
        scaler.step(optimizer)
        scale = scaler.get_scale()
        scaler.update()
        if not infinite:
            break
    after = system.network.state_dict()
    moved = [name for name, _ in system.network.named_parameters() if not torch.equal(before[name], after[name])]
    finite = bool(losses[-1].isfinite()) and all(bool(t.isfinite().all()) for t in after.values())
    count = dtypes.count(torch.float16)
    seen = f"{count} of {len(dtypes)} products in float16, loss scale {scale:g}, {len(moved)} weights moved"
    fault = "" if finite and moved else "the loss or a weight is not finite" if not finite else "no weight moved"
    return Found(infinite, 0, "gradients not finite", 2 * count > len(dtypes), seen, fault=fault)
