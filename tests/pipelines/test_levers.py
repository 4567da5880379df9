"""Each lever: a row of the table, a field of the config, a reason where it cannot act, and an effect where it can."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from dubsar.configs.base import load
from dubsar.configs.blocks import Efficiency, Ema, Optim, Swa
from dubsar.configs.schema import STAGES
from dubsar.datasets.packing import Capacity, PackedSteps, lay_out, own_lengths, padded_ids
from dubsar.models.backbones import SignClassifier
from dubsar.models.detector import Detector
from dubsar.pipelines.callbacks import Average
from dubsar.pipelines.doctor import resolve_alone
from dubsar.pipelines.levers.apply import apply_levers, repeated_blocks
from dubsar.pipelines.levers.resolve import LeverError, Resolved, resolve, resolve_config
from dubsar.pipelines.levers.table import LEVERS
from dubsar.pipelines.networks import build_byt5
from dubsar.pipelines.optim import build_optimizer, clip_gradients, first_averaged_step, rate_factor
from dubsar.pipelines.training import RunFolder, build_trainer

DEBUG = Path(__file__).resolve().parents[2] / "configs" / "debug"
ASK: dict[str, list[Any]] = {
    "precision": ["bf16", "fp16"],
    "compile": ["per_block", "full"],
    "compile_mode": ["max-autotune", "reduce-overhead"],
    "attention": ["sdpa", "flash", "flex"],
    "fused_optimizer": [True],
    "packing": ["bucket", "pack", "auto"],
    "ema": [{"decay": 0.5}],
    "swa": [{"from_fraction": 0.5, "lr": 1e-4}],
    "dora": [{"rank": 4}],
    "checkpointing": ["selective", "full"],
    "cuda_graphs": [True],
    "channels_last": [True],
    "liger": [True],
}
REQUESTS = [(name, value) for name, values in ASK.items() for value in values]


def asked(**fields: Any) -> Efficiency:
    """Return a block as configured; what a lever requires is asked for, too."""
    needed = {"compile": "full"} if fields.keys() & {"compile_mode"} else {}
    return Efficiency.model_validate(needed | fields, strict=False)


def debug_config(stage: str, *overrides: str) -> Any:
    return load(DEBUG / f"{stage}.yaml", STAGES[stage], overrides)


def test_the_table_has_a_row_for_each_field_of_the_config() -> None:
    assert [lever.name for lever in LEVERS] == [name for name in Efficiency.model_fields if name != "strict"]
    assert set(ASK) == {lever.name for lever in LEVERS}


def test_all_off_is_the_reference() -> None:
    for stage in STAGES:
        rows = resolve(Efficiency(), stage, cuda=False).rows
        assert [r.resolved for r in rows] == [lever.off for lever in LEVERS]
        assert [r.why for r in rows] == [""] * len(rows)
        assert all(getattr(Efficiency(), lever.name) == lever.off for lever in LEVERS)
        resolve(Efficiency(strict=True), stage, cuda=False)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("cuda", [False, True])
@pytest.mark.parametrize(("name", "value"), REQUESTS, ids=str)
def test_what_is_not_done_as_asked_has_a_reason(name: str, value: Any, cuda: bool, stage: str) -> None:
    if (name, value, stage) == ("precision", "fp16", "transliterate"):
        for strict in (False, True):
            with pytest.raises(
                LeverError, match="'fp16' is refused for ByT5: the T5 family diverges in float16; use bf16"
            ):
                resolve(asked(precision="fp16", strict=strict), stage, cuda=cuda)
        return
    row = next(r for r in resolve(asked(**{name: value}), stage, cuda=cuda).rows if r.lever == name)
    assert bool(row.why) == (row.asked != row.resolved)
    if row.why:
        assert len(row.why) > 15
        with pytest.raises(LeverError) as caught:
            resolve(asked(**{name: value}, strict=True), stage, cuda=cuda)
        assert str(caught.value) == f"efficiency.{name}: {row.asked!r} cannot act here: {row.why} (strict: true)"
    else:
        assert resolve(asked(**{name: value}, strict=True), stage, cuda=cuda)[name] == row.resolved


def test_levers_that_need_each_other() -> None:
    for cuda, mode in ((True, "max-autotune"), (False, "default")):
        together = resolve(asked(compile="full", compile_mode="max-autotune"), "classify", cuda=cuda)
        assert together["compile_mode"] == mode


def test_the_doctor_asks_for_each_lever_alone() -> None:
    for name in ("ema", "swa"):
        row = resolve_alone(name, "classify")
        assert (row.resolved, row.why) == (row.asked, "")
        assert row.asked


@pytest.mark.skipif(torch.cuda.is_available() or torch.backends.mps.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    message = r"trainer\.accelerator is 'gpu', but PyTorch finds none here; set it to cpu or auto"
    with pytest.raises(ValueError, match=message):
        resolve_config(debug_config("classify", "trainer.accelerator=gpu"))
    assert resolve_config(debug_config("classify", "trainer.accelerator=auto"))["precision"] == "fp32"


def test_a_trainer_on_the_cpu_resolves_for_the_cpu() -> None:
    config = debug_config("classify", "efficiency.precision=fp16", "trainer.accelerator=cpu")
    assert resolve_config(config)["precision"] == "fp32"


def test_fsdp_is_refused_on_a_cpu() -> None:
    with pytest.raises(ValueError, match=r"trainer\.strategy is 'fsdp', which Lightning has for GPUs only"):
        resolve_config(debug_config("classify", "trainer.strategy=fsdp"))


def test_flash_attention_is_never_claimed_for_t5() -> None:
    for cuda in (False, True):
        assert resolve(asked(attention="flash"), "transliterate", cuda=cuda)["attention"] == "sdpa"


# --- what a lever that the resolver lets through really does; one function per lever, or the suite fails


def trainer_of(stage: str, tmp_path: Path, *overrides: str) -> tuple[L.Trainer, Resolved]:
    config = debug_config(stage, *overrides)
    levers = resolve_config(config)
    return build_trainer(config, RunFolder(tmp_path), levers, monitor="val/x", mode="max"), levers


def acts_precision(tmp_path: Path) -> None:
    network = SignClassifier("resnet10t", 3)
    for asked_for, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        trainer, _ = trainer_of("classify", tmp_path, f"efficiency.precision={asked_for}")
        with trainer.precision_plugin.forward_context():
            assert network(torch.rand(2, 3, 32, 32)).dtype == dtype
        assert next(network.parameters()).dtype == torch.float32


def acts_fused_optimizer(tmp_path: Path) -> None:
    optim = Optim(lr=1e-3)
    network = torch.nn.Linear(3, 3)

    def make(fused: bool) -> Any:
        return build_optimizer(network, optim, 10, fused=fused)["optimizer"]

    def step(optimizer: Any) -> None:
        network(torch.ones(1, 3)).sum().backward()
        optimizer.step()

    for fused in (True, False):
        first, resumed = make(not fused), make(fused)
        step(first)
        assert {bool(g["fused"]) for g in first.param_groups} == {not fused}
        resumed.load_state_dict(copy.deepcopy(first.state_dict()))  # PyTorch would take `fused` from here
        assert {bool(g["fused"]) for g in resumed.param_groups} == {fused}
        assert resumed.state_dict()["state"][0]["step"] == 1
        step(resumed)
    plain = torch.optim.AdamW(network.parameters(), fused=True)  # negative control: the trap is real
    plain.load_state_dict(torch.optim.AdamW(network.parameters(), fused=False).state_dict())
    assert not plain.param_groups[0]["fused"]


class Tiny(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1, bias=False)
        self.seen: list[float] = []

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        self.seen.append(float(self.layer.weight))
        return self.layer(batch).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.25)


def fit_tiny(tmp_path: Path, callback: Any, precision: str = "32-true") -> Tiny:
    system = Tiny()
    torch.nn.init.constant_(system.layer.weight, 1.0)
    options = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    trainer = L.Trainer(
        default_root_dir=tmp_path, accelerator="cpu", max_steps=6, callbacks=[callback], precision=precision, **options
    )
    trainer.fit(system, torch.utils.data.DataLoader(torch.ones(10, 1)))
    return system


def acts_ema(tmp_path: Path) -> None:
    trainer, levers = trainer_of("classify", tmp_path, "efficiency.ema={decay: 0.5}")
    assert levers["ema"] == {"decay": 0.5}
    (callback,) = [c for c in trainer.callbacks if isinstance(c, Average)]
    assert (callback.decay, callback.first_step) == (0.5, 1)  # one horizon, at most a quarter of the run
    system = fit_tiny(tmp_path, callback, precision="bf16-mixed")
    weights = [1.0 - 0.25 * n for n in range(1, 7)]
    average = weights[1]
    for weight in weights[2:]:
        average = 0.5 * average + 0.5 * weight
    assert float(system.layer.weight) == pytest.approx(average, rel=1e-6)
    assert {p.dtype for p in callback._average_model.parameters()} == {torch.float32}


def acts_swa(tmp_path: Path) -> None:
    trainer, levers = trainer_of("classify", tmp_path, "efficiency.swa={from_fraction: 0.5, lr: 1.0e-4}")
    (callback,) = [c for c in trainer.callbacks if isinstance(c, Average)]
    assert (callback.decay, callback.first_step) == (None, 3)  # of 6
    system = fit_tiny(tmp_path, callback)
    assert float(system.layer.weight) == pytest.approx(sum(1.0 - 0.25 * n for n in (4, 5, 6)) / 3)
    factor = rate_factor(Optim(lr=1e-2, warmup_steps=0, schedule="constant"), 6, levers["swa"])
    assert [factor(n) * 1e-2 for n in range(6)] == pytest.approx([1e-2] * 3 + [1e-4] * 3)
    assert first_averaged_step({"from_fraction": 0.999}, 6) == 5


def acts_channels_last(tmp_path: Path) -> None:
    on = asked(channels_last=True)
    for stage, network in (("classify", SignClassifier("resnet10t", 3)), ("detect", Detector("n"))):
        apply_levers(network, resolve(on, stage, cuda=False))
        kernels = [p for p in network.parameters() if p.ndim == 4 and p.shape[1] > 1 and p.shape[2] > 1]
        assert kernels
        assert all(p.is_contiguous(memory_format=torch.channels_last) for p in kernels)


def acts_dora(tmp_path: Path) -> None:
    for stage, network in (
        ("classify", SignClassifier("resnet10t", 3)),
        ("transliterate", build_byt5(debug_config("transliterate"))),
    ):
        every = sum(p.numel() for p in network.parameters())
        apply_levers(network, resolve(asked(dora={"rank": 2}), stage, cuda=False))
        learned = {n: p.numel() for n, p in network.named_parameters() if p.requires_grad}
        assert 0 < sum(learned.values()) < every / 4
        assert any("lora_magnitude_vector" in name for name in learned)
        assert ("net.fc.weight" in learned) == (stage == "classify")


def acts_checkpointing(tmp_path: Path) -> None:
    """That it recomputes, bit for bit, is tested in ``levers/test_apply.py``; here, that each stage's blocks do it."""
    for stage, network in (
        ("classify", SignClassifier("resnet10t", 3)),
        ("detect", Detector("n")),
        ("transliterate", build_byt5(debug_config("transliterate"))),
    ):
        for how in ("full", "selective"):
            apply_levers(network, resolve(asked(checkpointing=how), stage, cuda=False))
            assert all(b.forward.args[2] == (how == "selective") for b in repeated_blocks(network))


