"""Levers are seen to act, or seen not to: every judge has a case that it lets pass and one that it finds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.data import DataLoader

from dubsar.pipelines.callbacks import Average, SeedEachBatch
from dubsar.pipelines.levers.judge import Observation
from dubsar.pipelines.levers.observe import Observer
from dubsar.pipelines.levers.resolve import LeverError, Resolution, Resolved
from dubsar.pipelines.levers.table import LEVERS
from dubsar.pipelines.levers.trace import recording

SIDE, CHANNELS = 8, 4


def levers(**on: Any) -> Resolved:
    """All levers off but these, which are taken as resolved, whatever this machine could do."""
    return Resolved(tuple(Resolution(row.name, row.exactness, v := on.get(row.name, row.off), v) for row in LEVERS))


class Attending(nn.Module):
    """A convolution with dropout and a norm, attention with a bias, and a head."""

    def __init__(self, *, attention: str = "sdpa", bias: bool = False, again: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, CHANNELS, 3, padding=1), nn.BatchNorm2d(CHANNELS)
        self.second, self.head = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.Linear(CHANNELS, 2)
        self.bias_QK = nn.Parameter(torch.zeros(SIDE * SIDE, SIDE * SIDE), requires_grad=bias)
        self.attention, self.again = attention, again

    def block(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(x_BCHW))

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        x_BCHW = nn.functional.dropout(torch.relu(self.norm(self.conv(x_BCHW))), 0.1, self.training)
        x_BCHW = self.again(self.block, x_BCHW) if self.again else self.block(x_BCHW)
        x_BTC = x_BCHW.flatten(2).transpose(1, 2)
        if self.attention == "sdpa":
            x_B1TC, bias_QK = x_BTC[:, None].contiguous(), self.bias_QK.to(x_BTC)
            x_BTC = nn.functional.scaled_dot_product_attention(x_B1TC, x_B1TC, x_B1TC, attn_mask=bias_QK)[:, 0]
        else:
            x_BTC = (x_BTC @ x_BTC.transpose(1, 2) + self.bias_QK).softmax(-1) @ x_BTC
        return self.head(x_BTC.mean(1))


class System(L.LightningModule):
    """Trains a network; counts its batches, so that a step that is not undone shows."""

    def __init__(self, network: nn.Module | None = None, *, fused: bool = False, channels_last: bool = False) -> None:
        super().__init__()
        self.network = network or Attending()
        self.fused, self.channels_last, self.batches, self.losses = fused, channels_last, 0, []

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        self.batches = self.batches + 1
        batch = batch.contiguous(memory_format=torch.channels_last) if self.channels_last else batch
        loss = self.network(batch).float().square().sum() * (1 + self.batches / 100)
        self.log("train/loss", loss)
        return loss

    def on_train_batch_end(self, outputs: Any, *_: Any) -> None:
        self.losses.append(outputs["loss"].item())

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=1e-2, fused=self.fused)


def network(seed: int = 3, **options: Any) -> Attending:
    torch.manual_seed(seed)
    return Attending(**options)


def fit(
    system: System, folder: Path, *callbacks: Any, steps: int = 4, precision: str = "32-true", accumulate: int = 1
) -> L.Trainer:
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randn(2 * steps * accumulate, 3, SIDE, SIDE, generator=generator)
    trainer = L.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        max_steps=steps,
        precision=precision,  # type: ignore[arg-type]
        accumulate_grad_batches=accumulate,
        callbacks=[SeedEachBatch(1), *callbacks],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(system, DataLoader(pictures, batch_size=2))
    return trainer


def seen(folder: Path, system: System, *callbacks: Any, on: dict[str, Any], **options: Any) -> Observation:
    """Train with one lever on and return what was seen of it."""
    (lever,) = on
    observer = Observer(levers(**on))
    fit(system, folder, observer, *callbacks, **options)
    return observer.observations[lever]


def again(block: Any, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(block, x, use_reentrant=False)  # type: ignore[no-any-return]


def again_selectively(block: Any, x: torch.Tensor) -> torch.Tensor:
    keep = {torch.ops.aten.convolution.default}

    def policy(_: Any, operation: Any, *__: Any, **___: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if operation in keep else CheckpointPolicy.PREFER_RECOMPUTE

    return checkpoint(  # type: ignore[no-any-return]
        block, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(policy)
    )


# --- watching changes nothing


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_watched_run_is_the_same_to_the_last_bit(tmp_path: Path, compiled: bool, accumulate: int) -> None:
    runs = []
    for watched in (False, True):
        system = System(network())
        if compiled:
            system.network.compile(backend="aot_eager")
        observer = Observer(levers(compile="full", fused_optimizer=True) if watched else levers())
        trainer = fit(system, tmp_path, observer, steps=5, accumulate=accumulate)
        runs.append((system.losses, system.state_dict(), system.batches, float(trainer.callback_metrics["train/loss"])))
        assert bool(observer.observations) == watched
        assert (observer.sight.rehearsal is not None) == (watched and compiled)
    (losses, weights, batches, logged), (losses2, weights2, batches2, logged2) = runs
    assert (losses, batches, logged) == (losses2, batches2, logged2)
    assert len(losses) == 5 * accumulate
    assert all(torch.equal(weights[name], weights2[name]) for name in weights)


def test_a_rehearsal_that_left_something_behind_would_show(tmp_path: Path) -> None:
    """The negative control of the test before: one real training step more is seen."""

    class Extra(L.Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, number: int) -> None:
            if number == 2:
                module.training_step(batch, number)

    losses = []
    for callbacks in ((), (Extra(),)):
        system = System(network())
        fit(system, tmp_path, *callbacks)
        losses.append(system.losses)
    assert losses[0][:2] == losses[1][:2]
    assert losses[0][2:] != losses[1][2:]


def test_only_the_first_steps_are_watched(tmp_path: Path) -> None:
    class Watch(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
            watching.append(observer._watching)

    watching: list[bool] = []
    observer = Observer(levers(fused_optimizer=True))
    fit(System(), tmp_path, observer, Watch(), steps=5)
    assert watching == [True, True, False, False, False]
    fit(System(), tmp_path, idle := Observer(levers()))
    assert idle.observations == {}


# --- each lever: engaged, and its negative control


def test_precision_is_read_from_the_products_themselves(tmp_path: Path) -> None:
    on = {"precision": "bf16"}
    found = seen(tmp_path, System(), on=on, precision="bf16-mixed")
    assert found.engaged
    assert found.what == (
        "3 of 3 matrix products and convolutions of a forward pass in bfloat16, parameters float32, loss float32"
    )
    found = seen(tmp_path, System(), on=on)
    assert not found.engaged
    assert found.what.startswith("0 of 3 ")


def test_a_loss_or_parameters_in_bf16_are_no_mixed_precision(tmp_path: Path) -> None:
    class NoIsland(System):
        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            return self.network(batch).square().mean().bfloat16()

    found = seen(tmp_path, NoIsland(), on={"precision": "bf16"}, precision="bf16-mixed")
    assert not found.engaged
    assert found.what.endswith("parameters float32, loss bfloat16")
    found = seen(tmp_path, System(network().bfloat16()), on={"precision": "bf16"}, precision="bf16-mixed")
    assert not found.engaged
    assert "parameters bfloat16, loss float32" in found.what


@pytest.mark.parametrize("real", [True, False])
def test_fused_is_flag_and_kernel(tmp_path: Path, real: bool) -> None:
    found = seen(tmp_path, System(fused=real), on={"fused_optimizer": True})
    what = f"{int(real)} of 1 parameter groups are fused, {int(real)} calls of the fused kernel in a step"
    assert (found.engaged, found.what) == (real, what)


def test_a_fused_flag_without_the_kernel_is_found(tmp_path: Path) -> None:
    class Flagged(System):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=1e-3)
            optimizer.param_groups[0]["fused"] = True
            optimizer.step = lambda closure=None: closure()  # type: ignore[method-assign]
            return optimizer

    found = seen(tmp_path, Flagged(), on={"fused_optimizer": True})
    assert (found.engaged, found.what[:36]) == (False, "1 of 1 parameter groups are fused, 0")


def test_the_attention_kernel_that_ran_is_named(tmp_path: Path) -> None:
    on = {"attention": "sdpa"}
    flash = seen(tmp_path, System(network(attention="sdpa")), on=on)
    assert (flash.engaged, flash.what) == (True, "1 x flash (CPU) kernels")
    eager = seen(tmp_path, System(network(attention="eager")), on=on)
    assert not eager.engaged
    assert eager.what.startswith("eager: ")


def test_a_bias_that_needs_a_gradient_forces_the_math_kernel(tmp_path: Path) -> None:
    found = seen(tmp_path, System(network(bias=True)), on={"attention": "sdpa"})
    assert found.engaged  # the lever is on; what it is worth is in the words
    assert found.what.startswith("1 x math kernels; math is not fused: a bias that needs a gradient")
    assert not seen(tmp_path, System(network(bias=True)), on={"attention": "flash"}).engaged
    assert not seen(tmp_path, System(), on={"attention": "flex"}).engaged
    assert seen(tmp_path, System(), on={"attention": "flash"}).engaged


@pytest.mark.parametrize(("kind", "how"), [("full", again), ("selective", again_selectively)])
def test_recomputation_is_seen_in_the_backward_pass(tmp_path: Path, kind: str, how: Any) -> None:
    found = seen(tmp_path, System(network(again=how)), on={"checkpointing": kind})
    assert found.engaged
    assert found.what.endswith(" calls of the forward pass are repeated in the backward pass")


def test_checkpointing_that_never_recomputes_is_found(tmp_path: Path) -> None:
    for options in ({}, {"attention": "eager"}, {"bias": True}):
        found = seen(tmp_path, System(network(**options)), on={"checkpointing": "full"})
        assert (found.engaged, found.what) == (False, "the backward pass recomputes nothing")


def test_channels_last_is_read_from_the_inputs_of_convolutions(tmp_path: Path) -> None:
    on = {"channels_last": True}
    last = network().to(memory_format=torch.channels_last)
    found = seen(tmp_path, System(last, channels_last=True), on=on)
    assert (found.engaged, found.what) == (True, "channels lie innermost in the inputs of 2 of 2 convolutions")
    found = seen(tmp_path, System(network()), on=on)
    assert (found.engaged, found.what) == (False, "channels lie innermost in the inputs of 0 of 2 convolutions")


class Bf16Average(Average):
    """Keeps the average in bf16, as it must not be."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        self._average_model.bfloat16()


