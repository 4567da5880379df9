"""Pictures of features: what a network's patches tell apart, where it looks, and signs side by side."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import nn

from dubsar.models.ssl.encoder import SslEncoder
from dubsar.pipelines.features import unit
from dubsar.pipelines.reading.engine import to_input

Picture = npt.NDArray[np.uint8]
Grid = tuple[int, int]
_SIDE, _GAP, _LINE = 150, 10, 17  # px of a tile on a sheet, around it, and of a line of its caption
_PAPER, _INK, _FRAME = "#fbfaf7", "#26221c", "#b3541e"


@dataclass(frozen=True)
class Tile:
    """A cut-out on a sheet with what is written below it; ``pixels_HW3`` is None where there is no picture of it."""

    pixels_HW3: Picture | None
    caption: tuple[str, ...]


def pca_picture(patches_ND: npt.ArrayLike, grid: Grid) -> Picture:
    """Show the first three principal components of a picture's patches as red, green and blue.

    Args:
        patches_ND: features of the patches, row by row.
        grid: rows and columns of patches.

    Returns:
        uint8 (rows, columns, 3), one pixel a patch; a component without variance is grey.

    Raises:
        ValueError: the number of patches is not that of the grid, or numbers are not finite.
    """
    patches = _on_grid(patches_ND, grid).astype(np.float64)
    centred = patches - patches.mean(0)
    left, sizes, right = np.linalg.svd(centred, full_matrices=False)
    shown = np.full((len(patches), 3), 0.5)
    for c in np.flatnonzero(sizes[:3] > 1e-6 * max(float(np.abs(patches).max()), 1e-12)):
        # a component has no sign of its own: its largest loading is taken as positive, so that pictures repeat
        values = left[:, c] * np.sign(right[c, np.abs(right[c]).argmax()])
        low, high = np.percentile(values, [1, 99])
        shown[:, c] = (values - low) / max(high - low, 1e-12)
    return _to_uint8(shown).reshape(*grid, 3)


def similarity_picture(patches_ND: npt.ArrayLike, grid: Grid, anchor: tuple[int, int]) -> Picture:
    """Show how like one patch all others are: bright is cosine 1, dark is 0 and below.

    The scale is fixed, so that pictures of different trainings compare: where features collapse, all becomes bright.

    Args:
        patches_ND: features of the patches, row by row.
        grid: rows and columns of patches.
        anchor: row and column of the one patch.

    Returns:
        uint8 (rows, columns, 3), one pixel a patch.

    Raises:
        ValueError: the number of patches is not that of the grid, the anchor lies outside, or numbers are not finite.
    """
    patches = unit(_on_grid(patches_ND, grid))
    row, column = anchor
    if not (0 <= row < grid[0] and 0 <= column < grid[1]):
        raise ValueError(f"anchor is row {row}, column {column}, outside the grid of {grid[0]} x {grid[1]} patches")
    return _heat((patches @ patches[row * grid[1] + column]).reshape(grid))


def attention_picture(encoder: nn.Module, pixels_1CHW: torch.Tensor, grid: Grid) -> Picture:
    """Show what the class token of the last block looks at, mean over heads; the most is bright.

    Args:
        encoder: a timm vision transformer, or a module that holds one as ``net``; in evaluation mode, not compiled.
        pixels_1CHW: one picture, as the encoder takes it.
        grid: rows and columns of patches.

    Returns:
        uint8 (rows, columns, 3), one pixel a patch.

    Raises:
        ValueError: the network has no attention in its last block, or another grid.
    """
    net: Any = getattr(encoder, "net", encoder)
    attention: Any = net.blocks[-1].attn if hasattr(net, "blocks") else None
    if not hasattr(attention, "attn_drop"):
        raise ValueError(f"{type(net).__name__}: no vision transformer of timm; only one has attention to show")
    seen: list[torch.Tensor] = []
    hook = attention.attn_drop.register_forward_hook(lambda _module, inputs, _output: seen.append(inputs[0]))
    fused, attention.fused_attn = attention.fused_attn, False  # fused kernels never write the weights down
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            encoder(pixels_1CHW)
    finally:
        hook.remove()
        attention.fused_attn = fused
    weights = seen[-1][0, :, 0, net.num_prefix_tokens :].mean(0).float().cpu().numpy()
    if weights.size != grid[0] * grid[1]:
        raise ValueError(f"the network sees {weights.size} patches, expected {grid[0]} x {grid[1]}")
    return _heat((weights / max(float(weights.max()), 1e-12)).reshape(grid))


@torch.no_grad()
def feature_sheet(encoder: SslEncoder, pixels_NSS3: Picture) -> Picture:
    """Show what a backbone makes of pictures, a row each: principal components, likeness to the middle, attention.

    Compiled code is left aside: it calls no hook, and attention is seen by one.

    Args:
        encoder: in evaluation mode; a ConvNeXt has no attention to show.
        pixels_NSS3: uint8; the side is a multiple of the encoder's stride.

    Returns:
        uint8 (H, W, 3).
    """
    device, tiles = encoder.mask_token.device, list[Tile]()
    for pixels_SS3 in pixels_NSS3:
        pixels_1CHW = to_input(torch.from_numpy(pixels_SS3[None]).to(device))
        with torch.compiler.set_stance("force_eager"):
            seen = encoder(pixels_1CHW)
        patches_ND = seen.patches_BND[0].float().cpu().numpy()
        middle = (seen.grid[0] // 2, seen.grid[1] // 2)
        tiles.append(Tile(pixels_SS3, ("view",)))
        tiles.append(Tile(_enlarged(pca_picture(patches_ND, seen.grid)), ("principal components",)))
        tiles.append(Tile(_enlarged(similarity_picture(patches_ND, seen.grid, middle)), ("like the middle",)))
        if hasattr(encoder.net, "blocks"):
            tiles.append(Tile(_enlarged(attention_picture(encoder, pixels_1CHW, seen.grid)), ("attention",)))
    return sheet(tiles, columns=len(tiles) // len(pixels_NSS3))


def _enlarged(picture_HW3: Picture) -> Picture:
    """Make patches squares: a smooth enlargement would show detail that is not there."""
    times = max(1, _SIDE // max(picture_HW3.shape[:2]))
    return picture_HW3.repeat(times, 0).repeat(times, 1)


def png(picture_HW3: Picture) -> bytes:
    """Return a picture as a PNG file."""
    buffer = io.BytesIO()
    Image.fromarray(picture_HW3).save(buffer, format="PNG")
    return buffer.getvalue()


def sheet(tiles: Sequence[Tile], columns: int = 7, *, framed: bool = True) -> Picture:
    """Lay cut-outs out in rows, each in its own proportions with its caption.

    Args:
        tiles: at least one; lines of a caption that are too long lose their beginning.
        columns: tiles in a row.
        framed: draw a frame around the first.

    Returns:
        uint8 (H, W, 3).
    """
    columns = min(columns, len(tiles))
    lines = max(len(t.caption) for t in tiles)
    step_x, step_y = _SIDE + _GAP, _SIDE + _GAP + lines * _LINE
    picture = Image.new("RGB", (columns * step_x + _GAP, -(-len(tiles) // columns) * step_y + _GAP), _PAPER)
    draw, font = ImageDraw.Draw(picture), _font()
    for position, tile in enumerate(tiles):
        x, y = _GAP + position % columns * step_x, _GAP + position // columns * step_y
        if tile.pixels_HW3 is not None:
            cut = _fitted(tile.pixels_HW3)
            picture.paste(cut, (x + (_SIDE - cut.width) // 2, y + (_SIDE - cut.height) // 2))
        if framed and position == 0:
            draw.rectangle((x - 4, y - 4, x + _SIDE + 3, y + _SIDE + 3), outline=_FRAME, width=3)
        for number, line in enumerate(tile.caption):
            draw.text((x, y + _SIDE + 3 + number * _LINE), _shortened(line, font), _INK, font)
    return np.asarray(picture)


def printable(text: str) -> str:
    """Return text of one line that commands no terminal: what cannot be printed in a file name becomes U+FFFD."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _font() -> Any:
    import matplotlib as mpl

    # Pillow's own font lacks the letters of sign names (Š, Ḫ, ₂)
    return ImageFont.truetype(str(Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), 12)


