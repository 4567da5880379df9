"""Crops from the cache are those that would be cut, to the bit; whatever changes them makes another key."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dubsar.configs.base import load
from dubsar.configs.schema import ClassifyConfig, shipped_config
from dubsar.datasets.crops import CropSize
from dubsar.datasets.formats.tablet_signs import Photograph
from dubsar.datasets.inventory import Inventory, read_inventory
from dubsar.datasets.signs import SignSource
from dubsar.pipelines import crop_cache
from dubsar.pipelines.crop_cache import crop_folder, crop_key, kept
from dubsar.pipelines.stages import classify
from dubsar.pipelines.stages.classify import Crops, read_crops

SIZE = CropSize(32, 0.1, 0.2)
ARRAYS = {
    "pixels": np.arange(105, dtype=np.uint8).reshape(5, 7, 3),
    "classes": np.arange(5),
    "names": np.array([*"abcde"]),
}


def equal(one: Any, two: Any) -> bool:
    return one.dtype == two.dtype and one.shape == two.shape and bool((one == two).all())


def refuse() -> Any:
    raise AssertionError("cut again")


def fresh() -> tuple[dict[str, Any], bool]:
    return {name: array.copy() for name, array in ARRAYS.items()}, True


def test_what_was_cut_once_is_found_again_equal_to_the_bit(tmp_path: Path) -> None:
    made = kept(tmp_path / "new" / "crops", "key", fresh)
    found = kept(tmp_path / "new" / "crops", "key", refuse)
    for arrays in (made, found):
        assert list(arrays) == list(ARRAYS)
        assert all(equal(arrays[name], array) for name, array in ARRAYS.items())
    assert found["classes"].flags.aligned
    found["pixels"][:] = 0
    assert equal(kept(tmp_path / "new" / "crops", "key", refuse)["pixels"], ARRAYS["pixels"])


@pytest.mark.parametrize("damage", ["shorter", "longer", "another bit", "empty", "text", "a header alone"])
def test_a_damaged_file_is_cut_again_and_replaced(damage: str, tmp_path: Path) -> None:
    kept(tmp_path, "key", fresh)
    path = tmp_path / "key.npy"
    whole = path.read_bytes()
    middle = len(whole) - 30
    path.write_bytes(
        {
            "shorter": whole[:-20],
            "longer": whole + b"more",
            "another bit": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
            "empty": b"",
            "text": b"not an array",
            "a header alone": whole[:128],
        }[damage]
    )
    calls: list[int] = []
    found = kept(tmp_path, "key", lambda: calls.append(1) or fresh())  # type: ignore[func-returns-value]
    assert calls == [1]
    assert all(equal(found[name], array) for name, array in ARRAYS.items())
    assert path.read_bytes() == whole


def test_what_lacks_a_photograph_is_not_kept(tmp_path: Path) -> None:
    kept(tmp_path, "key", lambda: (fresh()[0], False))
    assert not (tmp_path / "key.npy").exists()


def test_a_full_disk_is_said_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, _: Any) -> None:
        raise OSError(28, f"{path}: could not be written (No space left on device); the old file is unchanged")

    monkeypatch.setattr(crop_cache, "write_atomically", full)
    assert equal(kept(tmp_path, "key", fresh)["pixels"], ARRAYS["pixels"])
    assert "data.cache: " in (said := capsys.readouterr().err)
    assert "No space left on device" in said
    assert "going on without it" in said


def test_the_setting_names_a_folder_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("DUBSAR_DATA", str(tmp_path / "data"))
    assert crop_folder(False) is None
    assert crop_folder(True) == tmp_path / "dubsar" / "crops"
    assert crop_folder(str(tmp_path / "mine")) == tmp_path / "mine"
    with pytest.raises(ValueError, match=r"data\.cache.*lies in the data folder"):
        crop_folder(str(tmp_path / "data" / "crops"))


# --- the data


@pytest.fixture(scope="module")
def inventory(data_root: Path) -> Inventory:
    return read_inventory(data_root)


@pytest.fixture(scope="module")
def uncached(data_root: Path, inventory: Inventory) -> Crops:
    return read_crops(data_root, "dev", SIZE, inventory, 40)


@pytest.mark.data
def test_cached_crops_are_those_that_are_cut(
    data_root: Path, inventory: Inventory, uncached: Crops, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = read_crops(data_root, "dev", SIZE, inventory, 40, cache=tmp_path)
    monkeypatch.setattr(classify, "open_photographs", lambda *_, **__: refuse())
    found = read_crops(data_root, "dev", SIZE, inventory, 40, cache=tmp_path)
    for name in ("pixels_NSS3", "classes_N", "tablets_N"):
        for crops in (written, found):
            assert equal(getattr(crops, name), getattr(uncached, name))
    chosen = found.chosen(np.array([7, 3]))
    assert equal(chosen.pixels_NSS3, uncached.pixels_NSS3[[7, 3]])
    with pytest.raises(AssertionError, match="cut again"):
        read_crops(data_root, "dev", CropSize(32, 0.15, 0.2), inventory, 40, cache=tmp_path)


@pytest.mark.data
def test_everything_that_makes_other_crops_makes_another_key(
    data_root: Path, inventory: Inventory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from dubsar.datasets.photographs import labelled_photographs

    first, second = labelled_photographs(data_root, "dev")[:2]
    copied = tmp_path / first.path.name
    shutil.copy2(first.path, copied)
    photograph = replace(first, path=copied)

    def key(*photographs: Photograph, size: CropSize = SIZE, classes: Inventory = inventory, limit: int = 0) -> str:
        return crop_key(photographs, size, classes, limit=limit)

    box = replace(first.boxes[0], box_xyxy=(1.0, 2.0, 3.0, 4.5))
    other = Inventory(inventory.classes[::-1])
    assert key(photograph) == key(photograph)
    keys = [
        key(photograph),
        key(first),
        key(photograph, second),
        key(second, photograph),
        key(photograph, limit=3),
        key(photograph, size=replace(SIZE, context=0.2)),
        key(photograph, size=replace(SIZE, border=0.0)),
        key(photograph, classes=other),
        key(replace(photograph, boxes=(box, *first.boxes[1:]))),
        key(replace(photograph, boxes=first.boxes[::-1])),
        key(replace(photograph, object_id="another")),
    ]
    os.utime(copied, ns=(1, 1))
    keys.append(key(photograph))
    monkeypatch.setattr(crop_cache.PIL, "__version__", "0")
    keys.append(key(photograph))
    assert len(set(keys)) == len(keys)


@pytest.mark.data
def test_a_photograph_that_is_gone_is_skipped_with_a_cache_as_without(
    data_root: Path, inventory: Inventory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    found = SignSource(data_root).photographs("train")[:2]
    gone = [replace(found[0], path=tmp_path / "gone.jpg"), found[1]]
    monkeypatch.setattr(SignSource, "photographs", lambda *_, **__: gone)
    crops = read_crops(data_root, "train", SIZE, inventory, max_bad=1, cache=tmp_path / "crops")
    assert set(crops.tablets_N) == {found[1].object_id}
    assert not list(tmp_path.rglob("*.npy"))
    with pytest.raises(FileNotFoundError, match=r"gone\.jpg"):
        read_crops(data_root, "train", SIZE, inventory, cache=tmp_path / "crops")


@pytest.mark.data
def test_training_takes_its_crops_from_the_cache(
    data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = load(shipped_config("debug/classify"), ClassifyConfig, ("data.limit=30",))
    settings = load(shipped_config("debug/classify"), ClassifyConfig, ("data.limit=30", f"data.cache={tmp_path}"))
    wanted = classify.prepare(plain, data_root)
    classify.prepare(settings, data_root)
    assert len(list(tmp_path.glob("*.npy"))) == 2  # train and dev
    monkeypatch.setattr(classify, "open_photographs", lambda *_, **__: refuse())
    for one, two in zip(wanted, classify.prepare(settings, data_root), strict=True):
        assert equal(one.pixels_NSS3, two.pixels_NSS3)
        assert equal(one.classes_N, two.classes_N)
