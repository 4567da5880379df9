"""Run folders, the stream of batches, and that a resumed run equals the unbroken one to the last bit."""

import json
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader

from dubsar.configs.base import load
from dubsar.configs.schema import STAGES
from dubsar.pipelines import cli
from dubsar.pipelines.callbacks import KeepLast, StopOnNaN, read_metrics
from dubsar.pipelines.launch import stage_module
from dubsar.pipelines.levers.resolve import resolve_config
from dubsar.pipelines.stages import transliterate
from dubsar.pipelines.stream import Stream
from dubsar.pipelines.training import (
    RunFolder,
    RunFolderError,
    build_trainer,
    fit,
    open_run,
    seed_everything,
)

DEBUG = Path(__file__).resolve().parents[2] / "configs" / "debug"
TINY = ("data.sources=[hittite]", "data.val_lines=1", "data.limit=40", "trainer.val_every_steps=100")


def debug_config(stage: str, *overrides: str) -> Any:
    return load(DEBUG / f"{stage}.yaml", STAGES[stage], overrides)


def opened(path: Path, **options: bool) -> RunFolder:
    config = debug_config("transliterate")
    return open_run(path, config, resolve_config(config), **options)


# --- run folder


def test_a_run_folder_holds_config_and_levers(tmp_path: Path) -> None:
    run = opened(tmp_path / "deep" / "run")
    config = load(run.path / "config.yaml", STAGES["transliterate"])
    assert config == debug_config("transliterate")
    rows = json.loads((run.path / "levers.json").read_text())
    assert {"lever": "precision", "exactness": "P", "asked": "fp32", "resolved": "fp32", "why": ""} in rows


