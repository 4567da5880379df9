"""The detector handed over to Ultralytics by the command line: it loads there, finds signs, and replaces no file."""

import json
from pathlib import Path

import pytest
import torch

import dubsar.datasets
from dubsar.models.checkpoint import save_model, shipped
from dubsar.pipelines import cli
from dubsar.pipelines.networks import load_detector

PHOTO = Path(next(iter(dubsar.datasets.__path__))) / "sample" / "tablet.jpg"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the command; returns its exit status."""
    monkeypatch.setattr("sys.argv", ["dubsar", "export", "detect", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


@pytest.mark.slow
def test_the_shipped_detector_finds_the_signs_of_the_sample_in_ultralytics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from ultralytics import YOLO

    path = tmp_path / "new" / "detector.pt"
    assert run(monkeypatch, "-o", str(path)) == 0
    said = capfd.readouterr().out
    for text in (str(path), "a pickle", "dubsar itself never loads one", "max_det", "CC BY-NC-SA"):
        assert text in said
    truth = json.loads((PHOTO.parent / "tablet.json").read_text(encoding="utf-8"))
    signs = [s for f in truth["faces"] for line in f["lines"] for s in line["signs"] if s["box"]]
    result = YOLO(str(path)).predict(str(PHOTO), imgsz=1280, max_det=2000, verbose=False, save=False)[0]
    assert result.names[0] == "sign" or len(result.names) == len(load_detector(shipped("detect"))[2].card["inventory"])
    centres = (result.boxes.xyxy[:, None, :2] + result.boxes.xyxy[:, None, 2:]) / 2
    true = torch.tensor([s["box"] for s in signs])
    hit = ((centres > true[:, :2]) & (centres < true[:, 2:])).all(-1).any(0)
    assert float(hit.float().mean()) > 0.5
    assert result.boxes.conf.max() > 0.25


def test_a_detector_that_names_signs_keeps_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ultralytics import YOLO

    from dubsar.configs.base import load
    from dubsar.configs.schema import DetectConfig, shipped_config
    from dubsar.datasets.inventory import Inventory, SignClass
    from dubsar.models.detector import Detector

    inventory = Inventory((SignClass("𒀀", "A", "839"), SignClass("𒈾", "NA", "110"), SignClass("𒌋", "")))
    config = load(shipped_config("detect"), DetectConfig, ("model.classes=inventory",))
    card = {"config": config.model_dump(mode="json"), "inventory": inventory.to_list(), "licence": "none"}
    network = Detector(config.model.scale, 3)
    save_model(
        tmp_path / "run" / "detect", network.state_dict(), {"stage": "detect", "inventory_hash": inventory.hash, **card}
    )
    assert run(monkeypatch, "-o", str(tmp_path / "out.pt"), "--weights", str(tmp_path / "run")) == 0
    assert YOLO(str(tmp_path / "out.pt")).names == {0: "A", 1: "NA", 2: "𒌋"}


def test_a_file_that_is_there_is_replaced_only_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "detector.pt"
    path.write_bytes(b"precious")
    assert run(monkeypatch, "-o", str(path)) == 2
    assert f"{path}: is there already; --overwrite replaces it" in capfd.readouterr().err
    assert path.read_bytes() == b"precious"
    assert run(monkeypatch, "-o", str(path), "--overwrite") == 0
    assert path.stat().st_size > 1e6
    assert [p.name for p in tmp_path.iterdir()] == ["detector.pt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "detector.onnx"), "detector.onnx: the name ends in '.onnx', but Ultralytics loads .pt only"),
        (("-o", "."), ".: the name ends in '', but Ultralytics loads .pt only"),
        (("-o", "folder.pt"), "folder.pt: a folder; name a file"),
        (("-o", "a.pt", "--weights", "none"), "none.safetensors: no such weights"),
        (("-o", "a.pt", "--weights", str(shipped("classify"))), "weights of stage 'classify', expected 'detect'"),
    ],
)
def test_wrong_use_exits_2_and_writes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.pt").mkdir()
    assert run(monkeypatch, *arguments) == 2
    out, err = capfd.readouterr()
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in out + err
    assert [p.name for p in tmp_path.iterdir()] == ["folder.pt"]
