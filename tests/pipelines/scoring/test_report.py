"""The page of a classifier, from a network that has learnt nothing, on a few crops of dev."""

import io
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from dubsar.configs.base import load
from dubsar.configs.schema import ClassifyConfig, ClassifyData
from dubsar.datasets.crops import relit
from dubsar.datasets.formats.tablet_signs import Photograph
from dubsar.datasets.inventory import SignClass, read_inventory
from dubsar.datasets.synthetic.glyphs import NOTO, FontError, find_font
from dubsar.models.checkpoint import save_model
from dubsar.pipelines import ship
from dubsar.pipelines.calibration import reliability
from dubsar.pipelines.evaluation import evaluate_stage
from dubsar.pipelines.networks import build_classifier
from dubsar.pipelines.scoring import evaluate
from dubsar.pipelines.scoring.evaluate import examine_signs
from dubsar.pipelines.scoring.looks import Looks
from dubsar.pipelines.scoring.pictures import draw_confusions, draw_frequencies, draw_reliability
from dubsar.pipelines.scoring.report import CREDIT, first_crops
from dubsar.pipelines.scoring.scores import answers
from dubsar.pipelines.signs import FONT, sign_font
from dubsar.pipelines.stages.classify import read_crops

DEBUG = Path(__file__).resolve().parents[3] / "configs" / "debug" / "classify.yaml"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory, data_root: Path) -> Path:
    config, inventory = load(DEBUG, ClassifyConfig), read_inventory(data_root)
    card = {
        "stage": "classify",
        "config": config.model_dump(mode="json"),
        "inventory": inventory.to_list(),
        "inventory_hash": inventory.hash,
        "temperature": 0.7,
    }
    path = tmp_path_factory.mktemp("run") / "classify"
    save_model(path, build_classifier(config, len(inventory)).state_dict(), card)
    return path


