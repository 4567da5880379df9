"""Every benchmark from end to end, so small that it says nothing of speed; and what it leaves behind."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from dubsar.pipelines import cli_proof
from dubsar.pipelines.bench import run, step
from dubsar.pipelines.bench.classify import FAMILIES
from dubsar.pipelines.bench.measure import Arm, Comparison, Effort, Measured, compare, interleave, timings
from dubsar.pipelines.bench.optimizer import DEFAULT, FUSED, IMPLEMENTATIONS
from dubsar.pipelines.bench.result import BenchResult, Machine, seconds, write
from dubsar.pipelines.bench.run import BENCHES, bench
from dubsar.pipelines.bench.stage import PlainLoop, build_small, small_config
from dubsar.pipelines.bench.timm_step import TimmLoop
from dubsar.pipelines.parity.result import Ratio

TINY = Effort(rounds=6, tiny=True)


def toy(effort: Effort) -> list[Measured]:
    """Compare work with four times the work."""
    matrix = torch.eye(64)
    arms = [
        Arm("four", lambda _: [matrix @ matrix for _ in range(400)]),
        Arm("one", lambda _: [matrix @ matrix for _ in range(100)]),
    ]
    samples = interleave(arms, effort)
    comparisons = [compare(samples, "four", "one", bound=4.0, required=1.5), compare(samples, "one", "four")]
    return [Measured("toy", "product", timings(samples), comparisons, ("a note",))]


def test_a_bench_prints_and_writes_json_and_a_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(BENCHES, "toy", toy)
    result = bench("toy", tmp_path / "new" / "out", rounds=12)
    assert result.passed
    data = json.loads((tmp_path / "new" / "out" / "toy.json").read_text())
    assert data["schema_version"] == 1
    assert data["passed"] is True
    assert data["effort"]["rounds"] == 12
    assert {"commit", "hardware", "threads", "load", "versions"} == set(data["machine"])
    group = data["groups"][0]
    assert [t["arm"] for t in group["timings"]] == ["four", "one"]
    assert all(len(t["seconds"]) == 12 for t in group["timings"])
    faster, slower = group["comparisons"]
    assert faster["outcome"] == "met"
    assert faster["speed_up"]["low"] <= faster["speed_up"]["value"] <= faster["speed_up"]["high"]
    assert faster["speed_up"]["value"] * slower["speed_up"]["value"] == pytest.approx(1, rel=1e-6)
    with Image.open(tmp_path / "new" / "out" / "toy.png") as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 300
    printed = capsys.readouterr().out
    for word in ("toy", "four", "one", "95 % interval", "met", "a note", "load"):
        assert word in printed


def test_threads_are_set_while_measuring_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def threads(effort: Effort) -> list[Measured]:
        seen.append(torch.get_num_threads())
        return toy(effort)

    monkeypatch.setitem(BENCHES, "threads", threads)
    assert bench("threads", rounds=6, threads=2).machine.threads == 2
    assert (seen, torch.get_num_threads()) == ([2], 1)


@pytest.mark.parametrize(
    ("what", "options", "message"),
    [
        ("speed", {}, "bench is 'speed', expected one of packing, crops"),
        ("crops", {"rounds": 5}, "rounds is 5, expected at least 6"),
        ("crops", {"clock": "sun"}, "clock is 'sun', expected one of wall, cpu"),
        ("crops", {"clock": "cpu", "threads": 2}, "adds up the threads"),
        ("step", {"stages": ["read"]}, "stages: read, expected some of classify"),
    ],
)
def test_wrong_use_is_refused_before_anything_runs(what: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bench(what, **options)


def test_nothing_is_written_into_the_data(data_root: Path) -> None:
    with pytest.raises(ValueError, match="lies in the data folder"):
        bench("crops", data_root / "bench")


@pytest.mark.parametrize(("low", "passed"), [(3.5, True), (2.0, False)])
def test_a_result_passes_only_where_every_requirement_is_met(tmp_path: Path, low: float, passed: bool) -> None:
    met = Comparison("a", "b", Ratio(4, 3.2, 5), required=3)
    other = Comparison("a", "c", Ratio(4, low, 5), required=3)
    group = Measured("g", "step", timings({name: [1.0] * 6 for name in "abc"}), [met, other])
    result = BenchResult("made-up", TINY, [group], Machine.here())
    assert result.passed is passed
    write(result, tmp_path)
    assert json.loads((tmp_path / "made-up.json").read_text())["passed"] is passed


def test_times_are_written_with_their_unit() -> None:
    assert [seconds(v) for v in (2.5, 0.0432, 3.97e-6, 4e-8, 0)] == ["2.5 s", "43.2 ms", "3.97 µs", "40 ns", "0 ns"]


def test_the_command_offers_every_bench() -> None:
    assert [b.value for b in cli_proof.Bench] == list(BENCHES)


# --- the benchmarks


@pytest.mark.data
def test_crops() -> None:
    (group,) = BENCHES["crops"](TINY)
    assert [(c.baseline, c.arm, c.required) for c in group.comparisons] == [
        ("decode and cut", "cached", 100.0),
        ("decode and cut, augmented", "cached, augmented", None),
    ]


def test_read() -> None:
    detector, classifier = BENCHES["read"](TINY)
    assert (detector.unit, classifier.unit) == ("1 tiles", "4 crops")
    assert all(g.comparisons[0].required == 1.4 for g in (detector, classifier))


@pytest.mark.data
def test_packing() -> None:
    (group,) = BENCHES["packing"](TINY)
    packed, share, _, _, auto = group.comparisons
    assert packed.bound is not None
    assert (packed.baseline, packed.arm, packed.required) == ("off", "pack", None)
    assert (share.arm, share.bound, share.required) == ("pack, per computed id", 1.0, 0.9)
    assert (auto.arm, auto.required) == ("auto", pytest.approx(1 / 1.03))
    assert any(note.startswith(("auto is bucket", "auto is pack")) for note in group.notes)


@pytest.mark.data
def test_optimizer() -> None:
    (group,) = BENCHES["optimizer"](Effort(rounds=6, tiny=True, stages=("transliterate",)))
    assert group.comparisons[0].required == 3.0
    assert "so the whole step gains at most" in group.notes[0]


@pytest.mark.data
def test_the_arms_of_the_optimizer_bench_step_as_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.optim import adam

    called: list[str] = []
    for name in ("_fused_adam", "_single_tensor_adam", "_multi_tensor_adam"):
        monkeypatch.setattr(adam, name, lambda *_, name=name, **__: called.append(name))
    for flags in IMPLEMENTATIONS.values():
        optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2, 2))])
        optimizer.param_groups[0].update(flags)
        optimizer.param_groups[0]["params"][0].grad = torch.ones(2, 2)
        optimizer.step()
    assert dict(zip(IMPLEMENTATIONS, called, strict=True)) == {
        DEFAULT: "_single_tensor_adam",
        "foreach": "_multi_tensor_adam",
        FUSED: "_fused_adam",
    }


@pytest.mark.data
def test_step() -> None:
    (group,) = BENCHES["step"](Effort(rounds=6, tiny=True, stages=("transliterate",)))
    assert {t.arm: len(t.seconds) for t in group.timings} == {"Lightning": 6, "plain loop": 6}
    assert (group.comparisons[0].baseline, group.comparisons[0].arm) == ("plain loop", "Lightning")


@pytest.mark.data
@pytest.mark.parametrize("stage", ["classify", "transliterate"])
def test_the_plain_loop_does_what_lightning_does(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both loops of `dubsar bench step` start alike and see the same batch, so their weights must end alike."""
    kept: list[Any] = []
    loop, fit = step.PlainLoop, step.fit
    monkeypatch.setattr(step, "PlainLoop", lambda small: kept.append(loop(small)) or kept[0])

    def remembered(trainer: Any, system: Any, *rest: Any, **options: Any) -> None:
        kept.append(copy.deepcopy(system.network.state_dict()))
        fit(trainer, system, *rest, **options)
        kept.append(system.network.state_dict())

    monkeypatch.setattr(step, "fit", remembered)
    BENCHES["step"](Effort(rounds=6, tiny=True, stages=(stage,)))
    plain, before, after = kept
    moved = max((after[k] - before[k]).abs().max() for k in after if after[k].is_floating_point())
    apart = max((after[k] - v).abs().max() for k, v in plain.system.network.state_dict().items())
    assert moved > 1e-3
    assert apart == 0


