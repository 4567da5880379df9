"""The drawings of a classifier's report, as PNG: confusions with the signs on both axes, reliability, frequency."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dubsar.datasets.inventory import SignClass
from dubsar.datasets.synthetic.glyphs import GlyphFont
from dubsar.pipelines.calibration import Reliability
from dubsar.pipelines.pages import figure_png, new_figure

OTHER = "any other"
_SIGN_PX = 40  # height of a drawn sign
_CELL = 0.3  # inches


def draw_confusions(signs: Sequence[SignClass], shares_KL: npt.NDArray[np.float64], font: GlyphFont | None) -> bytes:
    """Draw what each sign is taken for; a row is a true sign.

    Args:
        signs: K classes.
        shares_KL: of each (K,), taken for each of them and for any other (K + 1).
        font: draws the signs on both axes; their names alone stand there where it is None or lacks one.
    """
    count = len(signs)
    figure = new_figure(2 + _CELL * (count + 1), 2 + _CELL * count)
    axes = figure.add_subplot()
    image = axes.imshow(np.sqrt(shares_KL), cmap="magma_r", vmin=0, vmax=1, aspect="equal")
    pad = 26 if font else 4  # room for the signs, between the axis and their names
    names = [s.name or s.glyph for s in signs]
    axes.set_xticks(range(count + 1), [*names, OTHER], rotation=90, fontsize=7)
    axes.set_yticks(range(count), names, fontsize=7)
    axes.tick_params(length=0, pad=pad, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.set(xlabel="taken for", ylabel="true sign")
    axes.xaxis.set_label_position("top")
    for k, sign in enumerate(signs):
        if font and font.covers(sign.glyph):
            for axis in ("x", "y"):
                _draw_sign(axes, font.mask(sign.glyph, _SIGN_PX), k, axis)
    bar = figure.colorbar(image, ax=axes, shrink=0.5, ticks=np.sqrt([0, 0.05, 0.2, 0.5, 1]))
    bar.ax.set_yticklabels(["0 %", "5 %", "20 %", "50 %", "100 %"], fontsize=7)
    return figure_png(figure)


def _draw_sign(axes: Any, mask_HW: npt.NDArray[np.uint8], place: int, axis: str) -> None:
    """Draw a sign outside the plot: above column ``place`` of axis x, or left of row ``place`` of axis y."""
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage

    ink = np.zeros((*mask_HW.shape, 4))
    ink[..., 3] = mask_HW / 255
    zoom = min(18 / mask_HW.shape[0], 19 / mask_HW.shape[1])
    above = axis == "x"
    box = AnnotationBbox(
        OffsetImage(ink, zoom=zoom),
        (place, 1) if above else (0, place),
        xybox=(0, 13) if above else (-13, 0),
        xycoords=("data", "axes fraction") if above else ("axes fraction", "data"),
        boxcoords="offset points",
        frameon=False,
        pad=0,
        annotation_clip=False,
    )
    axes.add_artist(box)


def draw_reliability(found: Mapping[str, Reliability]) -> bytes:
    """Draw confidence against truth, one plot for each name, with the number of crops in each bin below."""
    figure = new_figure(4.2 * len(found), 4.8)
    grid = figure.subplots(2, len(found), height_ratios=(3, 1), sharex=True, squeeze=False)
    for column, (name, r) in enumerate(found.items()):
        bins = len(r.count_B)
        middle_B, filled_B = (np.arange(bins) + 0.5) / bins, r.count_B > 0
        upper, lower = grid[0][column], grid[1][column]
        upper.plot([0, 1], [0, 1], color="#888", ls="--", lw=1)
        upper.bar(middle_B[filled_B], r.right_B[filled_B], 0.9 / bins, color="#38618c", label="share right")
        upper.plot(r.confidence_B[filled_B], r.right_B[filled_B], "o", ms=3, color="#b3541e", label="mean confidence")
        upper.set(
            title=f"{name}: ECE {r.error:.1f} %", xlim=(0, 1), ylim=(0, 1), ylabel="" if column else "share right"
        )
        lower.bar(middle_B, r.count_B, 0.9 / bins, color="#888")
        lower.set(xlabel="confidence", ylabel="" if column else "crops")
    return figure_png(figure)


def draw_frequencies(rows: Sequence[tuple[str, Mapping[str, float]]]) -> bytes:
    """Draw top-1 and top-5, percent, by the training crops of a class, with the number of crops that each bin has."""
    figure = new_figure(7, 3.4)
    axes = figure.add_subplot()
    for shift, metric, colour in ((-0.2, "top1", "#38618c"), (0.2, "top5", "#9cb8d3")):
        places = [place + shift for place in range(len(rows))]
        axes.bar(places, [scores[metric] for _, scores in rows], 0.38, color=colour, label=metric.replace("p", "p-"))
    for place, (_, scores) in enumerate(rows):
        axes.text(place, 101, f"{scores['crops']:.0f} crops", ha="center", fontsize=8)
    axes.set_xticks(range(len(rows)), [name.removesuffix(" training crops") for name, _ in rows])
    axes.set(xlabel="training crops of the class", ylabel="%", ylim=(0, 110))
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure_png(figure)