def _shortened(text: str, font: Any) -> str:
    """Return what fits under a tile; of a long path its end, which is the file's name."""
    text = printable(text)[-200:]
    if font.getlength(text) <= _SIDE:
        return text
    while text and font.getlength(f"…{text}") > _SIDE:
        text = text[1:]
    return f"…{text}"


def _fitted(pixels_HW3: Picture) -> Image.Image:
    cut = Image.fromarray(pixels_HW3)
    factor = _SIDE / max(cut.size)
    size = (max(1, round(cut.width * factor)), max(1, round(cut.height * factor)))
    return cut.resize(size, Image.Resampling.BICUBIC)


def _on_grid(patches_ND: npt.ArrayLike, grid: Grid) -> npt.NDArray[np.float32]:
    patches = np.asarray(patches_ND, dtype=np.float32)
    unit(patches, "patches")  # for its checks
    if not len(patches) or len(patches) != grid[0] * grid[1]:
        raise ValueError(f"{len(patches)} patches, expected {grid[0]} x {grid[1]}")
    return patches


def _heat(values_HW: npt.NDArray[Any]) -> Picture:
    import matplotlib as mpl

    return _to_uint8(mpl.colormaps["viridis"](np.clip(values_HW, 0, 1))[..., :3])


def _to_uint8(shown: npt.NDArray[Any]) -> Picture:
    return np.asarray(np.rint(np.clip(shown, 0, 1) * 255), dtype=np.uint8)