@pytest.mark.data
@pytest.mark.slow
def test_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.nn.Module.compile  # traces, but leaves out the C++ compiler, which takes minutes
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module, **_: compiled(module, backend="aot_eager"))
    training, forward = run.BENCHES["compile"](Effort(rounds=6, tiny=True, stages=("transliterate",)))
    assert (training.unit, forward.unit) == ("step", "pass")
    assert "the first step took" in training.notes[0]
    assert int(forward.notes[1].split()[0]) > 0  # graphs


@pytest.mark.data
def test_compile_does_not_compare_eager_with_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.Module, "compile", lambda *_, **__: None)
    with pytest.raises(RuntimeError, match="nothing was compiled"):
        run.BENCHES["compile"](Effort(rounds=6, tiny=True, stages=("transliterate",)))


@pytest.mark.data
def test_a_copy_of_a_stage_has_its_own_weights_and_a_loop_trains_them() -> None:
    small = build_small(small_config("transliterate", TINY))
    other = small.copied()
    before = {k: v.clone() for k, v in small.system.state_dict().items()}
    PlainLoop(other).step(other.stream.batch(0))
    assert all(torch.equal(v, before[k]) for k, v in small.system.state_dict().items())
    assert not all(torch.equal(v, before[k]) for k, v in other.system.state_dict().items())


