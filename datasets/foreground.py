"""Tell the clay of a photograph from what surrounds it: ground, scale bar, colour card, lettering.

Museums photograph tablets on one plain ground, dark or light. Its colour is read off the picture's rim, and what
differs from it is clay, unless it is printed: colours that clay never has, and flat white paper. Museum numbers in ink
count as clay: no rule on colour or brightness tells them from wedges in the shade.
"""

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy import ndimage

_WORK_SIDE = 800  # px: gaps between pasted views are still several px wide, and it takes a tenth of a second
_SHADE = 0.5  # of the threshold

F32 = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]


def clay_mask(rgb_HW3: npt.NDArray[np.uint8]) -> Mask:
    """Mark the clay of a photograph.

    Args:
        rgb_HW3: uint8 (H, W, 3).

    Returns:
        bool (H, W), true on tablets. False on the ground, scale bars, colour cards, lettering and debris. All of
        the picture but coloured patches where its rim shows no plain ground (a close-up); nothing where it is blank.
    """
    height, width = rgb_HW3.shape[:2]
    small_HW3 = shrink(rgb_HW3)
    contrast_HW, threshold = ground_contrast(small_HW3)
    close_up_HW = ~_patches(_foreign(small_HW3))
    clay_HW = close_up_HW if threshold is None else _bodies(small_HW3, contrast_HW, threshold)
    soft = Image.fromarray(clay_HW.astype(np.uint8) * 255).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(np.asarray(soft) > 127)


def shrink(rgb_HW3: npt.NDArray[np.uint8]) -> F32:
    """Return the picture (h, w, 3), 0 to 255, with a long side of about `_WORK_SIDE` px."""
    step = max(1, round(max(rgb_HW3.shape[:2]) / _WORK_SIDE))
    return np.asarray(Image.fromarray(rgb_HW3).reduce(step), dtype=np.float32)


def ground_contrast(small_HW3: F32) -> tuple[F32, float | None]:
    """Measure how far each pixel differs from the ground.

    Args:
        small_HW3: from `shrink`.

    Returns:
        The difference (H, W), 0 to 255, and from where on it means clay; None where the rim of the picture shows no
        plain ground.
    """
    smooth = ndimage.uniform_filter(small_HW3, (3, 3, 0))
    rim = np.concatenate([smooth[:3].reshape(-1, 3), smooth[-3:].reshape(-1, 3)])
    rim = np.concatenate([rim, smooth[:, :3].reshape(-1, 3), smooth[:, -3:].reshape(-1, 3)])
    steps = rim.mean(axis=1) / 8
    counts = np.bincount(steps.astype(np.int64), minlength=34)
    mode = np.argmax(counts + np.roll(counts, 1) + np.roll(counts, -1))  # of grey levels, in steps of 8
    ground = np.median(rim[np.abs(steps - mode - 0.5) < 1.5], axis=0)
    contrast: F32 = np.abs(smooth - ground).max(axis=2).astype(np.float32)
    off_rim = np.abs(rim - ground).max(axis=1)
    plain = off_rim < 20
    if plain.mean() < 0.4:
        return contrast, None
    return contrast, max(14.0, 2.5 * float(np.percentile(off_rim[plain], 95)))


def printed_mask(small_HW3: F32, clay: Mask) -> Mask:
    """Mark the scale bar: the surroundings of colours that clay never has, and of flat white paper.

    Args:
        small_HW3: from `shrink`.
        clay: bool (H, W), what differs from the ground.

    Returns:
        bool (H, W).
    """
    low, high, grey = small_HW3.min(axis=2), small_HW3.max(axis=2), small_HW3.mean(axis=2)
    foreign = _foreign(small_HW3)
    flat = ndimage.maximum_filter(grey, 3) - ndimage.minimum_filter(grey, 3) < 8
    paper = flat & clay & (low > 200) & (high - low < 25)
    # the bar's patches, grey steps and lettering lie close together, and sometimes close to a view
    groups, _ = ndimage.label(ndimage.binary_dilation(clay, iterations=4))
    labels, _ = ndimage.label(clay)
    printed = np.zeros(clay.shape, dtype=bool)
    for index, place in enumerate(ndimage.find_objects(groups), start=1):
        members = np.where((groups[place] == index) & clay[place], labels[place], 0)
        inside = members > 0
        is_bar = foreign[place][inside].mean() > 0.05 or paper[place][inside].mean() > 0.3
        sizes = np.bincount(members.ravel())
        foreign_share, paper_share, flat_share = (
            np.bincount(members.ravel(), weights=kind[place].ravel()) / np.maximum(sizes, 1)
            for kind in (foreign, paper, flat)
        )
        is_print = (foreign_share > 0.05) | (paper_share > 0.3)
        is_print |= is_bar & ((flat_share > 0.1) | (sizes < 0.15 * inside.sum()))
        printed[place] |= is_print[members] & inside
    # where the bar touches a view, only its coloured patches can be told
    return np.asarray(printed | _patches(foreign))


def _foreign(small_HW3: F32) -> Mask:
    """Mark colours that clay never has: blue, green, magenta."""
    low, high = small_HW3.min(axis=2), small_HW3.max(axis=2)
    red, green, blue = np.moveaxis(small_HW3, 2, 0)
    vivid = (high - low) > 0.45 * high + 20
    return np.asarray(vivid & ((blue > red + 30) | (green > red + 30) | ((red > green + 60) & (blue > green + 25))))


def _patches(foreign: Mask) -> Mask:
    """Widen areas of foreign colour, without specks."""
    return np.asarray(ndimage.binary_dilation(ndimage.binary_opening(foreign), iterations=3))


def _bodies(small_HW3: F32, contrast_HW: F32, threshold: float) -> Mask:
    """Keep what is large enough for a view of a tablet and not printed, its wedges and shadows filled."""
    differs_HW = contrast_HW > threshold
    printed_HW = printed_mask(small_HW3, differs_HW)
    labels, count = ndimage.label(ndimage.binary_opening(differs_HW & ~printed_HW, iterations=2))
    if not count:
        return np.zeros(differs_HW.shape, bool)
    sizes = np.bincount(labels.ravel())
    sizes[0] = 0
    # a view is at least a fiftieth of the largest one; lettering of the scale bar is less
    kept = (sizes >= max(0.02 * sizes.max(), 0.0008 * differs_HW.size))[labels]
    # a side in the shade hardly differs from black: it is clay where it hangs together with clay
    shaded = (contrast_HW > _SHADE * threshold) & ~ndimage.binary_dilation(printed_HW, iterations=6)
    kept = ndimage.binary_opening(ndimage.binary_propagation(kept, mask=kept | shaded), iterations=2)
    holes, _ = ndimage.label(~kept)
    areas = np.bincount(holes.ravel())
    # a dark wedge or a shadow is small; a large hole is ground between views that touch, as is what reaches the rim
    shallow = areas < 0.02 * kept.sum()
    shallow[np.concatenate([holes[0], holes[-1], holes[:, 0], holes[:, -1]])] = False
    # contrast is measured on 3 x 3 px, by which the mask is one too wide
    return np.asarray(ndimage.binary_erosion(kept | shallow[holes], border_value=1))
