"""`dubsar features` and `dubsar similar`, by the weights that ship, on a rendered tablet; and what they refuse."""

import pickle
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner

import dubsar.datasets
from dubsar.configs.schema import PretrainConfig
from dubsar.datasets.boxes import iou_matrix
from dubsar.datasets.crops import CropSize, cut_crops
from dubsar.datasets.images import load_image
from dubsar.models.checkpoint import save_model
from dubsar.pipelines import cli
from dubsar.pipelines.cli_features import features, similar
from dubsar.pipelines.embeddings import FeatureTable, load_embedder, load_table, save_table
from dubsar.pipelines.look_alikes import Query, parse_query
from dubsar.pipelines.networks import build_encoder

SAMPLE = Path(next(iter(dubsar.datasets.__path__))) / "sample" / "tablet.jpg"
ODD = "turned\x1b[31m [red]#1,2.png"  # a file name may be anything
APP = typer.Typer()
APP.command()(features)
APP.command()(similar)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(cli, "app", APP)
    monkeypatch.setattr(sys, "argv", ["dubsar", *map(str, arguments)])
    try:
        cli.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder of one strip of a tablet, twice: upright, and stored on its side with a note how to turn it."""
    folder = tmp_path_factory.mktemp("photographs")
    strip = Image.open(SAMPLE).crop((100, 200, 900, 380))
    strip.save(folder / "strip.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    (folder / "inner").mkdir()
    strip.rotate(90, expand=True).save(folder / "inner" / ODD, exif=exif)
    (folder / "bad.jpg").write_bytes(SAMPLE.read_bytes()[:5000])
    out = tmp_path_factory.mktemp("out") / "signs.npz"
    result = CliRunner().invoke(APP, ["features", str(folder), "-o", str(out), "--device", "cpu"])
    assert result.exit_code == 1, result.output
    assert "bad.jpg" in result.output
    assert "1 of 3 were not used" in result.output
    assert re.search(r"\d+ signs of 2 photographs, 384 features each, written to ", result.output.replace("\n", ""))
    return folder, out


def of_strip(table: FeatureTable) -> np.ndarray:
    return np.flatnonzero(table.files_N == "strip.png")


def query_of(folder: Path, table: FeatureTable, row: int) -> str:
    return f"{folder / str(table.files_N[row])}#{','.join(f'{v:.2f}' for v in table.boxes_N4[row])}"


def test_features_are_plain_arrays_in_the_files_own_pixels(described: tuple[Path, Path]) -> None:
    folder, out = described
    with np.load(out, allow_pickle=False) as file:
        assert {name: file[name].dtype.kind for name in ("features", "boxes", "files", "glyphs", "names")} == {
            **{"features": "f", "boxes": "f"},
            **{"files": "U", "glyphs": "U", "names": "U"},
        }
        assert file["features"].dtype == np.float32
    table = load_table(out)
    upright, turned = of_strip(table), np.flatnonzero(table.files_N == f"inner/{ODD}")
    assert len(upright) == len(turned) > 10
    assert len(upright) + len(turned) == len(table)
    # the same pixels on the screen, so the same signs, at the places where each file stores them
    np.testing.assert_allclose(table.features_ND[turned], table.features_ND[upright], rtol=1e-4, atol=1e-4)
    image = load_image(folder / "inner" / ODD)
    assert image.orientation == 6
    np.testing.assert_allclose(image.from_file_pixels(table.boxes_N4[turned]), table.boxes_N4[upright])
    assert (table.boxes_N4[upright, 2] <= 800).all()
    assert (table.names_N != "").all()
    assert ((table.probabilities_N > 0) & (table.probabilities_N <= 1)).all()
    assert len(np.unique(table.names_N)) > 3


def test_a_sign_is_most_like_itself_on_the_other_photograph(
    described: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, out = described
    table = load_table(out)
    upright, turned = of_strip(table), np.flatnonzero(table.files_N == f"inner/{ODD}")
    picture = tmp_path / "similar.png"
    for place in (0, len(upright) // 2):
        crop = query_of(folder, table, upright[place])
        assert run(monkeypatch, "similar", crop, "--among", out, "-k", 5, "-o", picture) == 0
        stdout, _ = capfd.readouterr()
        rows = [line for line in stdout.splitlines() if re.search(r"│ +[1-5] ", line)]
        box = ",".join(f"{v:.0f}" for v in table.boxes_N4[turned[place]])
        assert len(rows) == 5
        assert "inner/turned�[31m [red]#1,2.png" in rows[0]  # neither colour nor markup
        assert box in rows[0]
        assert "1.000" in rows[0]
        own = ",".join(f"{v:.0f}" for v in table.boxes_N4[upright[place]])
        assert not any("strip.png" in r and own in r for r in rows)  # nothing is its own look-alike
        cosines = [float(re.search(r"│ *(-?[01]\.\d{3}) *│", r)[1]) for r in rows]  # type: ignore[index]
        assert cosines == sorted(cosines, reverse=True)
        assert "\x1b" not in stdout
        with Image.open(picture) as shown:
            assert (shown.format, shown.mode) == ("PNG", "RGB")
            assert shown.width > 900


def test_a_cut_out_sign_finds_where_it_was_cut(
    described: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, out = described
    table = load_table(out)
    rows, first = of_strip(table), 0
    for row in rows[:8]:
        x0, y0, x1, y1 = table.boxes_N4[row]
        w, h = 0.1 * (x1 - x0), 0.1 * (y1 - y0)
        box = (int(x0 - w), int(y0 - h), int(x1 + w), int(y1 + h))
        Image.open(folder / "strip.png").crop(box).save(tmp_path / "sign.png")
        command = ["similar", tmp_path / "sign.png", "--among", out, "-k", 2, "-o", tmp_path / "s.jpg"]
        assert run(monkeypatch, *command) == 0
        first += ",".join(f"{v:.0f}" for v in table.boxes_N4[row]) in capfd.readouterr().out
    assert first >= 7
    with Image.open(tmp_path / "s.jpg") as shown:
        assert shown.format == "JPEG"


def test_more_look_alikes_than_signs_gives_all(
    described: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, out = described
    table = load_table(out)
    crop = query_of(folder, table, of_strip(table)[0])
    assert run(monkeypatch, "similar", crop, "--among", out, "-k", 1000, "-o", tmp_path / "s.png") == 0
    listed = len(re.findall(r"^│ +\d+ ", capfd.readouterr().out, re.MULTILINE))
    own = iou_matrix(table.boxes_N4[of_strip(table)], table.boxes_N4[of_strip(table)[:1]])[:, 0] > 0.5
    assert listed == len(table) - own.sum()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#900,0,1000,50", "reaches beyond the picture of 800 x 180 px"),
        ("#-1,0,10,50", "the box -1,0,10,50 reaches beyond"),
        ("#50,10,20,30", "the corners are not in order; expected x0 < x1 and y0 < y1"),
        ("#20,30,50,30", "the corners are not in order"),
        ("#1,2,3", "no box behind the #; expected photo.jpg#x0,y0,x1,y1 in px"),
        ("#nan,0,10,10", "no box behind the #"),
        ("#0,0,1e400,10", "no box behind the #"),
        ("#", "no box behind the #"),
        (".gone#0,0,10,10", "strip.png.gone"),
        (".gone", "strip.png.gone"),
    ],
)
def test_a_query_that_is_none_exits_2(
    described: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    text: str, message: str,
) -> None:  # fmt: skip
    folder, out = described
    crop = f"{folder / 'strip.png'}{text}"
    assert run(monkeypatch, "similar", crop, "--among", out, "-o", tmp_path / "s.png") == 2
    _refused(capfd, message)
    assert list(tmp_path.iterdir()) == []


def _refused(capfd: pytest.CaptureFixture[str], message: str) -> None:
    stdout, stderr = capfd.readouterr()
    assert message in stderr
    assert stderr.startswith("dubsar: ")
    assert len(stderr.strip().splitlines()) == 1
    assert stdout == ""


def test_a_query_is_a_file_or_a_box(described: tuple[Path, Path]) -> None:
    folder, _ = described
    odd = folder / "inner" / ODD
    assert parse_query(str(odd)) == Query(odd, None)
    assert parse_query(f"{odd}#1,2.5, 3 ,4") == Query(odd, (1, 2.5, 3, 4))
    assert parse_query("sign.png") == Query(Path("sign.png"), None)


def test_similar_refuses_what_it_cannot_use(
    described: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, out = described
    table, strip = load_table(out), folder / "strip.png"
    changed = {
        "other.npz": replace(table, sha256="0" * 64),
        "moved.npz": replace(table, folder=str(tmp_path / "nowhere")),
        "rows.npz": replace(table, rows="photographs"),
    }
    for name, other in changed.items():
        save_table(other, tmp_path / name)
    before = strip.read_bytes()
    for among, picture, message in [
        (tmp_path / "none.npz", tmp_path / "s.png", "none.npz: no such file of features; write it again by"),
        (tmp_path / "other.npz", tmp_path / "s.png", "made with weights of SHA-256 0000000000000000…, these have "),
        (tmp_path / "moved.npz", tmp_path / "s.png", "the folder of photographs is not there; say where with --photo"),
        (tmp_path / "rows.npz", tmp_path / "s.png", "holds features of photographs, not of signs"),
        (out, tmp_path / "s.gif", "cannot write a picture of type '.gif'; expected .png, .jpg or .jpeg"),
        (out, tmp_path / "no" / "s.png", "in a folder that is not there"),
        (out, strip, "is one of the photographs, which are never written to"),
    ]:
        assert run(monkeypatch, "similar", strip, "--among", among, "-o", picture) == 2
        _refused(capfd, message)
    assert strip.read_bytes() == before
    assert {p.name for p in tmp_path.iterdir()} == set(changed)
    command = ["similar", strip, "--among", tmp_path / "moved.npz", "--photographs", folder, "-o", tmp_path / "s.png"]
    assert run(monkeypatch, *command) == 0


def test_a_photograph_that_is_gone_is_listed_and_the_rest_is_shown(
    described: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, out = described
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(folder / "strip.png", copy)
    crop = query_of(copy, load_table(out), of_strip(load_table(out))[0])
    command = ["similar", crop, "--among", out, "--photographs", copy, "-k", 8, "-o", tmp_path / "s.png"]
    assert run(monkeypatch, *command) == 1
    stdout, stderr = capfd.readouterr()
    assert len(re.findall(r"^│ +\d+ ", stdout, re.MULTILINE)) == 8
    assert "1 of 2 could not be shown" in stderr
    assert (tmp_path / "s.png").is_file()


class Payload:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("ran"),)  # type: ignore[return-value]


def test_a_file_that_holds_no_features_is_refused_and_runs_nothing(
    described: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good = described[1].read_bytes()
    arrays = dict(np.load(described[1]))
    path = tmp_path / "x.npz"
    faults: list[tuple[dict[str, object] | bytes, str]] = [
        (b"", "not a file of features, or a damaged one"),
        (b"PK\x03\x04 nothing", "damaged"),
        (pickle.dumps(Payload()), "damaged"),
        (good[:-300], "damaged"),
        (good[: len(good) // 2] + b"\0" * 400 + good[len(good) // 2 + 400 :], "damaged"),
        ({"features": arrays["features"]}, "damaged"),
        ({**arrays, "files": np.array([Payload()] * len(arrays["files"]), dtype=object)}, "damaged"),
        ({**arrays, "format": np.array("other")}, "format is 'other', expected 'dubsar-features-1'"),
        ({**arrays, "folder": np.arange(3)}, r"folder is int64 \(3,\), expected one text"),
        ({**arrays, "features": arrays["features"][0]}, "features have shape"),
        ({**arrays, "boxes": arrays["boxes"][1:]}, "boxes are float64 .*like the features"),
        ({**arrays, "features": arrays["features"] * np.nan}, "features are not all finite"),
        ({**arrays, "files": np.full(len(arrays["files"]), "../../x.png")}, "lies outside the folder of photographs"),
        ({**arrays, "files": np.full(len(arrays["files"]), "/etc/x.png")}, "lies outside the folder of photographs"),
    ]
    for content, message in faults:
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            np.savez(path, **content)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=message):
            load_table(path)
    with path.open("wb") as file:
        np.save(file, arrays["features"])  # an array alone
    with pytest.raises(ValueError, match="damaged"):
        load_table(path)
    assert not (tmp_path / "ran").exists()


def test_features_refuses_before_it_begins(
    described: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, out = described
    data, empty = tmp_path / "data", tmp_path / "empty"
    data.mkdir()
    empty.mkdir()
    monkeypatch.setenv("DUBSAR_DATA", str(data))
    before = out.read_bytes()
    for source, target, message in [
        (tmp_path / "none", "x.npz", "none: no such folder"),
        (SAMPLE, "x.npz", "tablet.jpg: not a folder; give the folder of photographs"),
        (empty, "x.npz", "empty: no pictures in this folder"),
        (folder, "x.csv", "features are written as .npz, not as '.csv'"),
        (folder, "data/x.npz", "lies in the data folder"),
        (folder, out, "signs.npz: already exists; name another file with -o, or replace it with --overwrite"),
    ]:
        assert run(monkeypatch, "features", source, "-o", tmp_path / target) == 2
        _refused(capfd, message)
    for option, message in [
        (["--weights", tmp_path / "none"], "none.safetensors: no such weights"),
        (["--weights", tmp_path / "evil.pt"], "weights are read from .safetensors only"),
        (["--device", "cuda:99"], "device is 'cuda:99'"),
        (["topk=3"], "unknown key 'topk'"),
    ]:
        assert run(monkeypatch, "features", folder, "-o", tmp_path / "x.npz", *option) == 2
        _refused(capfd, message)
    assert out.read_bytes() == before
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["data", "empty"]


def test_a_folder_of_bad_photographs_exits_3_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_bytes(b"")
    Image.new("RGB", (2000, 2000)).save(tmp_path / "in" / "large.png")
    command = ["features", tmp_path / "in", "-o", tmp_path / "x.npz", "--max-megapixels", "1"]
    assert run(monkeypatch, *command) == 3
    error = " ".join(capfd.readouterr().err.split())
    assert "2 of 2 were not used" in error
    assert "--max-megapixels" in error
    assert not (tmp_path / "x.npz").exists()


def test_photographs_without_signs_give_a_valid_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    Image.new("RGB", (300, 200), "grey").save(tmp_path / "in" / "plain.png")
    for of in ("signs", "photographs"):
        command = ["features", tmp_path / "in", "-o", tmp_path / "x.npz", "--of", of, "--overwrite"]
        assert run(monkeypatch, *command) == 0
        assert "no sign was found on these photographs" in capfd.readouterr().out
        table = load_table(tmp_path / "x.npz")
        assert (table.features_ND.shape, table.boxes_N4.shape, table.rows) == ((0, 384), (0, 4), of)
    save_table(replace(table, rows="signs"), tmp_path / "x.npz")
    assert run(monkeypatch, "similar", SAMPLE, "--among", tmp_path / "x.npz", "-o", tmp_path / "s.png") == 2
    _refused(capfd, "holds no signs; write those of signs with")


def test_a_photograph_is_the_mean_of_its_signs(
    described: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    shutil.copy(described[0] / "inner" / ODD, tmp_path / "in")
    assert run(monkeypatch, "features", tmp_path / "in", "-o", tmp_path / "x.npz", "--of", "photographs") == 0
    table, signs = load_table(tmp_path / "x.npz"), load_table(described[1])
    rows = signs.features_ND[of_strip(signs)]
    wanted = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).mean(0)
    np.testing.assert_allclose(table.features_ND, wanted[None], rtol=1e-3, atol=1e-4)
    assert table.boxes_N4.tolist() == [[0, 0, 180, 800]]  # of the file's own pixels
    assert table.files_N.tolist() == [ODD]


def test_a_pretrained_backbone_gives_features(
    described: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    config = PretrainConfig.model_validate(
        {
            "data": {"crop_px": 32, "context": 0.1},
            "model": {
                "backbone": "vit_small_patch16_dinov3",
                "backbone_args": {"depth": 2, "embed_dim": 24, "num_heads": 3},
            },
            "optim": {"lr": 1e-3},
            "trainer": {"max_steps": 1},
        },
        strict=False,
    )
    torch.manual_seed(0)
    encoder = build_encoder(config).eval()
    card = {"stage": "pretrain", "config": config.model_dump(mode="json")}
    save_model(tmp_path / "run" / "pretrain", encoder.backbone_state(), card)
    (tmp_path / "in").mkdir()
    shutil.copy(described[0] / "strip.png", tmp_path / "in")
    out = tmp_path / "x.npz"
    command = ["features", tmp_path / "in", "-o", out, "--weights", tmp_path / "run", "detect_threshold=0.6"]
    assert run(monkeypatch, *command) == 0
    assert ", 24 features each" in capfd.readouterr().out
    for path in ("run/pretrain.safetensors", "run/pretrain"):
        assert load_embedder(tmp_path / path, torch.device("cpu")).width == 24
    table, rgb = load_table(out), load_image(tmp_path / "in" / "strip.png").rgb_HW3
    crops = cut_crops(rgb, table.boxes_N4, CropSize(32, 0.1))
    with torch.no_grad():
        wanted = encoder(torch.from_numpy(crops).permute(0, 3, 1, 2) / 255).cls_BD
    np.testing.assert_allclose(table.features_ND, wanted, rtol=1e-3, atol=1e-4)
    crop = query_of(tmp_path / "in", table, 0)
    assert run(monkeypatch, "similar", crop, "--among", out, "-k", 3, "-o", tmp_path / "s.png") == 0
    assert len(re.findall(r"^│ +\d+ ", capfd.readouterr().out, re.MULTILINE)) == 3


@pytest.mark.parametrize("command", ["features", "similar"])
def test_help_has_an_example(command: str) -> None:
    output = re.sub(r"\x1b\[[0-9;]*m", "", CliRunner().invoke(APP, [command, "--help"]).output)
    assert f"dubsar {command} " in output.split("Examples", 1)[1]
