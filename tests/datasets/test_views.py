"""Views: cut by sign height on clay, nothing but clay shown, the generator decides all. Mirrors: see test_augment."""

import dataclasses
from collections.abc import Iterator

import cv2
import numpy as np
import pytest

from dubsar.datasets.views import Views, ViewSettings, multi_crop

PLAIN = ViewSettings(
    rotate=0, stretch=0, light=0, relief=0, colour=0, grey=0, blur=0, grain=0, jpeg=0, global_signs=(2, 2)
)
ALL = np.full((384, 384), 255, np.uint8)


def rough(side: int = 384, seed: int = 0) -> np.ndarray:
    """Tan clay with features of a few px."""
    noise = np.random.default_rng(seed).normal(0, 60, (side // 4, side // 4)).astype(np.float32)
    smooth = cv2.resize(noise, (side, side), interpolation=cv2.INTER_CUBIC)[..., None]
    return (np.array([1.1, 0.9, 0.65]) * (130 + smooth)).clip(0, 255).astype(np.uint8)


def crop(settings: ViewSettings, seed: int, tile: np.ndarray | None = None, clay: np.ndarray = ALL) -> Views:
    return multi_crop(rough() if tile is None else tile, clay, settings, np.random.default_rng(seed))


def pictures(views: Views) -> Iterator[np.ndarray]:
    yield from views.globals_G
    yield from views.locals_L


def test_shapes_and_types_follow_the_settings() -> None:
    views = crop(ViewSettings(), 0)
    assert (views.globals_G.shape, views.locals_L.shape) == ((2, 64, 64, 3), (8, 32, 32, 3))
    assert views.grams_G is None
    assert views.globals_G.dtype == views.locals_L.dtype == np.uint8
    odd = crop(ViewSettings(global_px=48, local_px=16, globals_=1, locals_=0, gram_px=112), 0)
    assert (odd.globals_G.shape, odd.locals_L.shape) == ((1, 48, 48, 3), (0, 16, 16, 3))
    assert odd.grams_G is not None
    assert odd.grams_G.shape == (1, 112, 112, 3)


def test_the_generator_decides_whatever_was_drawn_before() -> None:
    settings = ViewSettings(gram_px=96)
    first = [crop(settings, seed) for seed in range(12)]
    np.random.seed(7)
    again = [crop(settings, seed) for seed in reversed(range(12))][::-1]
    for one, other in zip(first, again, strict=True):
        for name in ("globals_G", "locals_L", "grams_G"):
            assert np.array_equal(getattr(one, name), getattr(other, name))
    assert not np.array_equal(first[0].globals_G, first[1].globals_G)
    assert not np.array_equal(first[0].globals_G[0], first[0].globals_G[1])


def test_without_changes_a_window_is_the_tile_itself() -> None:
    tile = rough(64)
    views = crop(dataclasses.replace(PLAIN, locals_=0), 3, tile, ALL[:64, :64])
    assert np.array_equal(views.globals_G[0], tile)
    assert np.array_equal(views.globals_G[1], tile)


@pytest.mark.parametrize(("signs", "sign_px"), [((3.0, 3.0), 32.0), ((6.0, 6.0), 32.0), ((4.0, 4.0), 48.0)])
def test_a_window_holds_as_many_signs_as_asked_for(signs: tuple[float, float], sign_px: float) -> None:
    wave = 128 + 100 * np.sin(2 * np.pi * np.arange(384) / sign_px)  # one wave a sign height
    tile = np.repeat(np.repeat(wave[:, None, None], 384, 1), 3, 2).astype(np.uint8)
    settings = dataclasses.replace(PLAIN, global_signs=signs, local_signs=signs, sign_px=sign_px)
    for picture in pictures(crop(settings, 0, tile)):
        column = picture[..., 0].mean(1) - picture[..., 0].mean()
        assert np.abs(np.fft.rfft(column)).argmax() == signs[0]


def test_heights_vary_over_their_whole_range() -> None:
    tile = np.repeat(np.repeat(np.arange(384)[:, None, None] / 1.6, 384, 1), 3, 2).astype(np.uint8)
    settings = dataclasses.replace(PLAIN, global_signs=(2.0, 6.0), locals_=0)
    views = [view[..., 0].mean(1) for seed in range(40) for view in crop(settings, seed, tile).globals_G]
    spans = np.ptp(views, axis=1) * 1.6 / 32
    assert 1.9 < spans.min() < 2.4
    assert 5.0 < spans.max() < 6.1


def test_fine_stripes_do_not_alias_into_coarse_ones() -> None:
    tile = np.zeros((384, 384, 3), np.uint8)
    tile[::2] = 255
    settings = dataclasses.replace(PLAIN, global_signs=(9, 9), locals_=0, rotate=6)  # three times smaller
    for seed in range(6):
        assert crop(settings, seed, tile).globals_G.std() < 20


@pytest.mark.parametrize("kind", [np.uint8, bool])
def test_what_is_not_clay_is_never_shown(kind: type) -> None:
    tile, clay = rough(), np.zeros((384, 384), kind)
    clay[60:200, 100:330] = 1
    tile[clay == 0] = (0, 255, 0)
    settings = ViewSettings(grey=0, gram_px=96, colour=0.1)
    neutral, sides = set(), 0
    for seed in range(25):
        views = crop(settings, seed, tile, clay)
        for picture in [*pictures(views), *(views.grams_G if views.grams_G is not None else ())]:
            smooth = cv2.blur(picture, (5, 5)).astype(int)  # grain and noise may be green in single pixels
            assert (smooth[..., 1] - smooth[..., 0].clip(smooth[..., 2])).max() < 60
            sides += 1
            neutral.add("black" if (picture.max(2) < 3).mean() > 0.05 else "else")
    assert sides == 25 * 12
    assert neutral == {"black", "else"}
    shown = crop(settings, 0, tile).locals_L.astype(int)  # negative control: all of it is clay
    assert (shown[..., 1] - shown[..., 0]).max() > 150


def test_windows_stand_on_clay() -> None:
    tile, clay = np.full((384, 384, 3), 200, np.uint8), np.zeros((384, 384), np.uint8)
    clay[20:120, 250:370] = 255
    settings = dataclasses.replace(PLAIN, local_signs=(1, 2))
    shares = [(view == 200).all(2).mean() for s in range(20) for view in crop(settings, s, tile, clay).locals_L]
    assert np.mean(shares) > 0.75
    assert np.quantile(shares, 0.1) > 0.5


def test_the_anchor_sees_the_same_window_in_the_same_light_and_changes_nothing_else() -> None:
    clean = ViewSettings(blur=0, grain=0, jpeg=0)
    for seed in range(8):
        alone, both = (crop(dataclasses.replace(clean, gram_px=px), seed) for px in (0, 128))
        assert np.array_equal(alone.globals_G, both.globals_G)
        assert np.array_equal(alone.locals_L, both.locals_L)
        assert both.grams_G is not None
        small = [cv2.resize(v, (64, 64), interpolation=cv2.INTER_AREA).astype(int) for v in both.grams_G]
        own, other = (np.abs(small[0] - both.globals_G[k]).mean() for k in (0, 1))
        assert own < other / 8


def test_light_and_colour_vary_and_each_strength_can_be_turned_off() -> None:
    means = np.array([v.mean((0, 1)) for s in range(20) for v in crop(ViewSettings(grey=0), s).globals_G])
    assert means.mean(1).std() > 12
    assert (means[:, 0] / means[:, 2]).std() > 0.1
    grey = crop(dataclasses.replace(PLAIN, grey=1), 0).globals_G
    assert np.array_equal(grey[..., 0], grey[..., 2])
    plain = [crop(PLAIN, seed).globals_G.astype(int)[0] for seed in range(5)]
    for changed in ({"light": 0.5}, {"relief": 0.3}, {"colour": 0.3}, {"blur": 1}, {"grain": 1}, {"jpeg": 1}):
        views = [crop(dataclasses.replace(PLAIN, **changed), seed).globals_G[0] for seed in range(5)]
        assert max(np.abs(view - was).max() for view, was in zip(views, plain, strict=True)) > 10, changed


def test_raking_light_brightens_slopes_towards_it() -> None:
    tile = np.full((64, 64, 3), 120, np.uint8)
    tile[:, 24:40] = 160  # a ridge: one of its sides becomes brighter, the other darker
    settings = dataclasses.replace(PLAIN, locals_=0, relief=0.3)
    products = []
    for seed in range(10):
        raked = crop(settings, seed, tile, ALL[:64, :64]).globals_G
        left, right = (np.array([v[:, at].mean() - tile[0, at, 0] for v in raked]) for at in (24, 39))
        products += list(left * right)
        assert np.abs(raked[:, :, 5].astype(int) - 120).max() <= 1  # level clay stays as it is
    assert max(products) <= 0
    assert np.median(products) < -25


def test_a_tile_without_known_clay_and_a_window_larger_than_it_do_no_harm() -> None:
    tile = np.full((96, 96, 3), 150, np.uint8)
    nothing = crop(ViewSettings(), 0, tile, np.zeros((96, 96), np.uint8))
    assert nothing.globals_G.shape == (2, 64, 64, 3)
    wide = dataclasses.replace(PLAIN, global_signs=(6, 6), locals_=0)
    view = crop(wide, 0, tile, ALL[:96, :96]).globals_G[0]
    assert (view[16:48, 16:48] == 150).all()  # the tile in the middle of its surroundings


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"global_px": 4}, "at least 8 px"),
        ({"globals_": 0}, "one global view"),
        ({"local_signs": (2.0, 1.0)}, r"local_signs is \(2.0, 1.0\)"),
        ({"rotate": 20.0}, "0 to 15 degrees"),
        ({"sign_px": 0.0}, "sign_px above 0"),
    ],
)
def test_settings_that_make_no_view_are_refused(changed: dict, found: str) -> None:
    with pytest.raises(ValueError, match=found):
        ViewSettings(**changed)


