"""Training windows: scaled to one sign size, boxes in the window's pixels, background trusted near boxes only."""

import numpy as np
import pytest

from dubsar.datasets.windows import Picture, make_picture, random_window, resize, sign_size


def photo(height: int = 200, width: int = 300) -> np.ndarray:
    return np.random.default_rng(0).integers(1, 255, (height, width, 3), dtype=np.uint8)


def test_sign_size_is_the_root_of_the_median_area() -> None:
    assert sign_size([]) == 0.0
    assert sign_size([[0, 0, 10, 40]]) == 20.0
    assert sign_size([[0, 0, 10, 10], [0, 0, 20, 20], [0, 0, 900, 900]]) == 20.0


def test_a_picture_has_the_wanted_sign_size() -> None:
    picture = make_picture(photo(), [[10, 10, 50, 50], [100, 100, 140, 140]], [3, 4], 20.0, exhaustive=True)
    assert picture.rgb_HW3.shape == (100, 150, 3)
    assert sign_size(picture.boxes_N4) == pytest.approx(20.0)
    assert picture.boxes_N4.tolist() == [[5, 5, 25, 25], [50, 50, 70, 70]]
    assert picture.classes_N.tolist() == [3, 4]
    assert (picture.labelled_hw == 255).all()


def test_background_far_from_every_box_is_not_trusted() -> None:
    picture = make_picture(photo(400, 400), [[10, 10, 50, 50]], [0], 40.0, exhaustive=False)
    assert picture.labelled_hw.shape == (100, 100)
    assert picture.labelled_hw[6, 6] == 255  # in the box
    assert picture.labelled_hw[6, 12 + 11] == 255  # 1.2 signs beside it
    assert picture.labelled_hw[6, 12 + 14] == 0
    assert picture.labelled_hw[90, 90] == 0
    assert set(np.unique(picture.labelled_hw)) == {0, 255}


def test_resize_keeps_at_least_a_pixel_and_does_not_alias() -> None:
    assert resize(photo(), 0.001).shape == (1, 1, 3)
    assert resize(photo(), 2.0).shape == (400, 600, 3)
    stripes = np.tile(np.array([[[0] * 3, [255] * 3]], np.uint8), (64, 32, 1))
    assert abs(float(resize(stripes, 0.25).mean()) - 127.5) < 3
    assert float(resize(stripes, 0.25)[2:-2, 2:-2].std()) < 3


def marked(boxes: list[list[int]], size: tuple[int, int] = (400, 500)) -> Picture:
    """A dark picture on which each box is filled with a grey value of its own."""
    rgb = np.full((*size, 3), 10, np.uint8)
    for number, (x0, y0, x1, y1) in enumerate(boxes):
        rgb[y0:y1, x0:x1] = 100 + 50 * number
    return Picture(
        rgb, np.array(boxes, float), np.arange(len(boxes)), np.full((-(-size[0] // 4), -(-size[1] // 4)), 255, np.uint8)
    )


def test_boxes_stay_on_their_signs() -> None:
    picture = marked([[20, 30, 60, 70], [300, 200, 340, 260]])
    rng = np.random.default_rng(3)
    for _ in range(40):
        tile, boxes, classes, mask = random_window(picture, 128, 0.4, rng)
        assert (tile.shape, mask.shape) == ((128, 128, 3), (128, 128))
        assert len(boxes) == len(classes) >= 1
        for box, label in zip(boxes, classes, strict=True):
            x0, y0, x1, y1 = np.clip(np.round(box), 0, 128).astype(int)
            assert np.median(tile[y0 + 3 : y1 - 3, x0 + 3 : x1 - 3]) == 100 + 50 * label


def test_a_sign_of_which_less_than_half_shows_is_neither_target_nor_background() -> None:
    picture = marked([[100, 100, 140, 140], [150, 100, 190, 140]])
    rng, cut = np.random.default_rng(0), 0
    for _ in range(300):
        tile, boxes, _, mask = random_window(picture, 64, 0.0, rng)
        for value in (100, 150):
            shown = tile[..., 0] == value
            if 0 < shown.sum() < 0.45 * 1600:
                cut += 1
                assert (mask[shown] == 0).all()
                assert not any(
                    b[0] < np.argwhere(shown)[:, 1].mean() < b[2] and b[1] < np.argwhere(shown)[:, 0].mean() < b[3]
                    for b in boxes
                )
            if shown.sum() > 0.55 * 1600:
                assert (mask[shown] == 255).all()
    assert cut > 30


def test_scales_lie_within_the_jitter() -> None:
    picture = marked([[200, 150, 240, 190]])
    rng = np.random.default_rng(0)
    widths = [float(b[0, 2] - b[0, 0]) for _, b, _, _ in (random_window(picture, 128, 0.25, rng) for _ in range(200))]
    assert 40 / 1.27 < min(widths) < 34
    assert 47 < max(widths) < 40 * 1.27


def test_beyond_the_picture_is_black_and_trusted_background() -> None:
    picture = Picture(
        np.full((30, 30, 3), 200, np.uint8), np.array([[5.0, 5, 25, 25]]), np.array([0]), np.zeros((8, 8), np.uint8)
    )
    tile, boxes, _, mask = random_window(picture, 128, 0.0, np.random.default_rng(0))
    inside = tile[:, :, 0] > 0
    assert inside.sum() == 900
    assert (mask[~inside] == 255).all()
    assert (mask[inside] == 0).all()
    assert boxes[0, 2] - boxes[0, 0] == pytest.approx(20)


def test_the_same_seed_gives_the_same_window() -> None:
    picture = marked([[20, 30, 60, 70], [300, 200, 340, 260]])
    one, two = (random_window(picture, 64, 0.3, np.random.default_rng(7)) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
