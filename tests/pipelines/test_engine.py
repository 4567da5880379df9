"""The engine: the device that was asked for computes, and bfloat16 names the same signs."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import dubsar.datasets
from dubsar.configs.base import load
from dubsar.configs.schema import ReadConfig, shipped_config
from dubsar.datasets.crops import relit
from dubsar.datasets.images import load_image
from dubsar.pipelines import evaluation
from dubsar.pipelines.cli import main
from dubsar.pipelines.networks import find_device
from dubsar.pipelines.reading.engine import Engine, classify_crops
from dubsar.pipelines.training import hardware

SAMPLE = Path(next(iter(dubsar.datasets.__path__))) / "sample" / "tablet.jpg"


def engine(*overrides: str) -> Engine:
    return Engine.load(load(shipped_config("read"), ReadConfig, overrides))


def test_auto_is_the_gpu_where_there_is_one() -> None:
    assert find_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert find_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "", "cuda:x", "mps", "cpu:0"])
def test_an_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"device is '{name}', expected auto, cpu, cuda or cuda:N"):
        find_device(name)


def test_a_gpu_that_is_not_there_is_refused_by_all_that_take_one() -> None:
    absent = f"cuda:{torch.cuda.device_count()}"
    message = f"device is '{absent}', but PyTorch finds {torch.cuda.device_count()} CUDA devices here; give cpu or auto"
    with pytest.raises(ValueError, match=message):
        find_device(absent)
    with pytest.raises(ValueError, match=message):
        engine(f"device={absent}")
    with pytest.raises(ValueError, match=message):
        evaluation.evaluate_stage("classify", None, "dev", device=absent)


@pytest.mark.parametrize(
    "command", [["read", str(SAMPLE), "-o", "out"], ["evaluate", "classify"], ["evaluate", "read"]]
)
def test_the_command_line_refuses_it_with_one_line(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["dubsar", *command, "--device", "cuda:99"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert capfd.readouterr().err.startswith("dubsar: device is 'cuda:99', but PyTorch finds ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_gpu_is_refused() -> None:
    with pytest.raises(ValueError, match="device is 'cuda', but PyTorch finds 0 CUDA devices here"):
        find_device("cuda")


def test_hardware_is_that_of_the_device() -> None:
    assert hardware(torch.device("cpu")).endswith("CPU cores")  # even where there is a GPU


@pytest.mark.gpu
def test_a_gpu_finds_and_names_what_the_cpu_does() -> None:
    rgb = load_image(SAMPLE).rgb_HW3
    cpu, gpu = engine("device=cpu"), engine("device=cuda")
    for network in (gpu.detector, gpu.classifier, gpu.byt5):
        assert {p.device.type for p in network.parameters()} == {"cuda"}
    boxes = cpu.find(rgb).above(0.3).boxes_N4
    assert len(gpu.find(rgb).above(0.3).boxes_N4) == pytest.approx(len(boxes), rel=0.03)
    assert (gpu.classify(rgb, boxes, 1)[1] == cpu.classify(rgb, boxes, 1)[1]).mean() >= 0.98
    line = [(["𒀀", "𒈾"], "akk")]
    assert gpu.transliterate(line, 1)[0][0] == cpu.transliterate(line, 1)[0][0]
    assert torch.cuda.get_device_name(0) in hardware(gpu.device)


@pytest.mark.slow
def test_bf16_finds_and_names_the_same_signs() -> None:
    rgb = load_image(SAMPLE).rgb_HW3
    full, half = engine("device=cpu"), engine("device=cpu", "precision=bf16")
    boxes = full.find(rgb).above(0.3).boxes_N4
    assert len(boxes) > 100
    assert len(half.find(rgb).above(0.3).boxes_N4) == pytest.approx(len(boxes), rel=0.03)
    (p, classes), (p_half, classes_half) = (e.classify(rgb, boxes, 1) for e in (full, half))
    assert (classes == classes_half).mean() >= 0.98
    assert not np.array_equal(p, p_half)  # bfloat16 has acted
    assert np.abs(p - p_half).max() < 0.02


def test_signs_are_named_under_other_exposures_as_well() -> None:
    noise = np.random.default_rng(0).integers(60, 200, (10, 10, 3), dtype=np.uint8)
    crop = np.asarray(Image.fromarray(noise).resize((80, 80), Image.Resampling.BILINEAR))
    box = np.array([[10.0, 10, 70, 70]])
    # exposure changes pixel by pixel, so that it may as well come before the crop is cut, but for rounding
    asked = [("relight=0", crop), ("relight=0", relit(crop, 1)), ("relight=1", crop)]
    found = [engine("device=cpu", setting).classify(pixels, box, 335) for setting, pixels in asked]
    by_class = [p[0][np.argsort(c[0])] for p, c in found]
    assert np.abs(by_class[0] - by_class[1]).max() > 0.01
    assert np.allclose(by_class[2], (by_class[0] + by_class[1]) / 2, atol=0.003)


def test_logits_and_text_are_float32_under_bf16() -> None:
    half = engine("device=cpu", "precision=bf16")
    crops = np.random.default_rng(0).integers(0, 255, (3, half.crops.crop_px, half.crops.crop_px, 3), dtype=np.uint8)
    logits = classify_crops(half.classifier, crops, precision="bf16")
    assert logits.dtype == torch.float32
    assert not torch.equal(logits, logits.bfloat16().float())  # the head was not rounded either
    lines = [(["𒀀", "𒈾", "𒈗"], "akk")]
    assert half.transliterate(lines, 1) == engine("device=cpu").transliterate(lines, 1)
