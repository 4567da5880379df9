"""Padded, in buckets or packed: the same logits, loss and gradients in float64, through the real collator."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dubsar.configs.base import load
from dubsar.configs.schema import TransliterateConfig
from dubsar.models.transliterator import END, FIRST_SENTINEL, PAD
from dubsar.pipelines.levers.resolve import resolve_config
from dubsar.pipelines.networks import build_byt5
from dubsar.pipelines.stages.transliterate import Example, LineStream, TransliterateSystem

DEBUG = Path(__file__).resolve().parents[2] / "configs" / "debug" / "transliterate.yaml"
LAYOUTS = ("off", "bucket", "pack")
pytestmark = pytest.mark.filterwarnings("ignore:You are trying to `self.log")


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def config() -> TransliterateConfig:
    return load(DEBUG, TransliterateConfig, ("data.broken_noise=0.5", "data.batch_tokens=1500"))


def examples() -> list[Example]:
    rng = random.Random(0)
    signs = [chr(0x12000 + i) for i in range(60)]
    pieces = ["a", "taš", "-me", " …", ""]
    return [
        Example(tuple(rng.choices(signs, k=n)), tuple(rng.choices(pieces, k=n)), rng.choice(["akk", "hit"]))
        for n in [1, 2, 3, 5, 8, 13, 20, 30] * 6
    ]


def stream(layout: str) -> LineStream:
    lines = LineStream(examples(), config().data, compact=True, seed=0)
    lines.layout = layout  # type: ignore[assignment]
    return lines


def system(attention: str) -> TransliterateSystem:
    torch.manual_seed(0)
    network = build_byt5(config(), attention=attention).double()
    for name, parameter in network.named_parameters():  # else attention is nearly uniform and hides its faults
        if "relative" in name or ".q." in name or ".k." in name:
            parameter.data *= 6
    return TransliterateSystem(network, {}, config(), resolve_config(config()))


def lines_of(rectangles: list[dict[str, torch.Tensor]]) -> Iterator[tuple[int, int, slice, slice]]:
    """Yield where each line stands: rectangle, row, source ids, target ids."""
    for number, rectangle in enumerate(rectangles):
        for row, (source, target) in enumerate(zip(rectangle["source_BL"], rectangle["target_BT"], strict=True)):
            if "mask_BL" in rectangle:
                spans = [(slice(0, int((source != PAD).sum())), slice(0, int((target != -100).sum())))]
            else:
                documents = [
                    rectangle[f"{side}_documents_B{letter}"][row]
                    for side, letter in (("source", "L"), ("decoder", "T"))
                ]
                spans = [
                    tuple(slice(int((d == n).nonzero()[0]), int((d == n).nonzero()[-1]) + 1) for d in documents)  # type: ignore[misc]
                    for n in range(int(documents[0].max()) + 1)
                ]
            for first, second in spans:
                yield number, row, first, second


def by_line(one: TransliterateSystem, rectangles: list[dict[str, torch.Tensor]]) -> dict[tuple[Any, ...], torch.Tensor]:
    """Return the logits (T, 384) of each line by its own ids, so that layouts can be compared line by line."""
    logits = [one.logits(r) for r in rectangles]
    found = {}
    for number, row, source, target in lines_of(rectangles):
        ids = (rectangles[number]["source_BL"][row, source], rectangles[number]["decoder_BT"][row, target])
        found[tuple(tuple(i.tolist()) for i in ids)] = logits[number][row, target]
    return found


def step(one: TransliterateSystem, rectangles: list[dict[str, torch.Tensor]]) -> tuple[float, dict[str, torch.Tensor]]:
    one.step_ids = 0
    one.network.zero_grad()
    loss = one.training_step(rectangles, 0)
    loss.backward()
    return loss.item() / int(one.step_ids), {n: p.grad.clone() for n, p in one.network.named_parameters()}


def test_a_step_has_the_same_lines_in_every_layout() -> None:
    lines = {}
    for layout in LAYOUTS:
        rectangles = stream(layout).batch(1)
        lines[layout] = sorted(
            (rectangles[n]["source_BL"][row, s].tolist(), rectangles[n]["target_BT"][row, t].tolist())
            for n, row, s, t in lines_of(rectangles)
        )
    assert len(lines["off"]) > 8
    assert lines["off"] == lines["bucket"] == lines["pack"]
    assert [len(stream(layout).batch(1)) > 1 for layout in LAYOUTS] == [False, True, False]


def test_packed_rows_keep_their_shape_and_start_every_line_with_the_start_id() -> None:
    packed = stream("pack")
    shapes = {tuple(t.shape for t in packed.batch(n)[0].values()) for n in range(6)}
    assert len(shapes) == 1
    (rectangle,) = packed.batch(0)
    assert rectangle["source_documents_BL"].max() > 0
    for _, row, source, target in lines_of([rectangle]):
        assert rectangle["source_BL"][row, source][-1] == END
        decoder = rectangle["decoder_BT"][row, target]
        assert decoder[0] == PAD
        assert decoder[1] >= FIRST_SENTINEL
        assert (rectangle["target_BT"][row, target] != -100).all()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("layout", ["bucket", "pack"])
def test_logits_loss_and_every_gradient_are_the_same(layout: str, attention: str) -> None:
    one = system(attention)
    reference, other = stream("off").batch(1), stream(layout).batch(1)
    wanted, found = by_line(one, reference), by_line(one, other)
    assert wanted.keys() == found.keys()
    for line, logits in wanted.items():
        assert float((found[line] - logits).abs().max() / logits.abs().max()) < 1e-10
    loss, gradients = step(one, reference)
    other_loss, other_gradients = step(one, other)
    assert other_loss == pytest.approx(loss, rel=1e-10)
    assert all(float(g.norm()) > 0 for g in gradients.values())
    for name, gradient in gradients.items():
        assert float((other_gradients[name] - gradient).norm() / gradient.norm()) < 1e-10, name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bf16_leaves_no_gradient_that_is_not_finite(layout: str) -> None:
    torch.set_default_dtype(torch.float32)
    one = system("sdpa")
    one.network.float()
    rectangles = stream(layout).batch(1)
    with torch.autocast("cpu", torch.bfloat16):
        loss = one.training_step(rectangles, 0)
    loss.backward()
    assert all(p.grad.isfinite().all() for p in one.network.parameters())