def acts_compile(tmp_path: Path) -> None:
    for stage, network in (
        ("classify", SignClassifier("resnet10t", 3)),
        ("detect", Detector("n")),
        ("transliterate", build_byt5(debug_config("transliterate"))),
    ):
        whole = getattr(network, "net", network)
        apply_levers(network, resolve(asked(compile="per_block"), stage, cuda=False))
        assert all(b._compiled_call_impl is not None for b in repeated_blocks(network))
        assert whole._compiled_call_impl is None
        apply_levers(network, resolve(asked(compile="full"), stage, cuda=False))
        assert whole._compiled_call_impl is not None
        assert not [k for k in network.state_dict() if "_orig_mod" in k]


def acts_compile_mode(tmp_path: Path) -> None:
    given: dict[str, Any] = {}

    class Recorder(torch.nn.Module):
        def compile(self, **options: Any) -> None:
            given.update(options)

    holder: Any = torch.nn.Module()
    holder.net = Recorder()
    apply_levers(holder, resolve(asked(compile="full", compile_mode="max-autotune"), "classify", cuda=True))
    assert (given["mode"], given["dynamic"], given["backend"]) == ("max-autotune", False, "inductor")


def acts_cuda_graphs(tmp_path: Path) -> None:
    """The kernels are replayed in ``levers/test_apply.py``, on a GPU; here, what the compiler is asked for."""
    given: dict[str, Any] = {}

    class Recorder(torch.nn.Module):
        def compile(self, **options: Any) -> None:
            given.update(options)

    holder: Any = torch.nn.Module()
    holder.net = Recorder()
    apply_levers(holder, resolve(asked(cuda_graphs=True), "detect", cuda=True))
    assert given["backend"] == "cudagraphs"
    apply_levers(holder, resolve(asked(cuda_graphs=True, compile="full"), "detect", cuda=True))
    assert (given["backend"], given["mode"]) == ("inductor", "reduce-overhead")
    given.clear()
    apply_levers(holder, resolve(asked(cuda_graphs=True), "detect", cuda=False))
    assert not given


