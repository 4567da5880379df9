"""What the checks of `dubsar.pipelines.parity.gpu.check` share: figures, times, and networks of a GPU's size.

Three yardsticks:

* tensors that are not equal to the bit;
* the largest relative difference among the loss and all gradients;
* the error ratio: the error against float64 over the error of the same precision without the lever, largest of all.

No figure is of the networks' real losses where those make choices (which anchors are to find a sign): a choice that
turns over is no measure of rounding. Outputs are weighed with fixed random numbers instead.
"""

import copy
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dubsar.configs.blocks import Efficiency, Optim
from dubsar.configs.schema import TransliterateData
from dubsar.datasets.packing import Capacity, Layout, PackedSteps
from dubsar.models.attention import FLEX, use_offset_bias
from dubsar.models.backbones import SignClassifier
from dubsar.models.detector import Detector
from dubsar.models.transliterator import IGNORED, PAD, SignAlignedT5, Size, build_transliterator
from dubsar.pipelines.bench.measure import LEAST_ROUNDS, Arm, Effort, interleave, speed_up
from dubsar.pipelines.levers.apply import Network
from dubsar.pipelines.levers.trace import Trace, recording
from dubsar.pipelines.optim import build_optimizer
from dubsar.pipelines.parity.exact.miniature import build as build_miniature
from dubsar.pipelines.parity.result import Ratio
from dubsar.pipelines.stages.transliterate import Example, LineStream

ROUNDS = 12
RATIO, BITS, DIFFERENCE = "times the error without it", "tensors unequal to the bit", "relative difference"
IN_16_BITS, IN_FLOAT32 = 3.0, 2.0  # largest error ratio
BETWEEN_KERNELS = 1e-3  # largest relative difference of a gradient in float32
BF16 = torch.bfloat16
NOISE = 1e-5  # of the largest tensor: what is below is rounding alone, such as a bias in front of a batch norm
Values = Mapping[str, Tensor]
Batch = dict[str, Tensor]


class CannotJudge(RuntimeError):
    """The machine does not allow a judgement."""


@dataclass(frozen=True)
class Speed:
    """Times per unit of work: medians of the baseline and of the lever, and their ratio by rounds."""

    baseline: str
    lever: str
    unit: str
    baseline_s: float
    lever_s: float
    ratio: Ratio


@dataclass(frozen=True)
class Found:
    """What a check found.

    Attributes:
        figure: the error, in ``unit``; it fails above ``at_most``.
        engaged: whether the lever was seen to act.
        seen: what was seen of it: kernels, counts, bytes.
        fault: what else is wrong; it fails where there is any.
    """

    figure: float
    at_most: float
    unit: str
    engaged: bool
    seen: str
    speed: Speed | None = None
    fault: str = ""


class Call(Protocol):
    """A check."""

    def __call__(self, device: torch.device, *, tiny: bool = False) -> Found:
        """Check on a device; ``tiny`` proves the path only."""


@dataclass(frozen=True)
class Check:
    """A row of the table: the lever, what is compared with what, and the function that does it."""

    lever: str
    checked: str
    call: Call


# --- what is computed


def weigh(outputs: Sequence[Tensor]) -> Tensor:
    """Return a scalar that depends on every output, by random weights that are always the same."""
    total = outputs[0].new_zeros((), dtype=torch.float64)
    for number, output in enumerate(outputs):
        weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
        total = total + (output.double() * weights.to(output.device)).mean()
    return total


def outputs_of(network: Network, batch: Batch) -> list[Tensor]:
    """Return what a network predicts: logits, or a detector's raw maps; of packed rows the places that hold a line."""
    if isinstance(network, Detector):
        raw = network(batch["pixels"])
        return [raw["boxes"], raw["scores"]]
    if isinstance(network, SignClassifier):
        return [network(batch["pixels"])]
    assert isinstance(network, SignAlignedT5)  # pretraining's network predicts nothing, and is not among these checks
    return [logits_of(network, batch)[batch["decoder_documents_BT"] >= 0]]