@pytest.mark.data
def test_a_page_with_pictures_credit_and_the_printed_scores(
    tmp_path: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, folder = tmp_path / "scores.json", tmp_path / "report"
    scores = evaluate_stage("classify", weights, "dev", limit=6, out=out, report=folder, relight=1)
    names = {"confused.png", "confusion.png", "frequency.png", "reliability.png", "report.html", "scores.json"}
    assert {p.name for p in folder.iterdir()} == names
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert CREDIT in page
    assert re.findall(r'(?:src|href)="(?!data:)', page) == []
    assert "<script" not in page
    printed = capsys.readouterr().out
    for name, row in scores.items():
        assert name in printed
        assert f"<td>{name}</td><td>{next(iter(row.values())):.2f}</td>" in page
    written = json.loads((folder / "scores.json").read_text())
    assert written["scores"] == json.loads(out.read_text())["scores"] == json.loads(json.dumps(scores))
    assert written["temperature"] == 0.7
    assert sum(row["crops"] for row in written["confused"]) <= 6
    assert "three margins, relit 1 times" in scores
    assert "unknown: clay without a sign" in scores


@pytest.mark.data
def test_photographs_decoded_once_give_the_same_crops(weights: Path, data_root: Path) -> None:
    seen = examine_signs(weights, "dev", 40)
    crops = read_crops(data_root, "dev", seen.size, seen.inventory, 40)
    assert np.array_equal(seen.looks.pixels_NSS3, crops.pixels_NSS3)
    assert np.array_equal(seen.looks.classes_N, crops.classes_N)
    assert np.array_equal(seen.looks.tablets_N, crops.tablets_N)
    assert (len(seen.looks.views), seen.looks.clay, seen.looks.relit) == (3, (), ())
    photographs = seen.looks.photographs[:1]
    wanted = int(crops.classes_N[0])
    found = first_crops(photographs, {wanted, 10**6}, seen.inventory, seen.size)
    assert list(found) == [wanted]
    assert np.array_equal(found[wanted], crops.pixels_NSS3[0])


def test_the_temperature_is_fitted_to_the_mean_over_margins(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(5, size=400)
    sure = 3 * np.eye(5)[truth]
    views = tuple(torch.from_numpy(sure + rng.normal(0, 2, (400, 5))).float() for _ in range(3))
    none = np.zeros((0, 8, 8, 3), np.uint8)
    photograph = Photograph("f", Path("f"), "t", "", 1, 1, "dev", "ebl", ())
    looks = Looks((), (photograph,) * 400, truth, views, (), (), none)
    monkeypatch.setattr(evaluate, "examine_signs", lambda *_: SimpleNamespace(looks=looks))

    def loss(temperature: float) -> float:
        of_truth = answers(looks, temperature).probabilities_NC[np.arange(400), truth]
        return float(-np.log(of_truth).mean())

    fitted = ship.fit_temperature(Path("run"))
    assert loss(fitted) < min(loss(fitted * 1.06), loss(fitted / 1.06))
    alone = torch.nn.functional.cross_entropy
    one = min(np.geomspace(0.2, 3, 60), key=lambda t: float(alone(views[0] / t, torch.from_numpy(truth))))
    assert fitted < 0.9 * one  # a single view has to be less sure than the mean of three


@pytest.mark.data
def test_what_only_classify_has_is_refused_elsewhere(tmp_path: Path, data_root: Path) -> None:
    with pytest.raises(ValueError, match="--report: only `evaluate classify` has it, not detect; leave it out"):
        evaluate_stage("detect", None, "dev", report=tmp_path)
    with pytest.raises(ValueError, match="--relight: only `evaluate classify` has it"):
        evaluate_stage("pretrain", None, "dev", relight=2)
    with pytest.raises(ValueError, match="--report"):
        evaluate_stage("classify", None, "dev", report=data_root / "report")


def test_signs_are_drawn_with_and_without_a_font() -> None:
    signs = [SignClass("𒀀", "A"), SignClass("𒆪", "")]
    plain = draw_confusions(signs, np.array([[0.5, 0.5, 0.0], [0.0, 0.2, 0.8]]), None)
    assert np.asarray(Image.open(io.BytesIO(plain)).convert("L")).std() > 5
    assert draw_confusions(signs, np.array([[0.5, 0.5, 0.0], [0.0, 0.2, 0.8]]), None) == plain
    bins = reliability(np.array([0.2, 0.9]), np.array([True, False]))
    one, two = (Image.open(io.BytesIO(draw_reliability(d))) for d in ({"a": bins}, {"a": bins, "b": bins}))
    assert two.width == 2 * one.width
    assert draw_frequencies([("0 training crops", {"top1": 0.0, "top5": 10.0, "crops": 3.0})])[:4] == b"\x89PNG"


def test_relit_crops_keep_black_white_and_order_and_differ_among_each_other() -> None:
    ramp = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1).repeat(3, axis=3)
    assert relit(ramp, 0) is ramp
    found = [relit(ramp, n) for n in range(1, 5)]
    assert [int(f.mean() < ramp.mean()) for f in found] == [1, 0, 1, 0]  # darker and lighter in turn
    for f in found:
        assert f.dtype == np.uint8
        assert (np.diff(f[..., 0].ravel().astype(int)) >= 0).all()
    assert len({f.tobytes() for f in found}) == 4


@pytest.mark.data
def test_signs_are_drawn_as_the_data_set_shows_them_as_far_as_it_is_known(
    data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUBSAR_DATA", str(data_root))
    try:
        own = find_font(NOTO)
    except FontError as error:
        pytest.skip(str(error))
    drawn = {
        "photographs": sign_font(ClassifyData()),
        "others": sign_font(ClassifyData(source="folders", root="x")),
        "own": sign_font(ClassifyData(source="folders", root="x", font=str(own))),
    }
    names = {k: font.name for k, font in drawn.items() if font}
    assert names["photographs"] == FONT
    assert FONT not in {names["others"], names["own"]}
    assert sign_font(ClassifyData(source="folders", root="x", font="no-such.ttf")) is None
