"""The cache of unlabelled photographs: one sign height, clay only, nothing read twice, damage counted and named."""

import importlib
import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dubsar.datasets.images import load_image
from dubsar.datasets.photographs import DamagedDataError
from dubsar.datasets.synthetic.glyphs import FontError, load_noto
from dubsar.datasets.synthetic.scene import render_tablet
from dubsar.datasets.unlabelled import CLAY, FORMAT, WRITING, Signs, TileCache, _mapped, build_cache, find_photographs
from dubsar.datasets.windows import sign_size


class Ruler:
    """Measures every picture as told, and counts."""

    def __init__(self, height: float = 20.0, **of: float) -> None:
        self.height, self.of = height, of
        self.asked: list[str] = []

    def __call__(self, path: Path, rgb_HW3: np.ndarray) -> Signs:
        assert np.array_equal(rgb_HW3, load_image(path).rgb_HW3)
        self.asked.append(path.stem)
        return Signs(self.of.get(path.stem, self.height))


def draw(path: Path, *, size: tuple[int, int] = (400, 300), seed: int = 0) -> Path:
    """Black ground with clay at columns 40-240 and rows 40-200."""
    picture = np.zeros((size[1], size[0], 3), np.uint8)
    rough = np.random.default_rng(seed).normal(140, 15, (160, 200, 1))
    picture[40:200, 40:240] = rough.clip(0, 255) * [1, 0.8, 0.6]
    Image.fromarray(picture).save(path)
    return path


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "photographs"
    folder.mkdir()
    return [draw(folder / f"{name}.png", seed=seed) for seed, name in enumerate("abc")]


def build(paths: list[Path], cache: Path, ruler: Ruler, **changed) -> TileCache:
    return build_cache(paths, cache, **{"measure": ruler, "sign_px": 10.0, "tile": 64, **changed})


def arrays(cache: Path) -> dict[str, int]:
    return {p.name: p.stat().st_mtime_ns for p in cache.rglob("*.npy")}