@pytest.mark.data
def test_classify() -> None:
    step_, backbone, cache = BENCHES["classify"](TINY)
    (overhead,) = step_.comparisons
    assert (overhead.baseline, overhead.arm, overhead.required) == ("timm script", "Lightning", pytest.approx(1 / 1.03))
    assert [(c.baseline, c.arm) for c in backbone.comparisons] == [
        ("train fp32", "train bf16"),
        ("read fp32", "read bf16"),
    ]
    assert "making batches and steps by turns" in backbone.notes[1]
    assert cache.comparisons[0].speed_up.low > 0
    assert all(note.startswith("crops a second: ") for note in (backbone.notes[0], cache.notes[0]))


@pytest.mark.data
def test_the_timm_script_takes_the_same_step() -> None:
    """It starts from the same random weights and sees the same batch; only the kind of mixup would differ."""
    alike = (
        "optim.warmup_steps=0",
        "model.mixup=0",
        "model.drop_rate=0",
        "model.normalise=fixed",
        "trainer.max_steps=9",
    )
    small = build_small(small_config("classify", TINY, *alike, "efficiency.ema={decay: 0.5}"))
    plain, script = PlainLoop(small), TimmLoop(small.config, len(small.stream.classes))
    before = copy.deepcopy(script.net.state_dict())
    batch = small.stream.batch(0)
    plain.step(batch)
    script.step(batch)
    after, ours = script.net.state_dict(), small.system.network.net.state_dict()
    assert max((after[k] - before[k]).abs().max() for k in after if after[k].is_floating_point()) > 1e-4
    for name, value in after.items():
        torch.testing.assert_close(value, ours[name])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_timed_at_its_full_side_from_random_weights(family: str) -> None:
    config = small_config("classify", Effort(), family=family)
    assert (config.data.first_px, config.model.weights, config.stage) == (0, "", "classify")
