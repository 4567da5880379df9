"""Foreground: clay is found on dark and light ground; ground, scale bars and lettering are not taken for clay."""

import numpy as np
import pytest
from PIL import Image, ImageDraw
from scipy import ndimage

from dubsar.datasets.foreground import clay_mask
from dubsar.datasets.synthetic.body import masks
from dubsar.datasets.synthetic.glyphs import FontError, GlyphFont, load_noto
from dubsar.datasets.synthetic.scene import paint_tablet, plan_tablet

PATCHES = ((10, 30, 120), (70, 150, 210), (20, 130, 80), (240, 225, 80), (205, 20, 40), (215, 60, 120))


@pytest.fixture(scope="module")
def noto() -> GlyphFont:
    try:
        return load_noto()
    except FontError as error:
        pytest.skip(f"font not installed: {error}")


def clay(height: int, width: int, seed: int = 0, level: float = 140) -> np.ndarray:
    """Rough tan clay."""
    rough = np.random.default_rng(seed).normal(0, 18, (height, width, 1))
    return (np.array([1.1, 0.9, 0.65]) * (level + rough)).clip(0, 255).astype(np.uint8)


def on_ground(ground: int, *, size: tuple[int, int] = (500, 400)) -> np.ndarray:
    """A tablet at rows 40-240, columns 60-340, on a ground with some noise."""
    noise = np.random.default_rng(1).normal(0, 1.5, (*size, 1))
    picture = (ground + noise).clip(0, 255).astype(np.uint8).repeat(3, 2)
    picture[40:240, 60:340] = clay(200, 280)
    return picture


def with_bar(picture: np.ndarray, top: int) -> np.ndarray:
    """Add white paper, a ruler with numbers and colour patches, as museums do."""
    image = Image.fromarray(picture)
    draw = ImageDraw.Draw(image)
    draw.rectangle((100, top, 150, top + 22), fill=(250, 250, 250))
    draw.rectangle((100, top + 24, 250, top + 46), fill=(225, 225, 222))
    for number in range(3):
        draw.text((104 + 50 * number, top + 28), str(number), fill=(10, 10, 10))
    for k, colour in enumerate(PATCHES):
        draw.rectangle((100 + 25 * k, top + 48, 122 + 25 * k, top + 70), fill=colour)
    draw.text((60, top + 10), "MUSEUM", fill=(240, 240, 240))
    return np.asarray(image)


@pytest.mark.parametrize("seed", [0, 1, 2, 9, 12, 20])  # dark and light ground, one to six views, bluish clay
def test_rendered_tablets_are_found_without_their_ground(noto: GlyphFont, seed: int) -> None:
    plan = plan_tablet(
        seed, fonts=[noto], lines=None, size=(420, 480), light_deg=315.0, faces=None, sign_height_px=(22, 30), glyphs=()
    )
    body_HW, gone_HW = masks(plan.size, plan.faces)
    found_HW = clay_mask(paint_tablet(plan).rgb_HW3)
    truth_HW = body_HW & ~gone_HW
    assert (found_HW & truth_HW).sum() > 0.97 * truth_HW.sum()
    far_HW = ~ndimage.binary_dilation(body_HW, iterations=3)
    assert (found_HW & far_HW).sum() < 0.002 * found_HW.sum()
    assert (found_HW & ~body_HW).sum() < 0.06 * found_HW.sum()


@pytest.mark.parametrize("ground", [3, 60, 200, 245])
def test_clay_is_marked_and_the_scale_bar_is_not(ground: int) -> None:
    picture = with_bar(on_ground(ground), 300)
    found = clay_mask(picture)
    assert found.dtype == bool
    assert found.shape == picture.shape[:2]
    assert found[44:236, 64:336].all()
    outside = found.copy()
    outside[38:242, 58:342] = False
    assert not outside.any()


def test_lettering_and_debris_are_left_out() -> None:
    picture = on_ground(2)
    picture[300:308, 50:58] = clay(8, 8)
    image = Image.fromarray(picture)
    ImageDraw.Draw(image).text((200, 400), "THE BRITISH MUSEUM", fill=(250, 250, 250))
    assert not clay_mask(np.asarray(image))[260:].any()


def test_a_dark_hole_is_filled_and_ground_between_views_is_not() -> None:
    picture = on_ground(0)
    picture[100:110, 150:170] = 0  # a wedge in the shade
    assert clay_mask(picture)[104, 160]
    ring = on_ground(0)
    ring[90:190, 120:280] = 0  # views that touch all around the ground
    assert not clay_mask(ring)[110:170, 140:260].any()


def test_a_side_in_the_shade_hangs_together_with_its_tablet() -> None:
    picture = on_ground(0)
    picture[40:240, 250:340] = 11  # less than what differs from black on its own
    assert clay_mask(picture)[60:220, 260:330].all()
    picture[40:240, 200:250] = 0
    found = clay_mask(picture)
    assert found[60:220, 80:190].all()
    assert not found[60:220, 260:330].any()  # without clay beside it, it is ground


def test_blank_pictures_hold_no_clay_and_close_ups_nothing_else() -> None:
    assert not clay_mask(np.zeros((60, 80, 3), np.uint8)).any()
    assert not clay_mask(np.full((60, 80, 3), 255, np.uint8)).any()
    relief = np.clip(np.linspace(20, 230, 300)[:, None, None] + clay(300, 400).astype(int) - 140, 0, 255)
    close_up = relief.astype(np.uint8)
    assert clay_mask(close_up).all()
    close_up[100:140, 100:140] = PATCHES[1]
    found = clay_mask(close_up)
    assert not found[100:140, 100:140].any()
    assert found[200:].all()


@pytest.mark.parametrize("shape", [(1, 1), (1, 50), (7, 3)])
def test_the_smallest_pictures_do_no_harm(shape: tuple[int, int]) -> None:
    assert clay_mask(np.full((*shape, 3), 90, np.uint8)).shape == shape


def test_resolution_hardly_matters() -> None:
    small = with_bar(on_ground(3), 300)
    large = np.asarray(Image.fromarray(small).resize((1600, 2000), Image.Resampling.BICUBIC))
    again = np.asarray(Image.fromarray(clay_mask(large)).resize((400, 500), Image.Resampling.NEAREST))
    assert (again ^ clay_mask(small)).mean() < 0.01