def test_tile_and_mask_must_fit() -> None:
    with pytest.raises(ValueError, match=r"tile \(64, 64, 3\) with clay \(32, 32\)"):
        crop(PLAIN, 0, rough(64), ALL[:32, :32])


def test_views_around_a_sign_are_its_box_stretched_to_a_square() -> None:
    tile = np.full((96, 96, 3), 40, np.uint8)
    tile[30:50, 20:60] = 200  # a sign twice as wide as high
    exact = dataclasses.replace(PLAIN, global_boxes=(2.0, 2.0), local_boxes=(0.5, 0.5), locals_=40)
    views = multi_crop(tile, np.full((96, 96), 255, np.uint8), exact, np.random.default_rng(0), (20, 30, 60, 50))
    for view in views.globals_G:  # the middle half of it in both directions, moved by no more than a 25th
        assert view[20:44, 20:44].mean() > 195
        assert max(view[:12].mean(), view[52:].mean(), view[:, :12].mean(), view[:, 52:].mean()) < 80
    shares = [float((view > 120).mean()) for view in views.locals_L]
    assert min(shares) > 0.7  # parts of the sign, and little beside it
    assert np.ptp(shares) > 0.02
    with pytest.raises(ValueError, match=r"local_boxes is \(0\.9, 0\.5\)"):
        ViewSettings(local_boxes=(0.9, 0.5))
