"""Sign crops: the box stretched to a square, with the border repeated beyond the photograph."""

import numpy as np
import pytest

from dubsar.datasets.crops import CropSize, cut_crops


def test_no_box_gives_no_crop() -> None:
    assert cut_crops(np.zeros((9, 9, 3), np.uint8), [], CropSize(32, 0.1)).shape == (0, 32, 32, 3)


@pytest.mark.parametrize(("crop", "border", "side"), [(64, 0.0, 64), (64, 0.2, 90), (32, 0.5, 64), (33, 0.0, 32)])
def test_side_in_pixels(crop: int, border: float, side: int) -> None:
    assert CropSize(crop, 0.1, border).side_px == side


def scene() -> np.ndarray:
    picture = np.full((200, 200, 3), 50, np.uint8)
    picture[80:120, 60:140] = 200  # 80 x 40
    return picture


def test_the_box_fills_the_crop() -> None:
    (crop,) = cut_crops(scene(), [[60, 80, 140, 120]], CropSize(80, 0.0))
    assert (crop == 200).all()
    (shifted,) = cut_crops(scene(), [[60, 100, 140, 140]], CropSize(80, 0.0))
    assert (shifted[:38] == 200).all()
    assert (shifted[42:] == 50).all()


def test_context_widens_on_every_side() -> None:
    (crop,) = cut_crops(scene(), [[60, 80, 140, 120]], CropSize(100, 0.5))  # 160 x 80 px of the picture
    bright = crop[:, :, 0] > 125
    assert np.flatnonzero(bright.any(0))[[0, -1]] == pytest.approx([25, 74], abs=1)
    assert np.flatnonzero(bright.any(1))[[0, -1]] == pytest.approx([25, 74], abs=1)


def test_the_middle_of_a_crop_with_border_is_the_crop_without() -> None:
    picture = np.random.default_rng(0).integers(0, 255, (300, 300, 3), dtype=np.uint8)
    picture = np.repeat(np.repeat(picture[:60, :60], 5, 0), 5, 1)
    plain = cut_crops(picture, [[100, 120, 164, 184]], CropSize(64, 0.0))[0]
    room = cut_crops(picture, [[100, 120, 164, 184]], CropSize(64, 0.0, 0.25))[0]
    assert room.shape == (96, 96, 3)
    assert np.abs(room[16:80, 16:80].astype(int) - plain).mean() < 2


@pytest.mark.parametrize("box", [[-20, -20, 20, 20], [180, 180, 240, 240], [-30, 90, 10, 130], [190, 0, 200, 10]])
def test_beyond_the_photograph_its_border_is_repeated(box: list[float]) -> None:
    (crop,) = cut_crops(np.full((200, 200, 3), 77, np.uint8), [box], CropSize(32, 0.2))
    assert (crop == 77).all()


def test_a_box_outside_and_one_without_area_do_not_fail() -> None:
    crops = cut_crops(scene(), [[500, 500, 510, 510], [100, 100, 100, 100]], CropSize(32, 0.0))
    assert (crops[0] == 0).all()
    assert (crops[1] == 200).all()


def test_a_crop_is_not_mirrored_or_turned() -> None:
    picture = np.zeros((100, 100, 3), np.uint8)
    picture[20:40, 20:40] = 255  # top left of the box
    (crop,) = cut_crops(picture, [[20, 20, 80, 80]], CropSize(60, 0.0))
    quarters = [crop[:30, :30].mean(), crop[:30, 30:].mean(), crop[30:, :30].mean(), crop[30:, 30:].mean()]
    assert quarters[0] > 50
    assert max(quarters[1:]) < 1