def acts_attention(tmp_path: Path) -> None:
    config = debug_config("transliterate")
    torch.manual_seed(0)
    eager, sdpa = (build_byt5(config, attention=name).eval() for name in ("eager", "sdpa"))
    sdpa.load_state_dict(eager.state_dict())
    assert (eager.config._attn_implementation, sdpa.config._attn_implementation) == ("eager", "sdpa")
    batch = {"input_ids": torch.tensor([[262, 70, 71, 1]]), "decoder_input_ids": torch.tensor([[0, 262, 71]])}
    assert torch.allclose(eager(**batch).logits, sdpa(**batch).logits, atol=1e-5)


def acts_packing(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    lengths_N2 = ((torch.rand(2000, 2, generator=draw) ** 3) * 190 + 10).long().numpy()
    steps = PackedSteps(lengths_N2, Capacity.of(lengths_N2), 8, seed=0)
    own_L2, packs = own_lengths(lengths_N2, steps[0])
    computed = {}
    for layout in ("off", "bucket", "pack"):
        rectangles = lay_out(own_L2, packs, layout)
        assert sorted(i for rows in rectangles for row in rows for i in row) == list(range(len(own_L2)))
        computed[layout] = padded_ids(own_L2, rectangles, steps.capacity if layout == "pack" else None)
    real = int(own_L2.sum())
    assert computed["off"] > 1.8 * real
    assert real <= computed["bucket"] < 0.8 * computed["off"]
    assert real <= computed["pack"] < 1.25 * real


ACTS: dict[str, Callable[[Path], None]] = {
    name.removeprefix("acts_"): function for name, function in list(globals().items()) if name.startswith("acts_")
}
CAN_ACT = [lever.name for lever in LEVERS if not lever.unavailable]


@pytest.mark.parametrize("name", CAN_ACT)
def test_a_lever_that_can_act_acts(name: str, tmp_path: Path) -> None:
    assert name in ACTS, f"lever {name} has no test that it acts: write acts_{name}"
    ACTS[name](tmp_path)


def test_there_is_no_test_for_a_lever_that_is_gone() -> None:
    assert set(ACTS) <= set(CAN_ACT)


def test_clipping_clips_and_0_clips_nothing() -> None:
    layer = torch.nn.Linear(2, 1, bias=False)
    for norm, expected in ((1.0, 1.0), (0.0, 5.0), (9.0, 5.0)):
        layer.weight.grad = torch.tensor([[3.0, 4.0]])
        clip_gradients(layer, norm)
        assert float(layer.weight.grad.norm()) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("schedule", "middle", "end"), [("cosine", 0.5, 0.0), ("linear", 0.5, 0.0), ("constant", 1.0, 1.0)]
)
def test_the_rate_warms_up_and_follows_its_schedule(schedule: Any, middle: float, end: float) -> None:
    factor = rate_factor(Optim(lr=1.0, warmup_steps=4, schedule=schedule), 104)
    assert [factor(n) for n in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert factor(54) == pytest.approx(middle)
    assert factor(104) == pytest.approx(end)
    assert rate_factor(Optim(lr=1.0, warmup_steps=0), 10)(0) == 1.0


def test_biases_and_norms_do_not_decay() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2))
    network[0].weight.requires_grad_(True)
    groups = build_optimizer(network, Optim(lr=1.0, weight_decay=0.3), 10)["optimizer"].param_groups
    assert [(g["weight_decay"], {p.ndim for p in g["params"]}) for g in groups] == [(0.3, {2}), (0.0, {1})]


def test_defaults_of_averages_are_what_the_levers_document() -> None:
    assert (Ema().decay, Swa().from_fraction, Swa().lr) == (0.9998, 0.75, 1e-5)