def logits_of(network: SignAlignedT5, rectangle: Batch) -> Tensor:
    """Return the logits (B, T, 384) of one rectangle of lines."""
    logits_BTV: Tensor = network(
        input_ids=rectangle["source_BL"],
        attention_mask=rectangle.get("mask_BL"),
        decoder_input_ids=rectangle["decoder_BT"],
        source_documents=rectangle.get("source_documents_BL"),
        decoder_documents=rectangle.get("decoder_documents_BT"),
        use_cache=False,
    ).logits
    return logits_BTV


def loss_of(network: Network, batch: Batch, dtype: torch.dtype | None = None) -> Tensor:
    """Return the weighed outputs, computed under autocast where a ``dtype`` is given."""
    device = next(network.parameters()).device.type
    with torch.autocast(device, dtype, enabled=dtype is not None):
        outputs = outputs_of(network, batch)
    return weigh(outputs)


def computed(network: nn.Module, loss: Callable[[], Tensor], *, backward: bool = True) -> Values:
    """Return the loss and, unless there is no backward pass, every gradient; gradients are cleared."""
    if not backward:
        with torch.no_grad():
            return {"loss": loss()}
    network.zero_grad()
    value = loss()
    value.backward()  # type: ignore[no-untyped-call]
    gradients = {n: p.grad.detach().clone() for n, p in network.named_parameters() if p.grad is not None}
    network.zero_grad()
    return {"loss": value.detach(), **gradients}


def relative_errors(found: Values, exact: Values) -> dict[str, float]:
    """Return the size of each tensor's difference, relative to the size of the tensor."""
    floor = NOISE * max(_rms(t) for n, t in exact.items() if n != "loss" or len(exact) == 1)
    return {n: _rms(found[n].double() - t.double()) / max(_rms(t), floor, 1e-300) for n, t in exact.items()}


def error_ratio(found: Values, reference: Values, exact: Values) -> tuple[float, str]:
    """Return the largest ratio of the errors of ``found`` and ``reference``, and its tensor.

    The error of a reference counts as at least the median of all: that of a single number may be nought by luck.
    """
    own, honest = relative_errors(found, exact), relative_errors(reference, exact)
    typical = max(statistics.median(honest.values()), 1e-300)
    return max((own[n] / max(honest[n], typical), n) for n in exact)


def unequal(found: Values, reference: Values) -> list[str]:
    """Name the tensors that differ in any bit."""
    return [n for n, t in reference.items() if not torch.equal(found[n], t)]


def _rms(tensor: Tensor) -> float:
    return float(tensor.double().square().mean().sqrt())


def in_float64(network: Network, batch: Batch) -> Values:
    """Return what a copy of the network computes in float64."""
    wide = copy.deepcopy(network).double()
    exact_batch = {n: t.double() if t.is_floating_point() else t for n, t in batch.items()}
    return computed(wide, partial(loss_of, wide, exact_batch))


# --- what is seen and timed


def traced(call: Callable[[], object]) -> Trace:
    """Return the operations of a call."""
    with recording() as found:
        call()
    return found[0]


def kernels_of(call: Callable[[], object], *parts: str) -> list[str]:
    """Return the names with one of ``parts`` in them among what the device (and its host) ran for a call."""
    with torch.profiler.profile() as profile:
        call()
    return sorted({event.name for event in profile.events() if any(part in event.name for part in parts)})


def timed(
    baseline: tuple[str, Callable[[int], object]],
    lever: tuple[str, Callable[[int], object]],
    unit: str,
    *,
    tiny: bool,
    units: Callable[[int], float] = lambda _: 1.0,
) -> Speed:
    """Time two ways of doing the same work, interleaved."""
    effort = Effort(rounds=LEAST_ROUNDS if tiny else ROUNDS, tiny=tiny)
    samples = interleave([Arm(*baseline, units), Arm(*lever, units)], effort)
    before, after = samples[baseline[0]], samples[lever[0]]
    medians = statistics.median(before), statistics.median(after)
    return Speed(baseline[0], lever[0], unit, *medians, speed_up(before, after))


def training(network: Network, batch: Batch, dtype: torch.dtype | None = torch.bfloat16) -> Callable[[int], None]:
    """Return a function that runs forward and backward pass."""

    def passes(_: int) -> None:
        network.zero_grad()
        loss_of(network, batch, dtype).backward()  # type: ignore[no-untyped-call]

    return passes