def test_a_second_start_names_resume_and_overwrite_and_exits_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], data_root: Path
) -> None:
    run = opened(tmp_path / "run")
    (run.path / "mine.txt").write_text("kept")
    arguments = ["train", "transliterate", "--config", str(DEBUG / "transliterate.yaml"), "--run", str(run.path)]
    monkeypatch.setattr("sys.argv", ["dubsar", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    message = f"dubsar: {run.path}: a run is there already; go on with --resume or start anew with --overwrite\n"
    assert capfd.readouterr().err == message
    assert (run.path / "mine.txt").read_text() == "kept"
    opened(run.path, overwrite=True)
    assert not (run.path / "mine.txt").exists()


def test_run_folders_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    run = opened(tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"no checkpoint to resume from \(expected .*last\.ckpt\); start without"):
        opened(run.path, resume=True)
    with pytest.raises(
        RunFolderError, match="--resume goes on with a run and --overwrite deletes it; give one of them"
    ):
        opened(run.path, resume=True, overwrite=True)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_text("x")
    for lack, found in (
        (r"holds no config\.yaml", {}),
        (r"holds no levers\.json", {"config.yaml": "stage: transliterate\n"}),
        (r"its config\.yaml names no stage \(pretrain, classify, detect, transliterate\)", {"levers.json": "[]"}),
    ):
        for name, text in found.items():
            (tmp_path / "photos" / name).write_text(text)
        if "levers.json" in found:
            (tmp_path / "photos" / "config.yaml").write_text("repos: [a website's]\n")
        with pytest.raises(RunFolderError, match=rf"{lack}, so it is no run folder; --overwrite will not delete it"):
            opened(tmp_path / "photos", overwrite=True)
    assert (tmp_path / "photos" / "a.jpg").exists()
    with pytest.raises(NotADirectoryError, match="a file, expected a run folder"):
        opened(tmp_path / "photos" / "a.jpg")


# --- the stream


class Counting(Stream):
    def batch(self, number: int) -> dict[str, torch.Tensor]:
        return {"number": torch.tensor(number)}

    def epoch_batches(self) -> int:
        return 10


def numbers(stream: Stream, count: int, workers: int = 0) -> list[int]:
    loader = DataLoader(stream, batch_size=None, num_workers=workers)
    return [int(b["number"]) for b, _ in zip(loader, range(count), strict=False)]


def test_the_stream_goes_on_where_it_stopped_whatever_the_workers() -> None:
    stream = Counting()
    assert numbers(stream, 6) == numbers(stream, 6, workers=2) == [0, 1, 2, 3, 4, 5]
    stream.start = 3
    assert numbers(stream, 3) == numbers(stream, 3, workers=2) == [3, 4, 5]


def test_ranks_share_the_stream_out() -> None:
    one, two = Counting(), Counting()
    one.ranks = two.ranks = 2
    two.rank = 1
    assert (numbers(one, 3), numbers(two, 3, workers=2)) == ([0, 2, 4], [1, 3, 5])


def tensors(batch: Any) -> list[torch.Tensor]:
    """The tensors of a batch, or of the rectangles of one."""
    return [t for part in (batch if isinstance(batch, list) else [batch]) for t in part.values()]


def same(one: Any, two: Any) -> bool:
    first, second = tensors(one), tensors(two)
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.data
@pytest.mark.parametrize("stage", ["pretrain", "classify", "transliterate"])
def test_a_batch_is_a_function_of_its_number(stage: str, data_root: Path) -> None:
    config = debug_config(stage, *(TINY if stage == "transliterate" else ("data.limit=8",)))
    module = stage_module(stage)
    _, stream = module.build(config, resolve_config(config))
    late = stream.batch(7)
    stream.batch(2)
    assert same(late, stream.batch(7))
    assert not same(late, stream.batch(8))
    _, other = module.build(
        config.model_copy(update={"trainer": config.trainer.model_copy(update={"seed": 5})}), resolve_config(config)
    )
    assert not same(late, other.batch(7))


# --- resume


def train(stage: str, folder: Path, *overrides: str, resume: bool = False) -> dict[str, torch.Tensor]:
    """Run a stage's fit and return the final training weights (before the best are loaded)."""
    config = debug_config(stage, *overrides)
    levers = resolve_config(config)
    seed_everything(config.trainer)
    if resume:
        torch.manual_seed(999)  # nothing may depend on what the global generator did before
    run = open_run(folder, config, levers, resume=resume)
    system, stream = stage_module(stage).build(config, levers)
    trainer = build_trainer(config, run, levers, monitor="val/none", mode="max")
    trainer.callbacks = [c for c in trainer.callbacks if getattr(c, "monitor", None) != "val/none"]
    system.validation_step = lambda *_: None
    fit(trainer, system, stream, run, resume=resume)
    return torch.load(run.last, weights_only=True)


RESUMED = {
    "transliterate": (*TINY, "model.dropout=0.1", "data.broken_noise=0.5"),
    # teacher, anchor and random views: all that self-distillation remembers
    "pretrain": ("data.limit=2", "model.drop_path_rate=0.4", "model.gram={scale: 2, refresh_steps: 2}"),
    "classify": ("data.limit=24", "model.mixup=0.3", "model.drop_rate=0.2", "model.drop_path_rate=0.2"),
}
VARIANTS = [
    ("transliterate", ("efficiency.ema={decay: 0.7}", "efficiency.fused_optimizer=true", "trainer.accumulate=2")),
    ("transliterate", ("efficiency.swa={from_fraction: 0.5, lr: 1.0e-4}", "efficiency.precision=bf16")),
    ("classify", ("efficiency.ema={decay: 0.7}", "efficiency.channels_last=true")),
    ("classify", ("trainer.workers=1",)),
    ("pretrain", ("trainer.accumulate=2", "efficiency.fused_optimizer=true", "efficiency.checkpointing=selective")),
]


@pytest.mark.data
@pytest.mark.parametrize(("stage", "variant"), VARIANTS, ids=lambda v: v if isinstance(v, str) else "+".join(v))
def test_a_resumed_run_equals_the_unbroken_one(
    stage: str, variant: tuple[str, ...], tmp_path: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = (*RESUMED[stage], *variant, "trainer.max_steps=6")
    whole = train(stage, tmp_path / "whole", *options)

    def stops(self: Any, trainer: L.Trainer, *_: Any) -> None:  # as if killed behind step 4, one step after the save
        if trainer.global_step == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        real = KeepLast.on_train_batch_end

        def saves_at_3(self: KeepLast, trainer: L.Trainer, module: Any, *rest: Any) -> None:
            self.seconds = 0.0 if trainer.global_step == 3 else 1e9
            real(self, trainer, module, *rest)

        patch.setattr(KeepLast, "on_train_batch_end", saves_at_3)
        patch.setattr(StopOnNaN, "on_train_batch_end", stops)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            train(stage, tmp_path / "broken", *options)
    assert torch.load(tmp_path / "broken" / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == 3
    resumed = train(stage, tmp_path / "broken", *options, resume=True)

    assert resumed["global_step"] == whole["global_step"] == 6
    for key in ("state_dict", "current_model_state"):
        assert (key in whole) == (key in resumed)
        for name, tensor in whole.get(key, {}).items():
            assert torch.equal(tensor, resumed[key][name]), f"{key}: {name}"
    for one, two in zip(
        whole["optimizer_states"][0]["state"].values(), resumed["optimizer_states"][0]["state"].values(), strict=True
    ):
        assert all(torch.equal(one[k], two[k]) for k in one)
    losses = [
        [(r["step"], r.get("train/loss")) for r in read_metrics(tmp_path / f / "metrics.jsonl")]
        for f in ("whole", "broken")
    ]
    assert losses[0] == losses[1]
    assert [step for step, loss in losses[0] if loss] == [1, 2, 3, 4, 5, 6]


# --- levers


@pytest.mark.data
def test_what_the_levers_became_is_written_beside_what_was_asked(
    tmp_path: Path, data_root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ("efficiency.precision=bf16", "efficiency.attention=sdpa", "efficiency.fused_optimizer=true")
    options += ("efficiency.ema={decay: 0.5}", "efficiency.liger=true", "efficiency.checkpointing=full")
    train("transliterate", tmp_path / "run", *TINY, *options, "trainer.max_steps=4")
    rows = {row["lever"]: row for row in json.loads((tmp_path / "run" / "levers.json").read_text())}
    seen = {name: row["engaged"] for name, row in rows.items() if "engaged" in row}
    assert seen == dict.fromkeys(("precision", "attention", "fused_optimizer", "ema", "checkpointing"), True)
    # the trap: T5's relative position bias needs a gradient, for which no fused kernel is built on a CPU
    assert rows["attention"]["observed"].endswith("the device allows no other")
    assert rows["fused_optimizer"]["observed"].startswith("2 of 2 parameter groups are fused, 2 calls")
    assert "does not act" not in capfd.readouterr().err
    train("transliterate", tmp_path / "off", *TINY, "trainer.max_steps=2")
    assert not any("observed" in row for row in json.loads((tmp_path / "off" / "levers.json").read_text()))


@pytest.mark.data
@pytest.mark.parametrize("fused", [True, False])
def test_the_fused_optimizer_is_looked_at_again_in_a_resumed_run(
    fused: bool, tmp_path: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = (*TINY, "efficiency.fused_optimizer=true")
    train("transliterate", tmp_path / "run", *options, "trainer.max_steps=2")
    if not fused:  # as PyTorch has it by itself: a checkpoint without the flag takes it away
        monkeypatch.setattr(torch.optim.AdamW, "register_load_state_dict_pre_hook", lambda *_: None)
        path = tmp_path / "run" / "checkpoints" / "last.ckpt"
        saved = torch.load(path, weights_only=True)
        for group in saved["optimizer_states"][0]["param_groups"]:
            group["fused"] = False
        torch.save(saved, path)
    train("transliterate", tmp_path / "run", *options, "trainer.max_steps=5", resume=True)
    rows = {row["lever"]: row for row in json.loads((tmp_path / "run" / "levers.json").read_text())}
    assert rows["fused_optimizer"]["engaged"] is fused
    count = 2 if fused else 0
    what = f"{count} of 2 parameter groups are fused, {count} calls of the fused kernel in a step"
    assert rows["fused_optimizer"]["observed"] == what


@pytest.mark.data
def test_strict_refuses_a_lever_that_turns_out_to_do_nothing(
    tmp_path: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    real = transliterate.TransliterateSystem.configure_optimizers

    def ignores(self: Any) -> Any:
        made = real(self)
        for group in made["optimizer"].param_groups:
            group["fused"] = False
        return made

    monkeypatch.setattr(transliterate.TransliterateSystem, "configure_optimizers", ignores)
    arguments = [
        "train",
        "transliterate",
        "--config",
        str(DEBUG / "transliterate.yaml"),
        "--run",
        str(tmp_path / "run"),
    ]
    options = [*TINY, "trainer.max_steps=9", "efficiency.fused_optimizer=true", "efficiency.strict=true"]
    monkeypatch.setattr("sys.argv", ["dubsar", *arguments, *options])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    message = "dubsar: efficiency.fused_optimizer: True does not act: 0 of 2 parameter groups are fused, 0 calls"
    assert message in capfd.readouterr().err


# --- gradient accumulation


@pytest.mark.data
def test_accumulation_equals_the_large_batch_when_token_counts_differ(tmp_path: Path, data_root: Path) -> None:
    config = debug_config("transliterate", *TINY, "trainer.accumulate=2", "trainer.clip_norm=0", "trainer.max_steps=1")
    levers = resolve_config(config)
    seed_everything(config.trainer)
    system, _ = transliterate.build(config, levers)
    rows = [[{"source": [262, 70, 1], "target": [262, 70, 1]}]]
    rows += [[{"source": [262, 70, 71, 263, 72, 1], "target": [262, 70, 263, 71, 72, 73, 74, 1]}]] * 3
    short, long = transliterate.collate(rows[:1]), transliterate.collate(rows[1:])
    start = {k: v.clone() for k, v in system.state_dict().items()}
    wanted = _gradients_of_one_step(system, [[transliterate.collate(rows)]], tmp_path / "a")
    system.load_state_dict(start)
    found = _gradients_of_one_step(system, [[short], [long]], tmp_path / "b")
    assert len(wanted) > 10
    assert all(torch.allclose(found[k], wanted[k], rtol=1e-4, atol=1e-6) for k in wanted)
    system.load_state_dict(start)
    found = _gradients_of_one_step(system, [[short, long]], tmp_path / "c")  # two rectangles of one batch
    assert all(torch.allclose(found[k], wanted[k], rtol=1e-4, atol=1e-6) for k in wanted)
    # negative control: the mean of means is something else
    means = []
    for part in (short, long):
        system.zero_grad()
        loss, ids = system.summed_loss(part)
        (loss / ids).backward()
        means.append({k: p.grad.clone() for k, p in system.named_parameters() if p.grad is not None})
    assert not all(torch.allclose((means[0][k] + means[1][k]) / 2, wanted[k], rtol=1e-2, atol=1e-6) for k in wanted)


def _gradients_of_one_step(system: Any, batches: list[Any], folder: Path) -> dict[str, torch.Tensor]:
    kept: dict[str, torch.Tensor] = {}

    def keep(optimizer: Any, *_: Any) -> None:
        kept.update({k: p.grad.clone() for k, p in system.named_parameters() if p.grad is not None})

    real = system.configure_optimizers

    def configure() -> Any:
        made = real()
        made["optimizer"].register_step_post_hook(keep)
        return made

    system.configure_optimizers = configure
    options = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    trainer = L.Trainer(
        default_root_dir=folder, accelerator="cpu", max_steps=1, accumulate_grad_batches=len(batches), **options
    )
    system.validation_step = None
    trainer.fit(system, DataLoader(batches, batch_size=None))  # type: ignore[arg-type]
    system.configure_optimizers = real
    return kept
