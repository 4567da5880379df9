"""Augmentation: never a mirror, at whatever draw; boxes and masks go with the pixels; the seed decides all."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dubsar.datasets.augment import crop_augmentation, tile_augmentation
from dubsar.datasets.views import ViewSettings, multi_crop

BUILDERS = [crop_augmentation, tile_augmentation]


def transforms(pipeline: Any) -> Iterator[Any]:
    for transform in getattr(pipeline, "transforms", []):
        yield transform
        yield from transforms(transform)


@pytest.mark.parametrize("build", BUILDERS)
def test_no_transform_can_mirror_or_turn_over(build: Any) -> None:
    used = list(transforms(build()))
    assert len(used) > 8
    for transform in used:
        name = type(transform).__name__
        for word in ("Flip", "Transpose", "Rotate90", "D4", "Symmetric", "SquareSymmetry", "Grid", "Shuffle"):
            assert word not in name, name
    affine = next(t for t in used if type(t).__name__ == "Affine")
    assert max(map(abs, affine.rotate)) <= 15
    for axis in ("x", "y"):
        assert affine.scale[axis][0] > 0  # a negative scale is a mirror


def asymmetric(side: int = 96) -> np.ndarray:
    """A thick F: no two of its eight symmetries look alike."""
    picture = np.full((side, side, 3), 190, np.uint8)
    picture[16:80, 22:34] = picture[16:28, 22:76] = picture[44:54, 22:62] = 40
    return picture


def landmarks(side: int = 96) -> np.ndarray:
    """Red at the top left, green at the top right, blue at the bottom left."""
    picture = np.full((side, side, 3), 60, np.uint8)
    for channel, (y, x) in enumerate(((30, 30), (30, 66), (66, 30))):
        picture[y - 5 : y + 5, x - 5 : x + 5, channel] = 250
    return picture


def arms(picture: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the vectors (x, y) from red to green and from red to blue."""
    values = picture.astype(int)
    places = []
    for channel in range(3):
        others = values[..., [c for c in range(3) if c != channel]].max(-1)
        places.append(np.argwhere(values[..., channel] - others > 80).mean(0)[::-1])
    return places[1] - places[0], places[2] - places[0]


def upright(picture: np.ndarray) -> bool:
    (x0, y0), (x1, y1) = arms(picture)
    return bool(x0 > 2 * abs(y0) and y1 > 2 * abs(x1))


@pytest.mark.parametrize("build", BUILDERS)
def test_at_any_draw_left_stays_left_and_top_stays_top(build: Any) -> None:
    pipeline, picture = build(), landmarks()
    for transform in transforms(pipeline):
        transform.p = float(type(transform).__name__ in {"Affine", "Perspective", "ElasticTransform"})
    extra = {"bboxes": np.zeros((0, 4)), "classes": [], "mask": picture[..., 0]} if build is tile_augmentation else {}
    turned = []
    for seed in range(100):
        pipeline.set_random_seed(seed)
        found = pipeline(image=picture, **extra)["image"]
        assert upright(found)
        turned.append(float(np.degrees(np.arctan2(*arms(found)[0][::-1]))))
    assert max(turned) > 3  # the transforms did act
    assert min(turned) < -3
    mirrors = (picture[:, ::-1], picture[::-1], picture[::-1, ::-1], picture.transpose(1, 0, 2))
    assert not any(upright(mirror) for mirror in mirrors)  # negative control


def test_no_view_for_self_supervision_is_mirrored_or_turned_over() -> None:
    picture, mask = landmarks(), np.full((96, 96), 255, np.uint8)
    # each window is about the whole picture, so that all three marks show, and light leaves them their colours
    signs, light = {"global_signs": (2.8, 3), "local_signs": (2.8, 3)}, {"light": 0.2, "colour": 0.1, "grey": 0}
    settings = ViewSettings(global_px=96, local_px=96, gram_px=128, rotate=10, **signs, **light)
    turned = []
    for seed in range(60):
        views = multi_crop(picture, mask, settings, np.random.default_rng(seed))
        assert views.grams_G is not None
        for found in (*views.globals_G, *views.locals_L, *views.grams_G):
            assert upright(found)
            turned.append(float(np.degrees(np.arctan2(*arms(found)[0][::-1]))))
    assert max(turned) > 5
    assert min(turned) < -5
    with pytest.raises(ValueError, match="0 to 15 degrees"):
        ViewSettings(rotate=180)


def test_boxes_and_mask_follow_the_pixels() -> None:
    pipeline = tile_augmentation(degrees=4.0)
    picture = np.full((128, 128, 3), 30, np.uint8)
    picture[40:80, 30:90] = 220
    mask = np.where(picture[..., 0] > 100, 255, 0).astype(np.uint8)
    moved = 0
    for seed in range(30):
        pipeline.set_random_seed(seed)
        found = pipeline(image=picture, bboxes=np.array([[30.0, 40, 90, 80]]), classes=[7], mask=mask)
        assert found["classes"] == [7]
        x0, y0, x1, y1 = found["bboxes"][0]
        inside = (
            np.argwhere(found["mask"][20:108, 20:108] > 127) + 20
        )  # the rim is filled with 255 where the tile turned
        assert np.allclose([*inside.min(0)[::-1], *inside.max(0)[::-1]], [x0, y0, x1, y1], atol=4)
        assert set(np.unique(found["mask"])) <= {0, 255}
        moved += not np.allclose([x0, y0, x1, y1], [30, 40, 90, 80], atol=0.5)
    assert moved > 5


def test_a_box_that_leaves_the_tile_is_dropped() -> None:
    pipeline = tile_augmentation()
    picture = np.zeros((64, 64, 3), np.uint8)
    pipeline.set_random_seed(0)
    boxes = np.array([[-30.0, 10, 5, 30], [10, 10, 30, 30], [50, 50, 70, 70]])
    found = pipeline(image=picture, bboxes=boxes, classes=[0, 1, 2], mask=picture[..., 0])
    assert 1 in found["classes"]
    assert all(0 <= v <= 64 for box in found["bboxes"] for v in box)


@pytest.mark.parametrize("build", BUILDERS)
def test_the_seed_decides_whatever_was_drawn_before(build: Any) -> None:
    picture = asymmetric()
    extra = {"bboxes": np.zeros((0, 4)), "classes": [], "mask": picture[..., 0]} if build is tile_augmentation else {}

    def draw(pipeline: Any, seed: int) -> np.ndarray:
        pipeline.set_random_seed(seed)
        return pipeline(image=picture, **extra)["image"]

    used, fresh = build(), build()
    for seed in range(5):
        draw(used, seed)
    for seed in range(20, 30):
        assert np.array_equal(draw(used, seed), draw(fresh, seed))
    assert not np.array_equal(draw(used, 1), draw(used, 2))
    assert draw(used, 1).shape == picture.shape


def test_crops_vary_in_light_and_place() -> None:
    pipeline, picture = crop_augmentation(), asymmetric()
    pipeline.set_random_seed(0)
    means = [float(pipeline(image=picture)["image"].mean()) for _ in range(30)]
    assert np.std(means) > 8