def adamw(network: nn.Module, *, fused: bool) -> torch.optim.Optimizer:
    """Return the optimizer of a training, fused or foreach."""
    rates = Optim(lr=1e-4, warmup_steps=0, schedule="constant")
    optimizer: torch.optim.Optimizer = build_optimizer(network, rates, 1, fused=fused)["optimizer"]
    for group in optimizer.param_groups:
        group["foreach"] = not fused
    return optimizer


# --- networks and their batches


def vit(device: torch.device, *, tiny: bool, depth: int = 12) -> tuple[SignClassifier, Batch]:
    """Return DINOv3's ViT-S/16, its layer scale raised (else its blocks hardly count), and pictures of 1,029 tokens."""
    torch.manual_seed(0)
    arguments = {"depth": min(depth, 2 if tiny else depth)}
    network = SignClassifier("vit_small_patch16_dinov3", 100, backbone_args=arguments)
    for name, parameter in network.named_parameters():
        if "gamma" in name:
            nn.init.constant_(parameter, 0.5)
    count, side = (1, 64) if tiny else (4, 512)
    return network.to(device), {"pixels": torch.rand(count, 3, side, side, device=device)}


def resnet(device: torch.device, *, tiny: bool) -> tuple[SignClassifier, Batch]:
    """Return a ResNet-50 and crops of 128 px."""
    torch.manual_seed(0)
    network = SignClassifier("resnet10t" if tiny else "resnet50", 100)
    count, side = (4, 32) if tiny else (64, 128)
    return network.to(device), {"pixels": torch.rand(count, 3, side, side, device=device)}


def yolo(device: torch.device, *, tiny: bool, count: int = 8, side: int = 640) -> tuple[Detector, Batch]:
    """Return YOLO11s with P2 (tiny: the miniature's) and tiles."""
    torch.manual_seed(0)
    network: Detector = build_miniature("detect", Efficiency()).system.network if tiny else Detector("s")
    return network.to(device), {"pixels": torch.rand(count, 3, side, side, device=device)}


def transliterators(device: torch.device, size: Size) -> tuple[SignAlignedT5, SignAlignedT5]:
    """Return a ByT5 with dense masks and one with FlexAttention, of the same weights; their relative bias matters."""
    torch.manual_seed(0)
    dense, flex = build_transliterator(size, "sdpa"), build_transliterator(size, FLEX)
    for name, parameter in dense.named_parameters():
        if "relative_attention_bias" in name:
            nn.init.normal_(parameter)
    use_offset_bias(flex)
    flex.load_state_dict(dense.state_dict())
    return dense.to(device), flex.to(device)


def lines(ids: int, device: torch.device, *, width: int = 0) -> LineStream:
    """Return the optimizer steps of made-up lines, as long as those of Oracc's training split are.

    Args:
        ids: of a step, source and target.
        device: where they will be computed.
        width: of a packed row, source and target each; 0 takes what training takes.
    """
    rng = np.random.default_rng(0)
    examples = [_line(rng, int(n)) for n in rng.lognormal(2.14, 0.5, 2000).clip(1, 60 if not width else width // 8)]
    stream = LineStream(examples, TransliterateData(batch_tokens=ids), compact=True, seed=0, device=device.type)
    if width:
        stream.steps = PackedSteps(stream.steps.lengths_N2, Capacity(width, width), max(1, ids // (2 * width)), 0)
    return stream


def _line(rng: np.random.Generator, signs: int) -> Example:
    glyphs = tuple(chr(0x12000 + int(n)) for n in rng.integers(0, 400, signs))
    pieces = tuple("".join(rng.choice(list("abdegiklmn-"), rng.integers(2, 6))) for _ in range(signs))
    return Example(glyphs, pieces, "akk")


def step_of(stream: LineStream, number: int, layout: Layout, device: torch.device) -> list[Batch]:
    """Return the rectangles of a step in a layout, on the device."""
    stream.layout = layout
    return [{name: tensor.to(device) for name, tensor in rectangle.items()} for rectangle in stream.batch(number)]


def real_ids(rectangles: Sequence[Batch]) -> int:
    """Count source ids and targets, padding left out."""
    return sum(int((r["source_BL"] != PAD).sum()) + int((r["target_BT"] != IGNORED).sum()) for r in rectangles)