def test_photographs_are_found_once_in_order(tmp_path: Path) -> None:
    (tmp_path / "b" / "deep").mkdir(parents=True)
    (tmp_path / "a").mkdir()
    for name in ("b/2.png", "b/1.jpg", "b/deep/3.TIF", "a/4.png", "b/.hidden.png", "b/notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "a" / "again.png").symlink_to(tmp_path / "b" / "2.png")
    found = find_photographs([tmp_path / "b", tmp_path / "a", tmp_path / "b"])
    assert [p.relative_to(tmp_path).as_posix() for p in found] == ["b/1.jpg", "b/2.png", "b/deep/3.TIF", "a/4.png"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="empty: no picture in this folder or below"):
        find_photographs([tmp_path / "a", tmp_path / "empty"])
    with pytest.raises(FileNotFoundError, match="nowhere: no such folder"):
        find_photographs([tmp_path / "nowhere"])


def test_a_rendered_tablet_is_scaled_so_that_a_sign_has_the_wanted_height(tmp_path: Path) -> None:
    try:
        font = load_noto()
    except FontError as error:
        pytest.skip(f"font not installed: {error}")
    made = render_tablet(2029, fonts=[font], size=(420, 480), faces=1, sign_height_px=(30, 34))
    Image.fromarray(made.rgb_HW3).save(tmp_path / "tablet.png")
    signs = [s.box for face in made.tablet.faces for line in face.lines for s in line.signs if s.box is not None]
    height = sign_size(signs)
    cache = build_cache(
        [tmp_path / "tablet.png"], tmp_path / "cache", measure=lambda *_: Signs(height), sign_px=16, tile=1000
    )
    assert len(cache) == 1  # one tile shows it all
    columns, rows = (np.flatnonzero(cache.clay(0).any(axis)) for axis in (0, 1))
    x0, y0, x1, y1 = made.tablet.faces[0].box or (0, 0, 0, 0)
    for found, whole in ((np.ptp(columns) + 1, x1 - x0), (np.ptp(rows) + 1, y1 - y0)):
        assert found * height / 16 == pytest.approx(whole, rel=0.05)


def test_tiles_hold_the_pixels_and_the_clay_of_the_scaled_picture(three: list[Path], tmp_path: Path) -> None:
    cache = build(three, tmp_path / "cache", Ruler(20.0))  # half as large: clay at columns 20-120 and rows 20-100
    assert len(cache) > 6
    assert {cache.photograph(i) for i in range(len(cache))} == {str(p) for p in three}
    assert [cache.photograph(i) for i in range(len(cache))] == sorted(cache.photograph(i) for i in range(len(cache)))
    for index in range(len(cache)):
        pixels, clay = cache.tile(index), cache.clay(index)
        assert (pixels.shape, clay.shape) == ((64, 64, 3), (64, 64))
        assert pixels.dtype == clay.dtype == np.uint8
        assert set(np.unique(clay)) <= {0, 255}
        assert (clay > 0).sum() >= 400  # four squares of a sign
        assert pixels[clay > 0].mean() > 90
        assert pixels[clay == 0].size == 0 or np.median(pixels[clay == 0]) < 3
    covered = sum(int((cache.clay(i) > 0).sum()) for i in range(len(cache)))
    assert covered > 3 * 0.9 * 100 * 80  # tiles overlap, so it may be more
    with pytest.raises(IndexError, match=f"tile {len(cache)} of {len(cache)}"):
        cache.tile(len(cache))
    with pytest.raises(IndexError):
        cache.clay(-1)


def test_tiles_without_clay_are_left_out(tmp_path: Path) -> None:
    path = draw(tmp_path / "wide.png", size=(1600, 300))
    cache = build([path], tmp_path / "cache", Ruler(10.0))
    assert 0 < len(cache) <= 5 * 5  # of 29 columns of tiles five show clay


def test_nothing_is_read_twice_until_it_changes(three: list[Path], tmp_path: Path) -> None:
    folder, ruler = tmp_path / "cache", Ruler(20.0, b=0.0)
    first = build(three, folder, ruler)
    made = arrays(folder)
    assert ruler.asked == ["a", "b", "c"]
    again = build(three, folder, ruler)
    assert ruler.asked == ["a", "b", "c"]
    assert again == first
    assert arrays(folder) == made
    draw(three[0], seed=9)  # another picture of nearly the same size
    os.utime(three[0], ns=(10**18, 10**18))
    changed = build(three, folder, ruler)
    assert ruler.asked == ["a", "b", "c", "a"]
    assert not np.array_equal(changed.tile(0), first.tile(0))
    build(three, folder, ruler, sign_px=12.0)
    assert ruler.asked[4:] == ["a", "b", "c"]
    assert set(made) < set(arrays(folder))  # tiles of other settings stay


def test_a_call_that_was_killed_goes_on_where_it_stopped(
    three: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dubsar.datasets.unlabelled._SAVE_SECONDS", -1.0)

    def stop_at_c(path: Path, rgb_HW3: np.ndarray) -> Signs:
        if path.stem == "c":
            raise KeyboardInterrupt
        return Signs(20.0)

    with pytest.raises(KeyboardInterrupt):
        build_cache(three, tmp_path / "cache", measure=stop_at_c, sign_px=10, tile=64)
    ruler = Ruler(20.0)
    resumed = build(three, tmp_path / "cache", ruler)
    assert ruler.asked == ["c"]
    whole = build(three, tmp_path / "other", Ruler(20.0))
    assert len(resumed) == len(whole)
    assert all(np.array_equal(resumed.tile(i), whole.tile(i)) for i in range(len(whole)))
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.name.startswith(".")]  # no half-written file


@pytest.mark.parametrize("fault", ["truncated", "gone", "index"])
def test_damaged_tiles_are_made_again(three: list[Path], tmp_path: Path, fault: str) -> None:
    folder, ruler = tmp_path / "cache", Ruler(20.0)
    whole = [np.array(t) for cache in [build(three, folder, ruler)] for t in map(cache.tile, range(len(cache)))]
    victim = sorted(folder.rglob("*.npy"))[0]
    if fault == "truncated":
        victim.write_bytes(victim.read_bytes()[:5000])
    elif fault == "gone":
        victim.unlink()
    else:
        (folder / "index.json").write_text("{not json")
    _mapped.cache_clear()
    mended = build(three, folder, ruler)
    assert len(ruler.asked) == 3 + (3 if fault == "index" else 1)
    assert all(np.array_equal(a, mended.tile(i)) for i, a in enumerate(whole))
    shutil.rmtree(folder)
    _mapped.cache_clear()
    with pytest.raises(ValueError, match=r"\.npy: these tiles are damaged or gone .* build the cache again"):
        mended.tile(0)


def test_photographs_without_a_sign_height_are_listed_and_left_out(three: list[Path], tmp_path: Path) -> None:
    cache = build(three, tmp_path / "cache", Ruler(20.0, a=float("nan"), c=2.0))
    assert {cache.photograph(i) for i in range(len(cache))} == {str(three[1])}
    reasons = {Path(p.path).stem: p.skipped for p in cache.unmeasured}
    assert reasons == {
        "a": "the height of its signs is not known",
        "c": "its signs are 2.0 px high, too small",
    }
    with pytest.raises(ValueError, match=r"no tile from 3 photographs: 0 cannot be read, 3 have no known sign height"):
        build(three, tmp_path / "none", Ruler(0.0))


def test_damaged_photographs_are_skipped_up_to_a_number(
    three: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    three[0].write_bytes(three[0].read_bytes()[:-4000])
    gone = three[0].with_name("gone.png")
    cache = build([three[0], gone, *three[1:]], tmp_path / "cache", Ruler(), max_bad=2)
    assert {Path(p.path).stem for p in cache.photographs} == {"b", "c"}
    assert len(cache.damaged) == 2
    err = capsys.readouterr().err.splitlines()
    assert err[0].startswith(f"skipped (1 of at most 2): {three[0]}: the picture is damaged")
    assert err[1] == f"skipped (2 of at most 2): {gone}: No such file or directory"
    told = r"2 photographs cannot be read, more than max_bad=1 allows: .*a\.png.*gone"
    with pytest.raises(DamagedDataError, match=told):
        build([three[0], gone, *three[1:]], tmp_path / "cache", Ruler(), max_bad=1)


@pytest.mark.parametrize(("number", "reason"), [(28, "No space left on device"), (13, "Permission denied")])
def test_a_cache_that_cannot_be_written_is_no_damaged_photograph(
    three: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(number, reason)

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match=reason):
        build(three, tmp_path / "cache", Ruler())
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]


def test_a_cache_goes_to_a_worker_without_its_pixels(three: list[Path], tmp_path: Path) -> None:
    cache = build(three, tmp_path / "cache", Ruler())
    cache.tile(0)
    sent = pickle.dumps(cache)
    assert len(sent) < 4000
    assert np.array_equal(pickle.loads(sent).tile(3), cache.tile(3))
    with pytest.raises(ValueError, match="read-only"):
        cache.tile(0)[0, 0, 0] = 1


def test_the_index_says_what_was_cached(three: list[Path], tmp_path: Path) -> None:
    seen: list[object] = []

    def watch(paths: list[Path], label: str) -> list[Path]:
        seen.append((list(paths), label))
        return paths

    build(three, tmp_path / "cache", Ruler(20.0), watch=watch)
    index = json.loads((tmp_path / "cache" / "index.json").read_text(encoding="utf-8"))
    assert (index["format"], index["sign_px"], index["tile"]) == (FORMAT, 10.0, 64)
    assert [(Path(p["path"]).stem, p["sign_height"]) for p in index["photographs"]] == [(n, 20.0) for n in "abc"]
    assert seen == [(three, "caching")]


def test_workers_cut_the_same_tiles_and_list_the_same_damage(
    three: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # what a worker computes has to be imported there
    lines = ("from dubsar.datasets.unlabelled import Signs", "def twenty(path, rgb_HW3): return Signs(20.0)")
    (tmp_path / "ruler_of_workers.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    twenty = importlib.import_module("ruler_of_workers").twenty
    three[1].write_bytes(three[1].read_bytes()[:200])
    three.insert(2, tmp_path / "gone.png")
    alone, beside = (
        build_cache(three, tmp_path / name, measure=twenty, sign_px=10.0, tile=64, workers=workers)
        for name, workers in (("alone", 0), ("beside", 2))
    )
    assert alone.photographs == beside.photographs
    assert alone.damaged == beside.damaged
    assert len(alone.damaged) == 2
    assert len(alone) == len(beside) > 2
    assert all(np.array_equal(alone.tile(i), beside.tile(i)) for i in range(len(alone)))


def test_tiles_smaller_than_two_signs_are_refused(three: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tiles of 15 px with signs of 10 px"):
        build(three, tmp_path / "cache", Ruler(), tile=15)


def test_writing_is_told_from_bare_clay_and_tiles_without_it_are_left_out(tmp_path: Path) -> None:
    path = draw(tmp_path / "a.png")
    boxes = np.array([[50.0, 50, 120, 70], [80, 50, 150, 70]])
    sizes = {"sign_px": 20.0, "tile": 200}
    cache = build_cache([path], tmp_path / "cache", measure=lambda *_: Signs(20.0, boxes), **sizes)
    everywhere = build_cache([path], tmp_path / "all", measure=lambda *_: Signs(20.0), **sizes)
    assert 0 < len(cache) < len(everywhere)
    masks, whole = (np.stack([c.clay(i) for i in range(len(c))]) for c in (cache, everywhere))
    assert set(np.unique(masks)) == {0, CLAY, WRITING}
    assert set(np.unique(whole)) == {0, WRITING}
    # both boxes, and a quarter of a sign's height around them
    written = int((cache.clay(0) == WRITING).sum())
    assert written == 110 * 30
    assert cache.writing.tolist() == [round(written / 20**2), 4]
    assert cache.spans == [(0, 2)]
    assert np.array_equal(cache.signs(0), boxes)
    assert not len(cache.signs(1))  # from column 100 on, where no sign is whole