@pytest.mark.parametrize("name", ["ema", "swa"])
def test_an_average_is_in_float32_has_updates_and_differs(tmp_path: Path, name: str) -> None:
    on: dict[str, Any] = {name: {"decay": 0.5}}
    found = seen(tmp_path, System(), Average(1, 0.5), on=on)
    assert (found.engaged, found.what) == (True, "3 steps averaged in float32; differs from the raw weights")
    late = seen(tmp_path, System(), Average(9, 0.5), on=on)
    assert (late.engaged, late.what) == (False, "1 steps averaged in float32; the same as the raw weights")
    assert seen(tmp_path, System(), on=on).what == "no weights are averaged"
    wrong = seen(tmp_path, System(), Bf16Average(0, 0.9), on=on)
    assert not wrong.engaged
    assert "averaged in bfloat16" in wrong.what


class Adapted(nn.Module):
    """A frozen layer with an adapter that has no effect at first, and perhaps one that is bypassed."""

    def __init__(self, *, bypassed: bool) -> None:
        super().__init__()
        self.base, self.bypassed = nn.Linear(3, 3).requires_grad_(False), bypassed
        self.lora_A, self.lora_B = nn.Linear(3, 2, bias=False), nn.Linear(2, 3, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        x_BC = x_BCHW.mean((2, 3))
        low = self.lora_A(x_BC)
        return self.base(x_BC) + (0 * low.sum() + self.lora_B.weight.sum() if self.bypassed else self.lora_B(low))


def test_every_adapter_needs_a_gradient_at_some_step(tmp_path: Path) -> None:
    on = {"dora": {"rank": 2}}
    found = seen(tmp_path, System(Adapted(bypassed=False)), on=on)
    assert found.what == "12 of 24 parameters are trained; a gradient came to each of the 2 adapter weights"
    assert found.engaged
    found = seen(tmp_path, System(Adapted(bypassed=True)), on=on)
    assert found.what.endswith("no gradient came to 1 adapter weights: network.lora_A.weight")
    assert not found.engaged
    assert seen(tmp_path, System(), on=on) == Observation("dora", False, "the network has no adapters")


@pytest.mark.parametrize("lever", ["compile_mode", "cuda_graphs", "liger"])
def test_a_lever_that_does_nothing_is_not_engaged(tmp_path: Path, lever: str) -> None:
    value = {"compile_mode": "max-autotune"}.get(lever, True)
    found = seen(tmp_path, System(), on={lever: value})
    assert not found.engaged
    assert found.what.startswith(("0 kernels from templates in a step, 0 tuned, 0 CUDA", "0 CUDA", "nothing was seen"))


# --- what the run tells


def test_levers_json_gets_what_was_seen_and_nothing_for_levers_that_are_off(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "levers.json"
    states: list[dict[str, Any]] = []

    class Watch(L.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            states.append({r["lever"]: r for r in json.loads(path.read_text())} if path.exists() else {})

    observer = Observer(levers(fused_optimizer=True, ema={"decay": 0.5}, channels_last=True), path)
    fit(System(fused=True), tmp_path, observer, Average(0, 0.5), Watch(), steps=5)
    last = {row["lever"]: row for row in json.loads(path.read_text())}
    assert states[:2] == [{}, {}]
    assert states[2]["fused_optimizer"]["engaged"] is True
    assert "engaged" not in states[2]["ema"]  # an average is judged at the end
    assert last["ema"]["engaged"] is True
    assert last["ema"]["observed"] == "5 steps averaged in float32; differs from the raw weights"
    assert last["channels_last"]["engaged"] is False
    assert set(last["compile"]) == {"lever", "exactness", "asked", "resolved", "why"}
    told = capfd.readouterr().err
    message = "efficiency.channels_last: True does not act: channels lie innermost in the inputs of 0 of 2 convolutions"
    assert told.count(message) == 1
    assert "ema" not in told


def test_strict_ends_the_run_behind_the_watched_steps(tmp_path: Path) -> None:
    system = System()
    observer = Observer(levers(fused_optimizer=True), tmp_path / "levers.json", strict=True)
    with pytest.raises(
        LeverError, match=r"^efficiency\.fused_optimizer: True does not act: 0 of 1 .*\(strict: true\)$"
    ):
        fit(system, tmp_path, observer, steps=9)
    assert len(system.losses) <= 3
    assert json.loads((tmp_path / "levers.json").read_text())[4]["engaged"] is False
    with pytest.raises(LeverError, match="averaged in bfloat16"):
        fit(System(), tmp_path, Observer(levers(ema={"decay": 0.9}), strict=True), Bf16Average(0, 0.9), steps=9)
    fine = Observer(levers(fused_optimizer=True, ema={"decay": 0.5}), strict=True)
    fit(System(fused=True), tmp_path, fine, Average(5, 0.5), steps=4)  # late averages are no reason to stop


def test_a_run_shorter_than_the_watch_is_judged_too(tmp_path: Path) -> None:
    for steps in (1, 2):
        assert seen(tmp_path, System(fused=True), on={"fused_optimizer": True}, steps=steps).engaged


def test_a_broken_run_leaves_no_profile_running(tmp_path: Path) -> None:
    class Breaks(System):
        def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
            if number == 1:
                raise ZeroDivisionError
            return super().training_step(batch, number)

    with pytest.raises(ZeroDivisionError):
        fit(Breaks(), tmp_path, Observer(levers(fused_optimizer=True)))
    with recording() as found:
        torch.ones(2) @ torch.ones(2)
    assert found[0].count("aten::dot") >= 1


def test_graph_replays_are_counted_only_while_training(tmp_path: Path) -> None:
    real = torch.cuda.CUDAGraph.replay
    fit(System(), tmp_path, Observer(levers(cuda_graphs=True)))
    assert torch.cuda.CUDAGraph.replay is real


@pytest.mark.gpu
def test_graph_replays_are_seen(tmp_path: Path) -> None:
    class Replaying(System):
        def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
            graph.replay()
            return super().training_step(batch, number)

    graph, still = torch.cuda.CUDAGraph(), torch.zeros(2, device="cuda")
    with torch.cuda.graph(graph):
        still += 1
    found = seen(tmp_path, Replaying(), on={"cuda_graphs": True}, steps=4)
    assert (found.engaged, found.what) == (True, "4 CUDA graphs replayed")
