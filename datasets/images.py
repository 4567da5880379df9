"""The one image loader: the same bytes give the same pixels to every stage.

What it settles once, because each library settles it differently: EXIF orientation is applied; 16-bit grey is scaled to
its own range (``convert("RGB")`` would clip it to two levels); CMYK and ICC profiles go to sRGB; alpha, and a colour
that PNG's ``tRNS`` names as transparent, is laid on neutral grey; only the first page of a multi-page file is read; the
size is checked from the header before a pixel is decoded.
"""

import io
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageCms, ImageOps, UnidentifiedImageError

MAX_MEGAPIXELS = 400.0
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp", ".gif"})
# the readers that may start (JPEG's also takes MPO); that of EPS would hand the file to Ghostscript
_FORMATS = ("JPEG", "PNG", "TIFF", "BMP", "WEBP", "GIF")
_GREY = (128, 128, 128)
_ROWS = 512
_LIMIT_LOCK = threading.Lock()
_ORIENTATION_TAG = 0x0112


class ImageError(ValueError):
    """A file that cannot be used as a photograph; the message names file, finding and remedy."""


@dataclass(frozen=True)
class LoadedImage:
    """RGB pixels as shown on screen, and the way back to the file's own pixels.

    Attributes:
        rgb_HW3: uint8, upright.
        orientation: EXIF orientation 1-8 that was applied.
        file_size: (width, height) of the file's own pixels, before orientation.
    """

    rgb_HW3: npt.NDArray[np.uint8]
    orientation: int
    file_size: tuple[int, int]

    def to_file_pixels(self, boxes_xyxy: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Map boxes (N, 4) xyxy from the upright picture to the file's own pixels (N, 4) xyxy."""
        boxes = np.asarray(boxes_xyxy, dtype=np.float64).reshape(-1, 4)
        width, height = self.file_size
        x0, y0, x1, y1 = boxes.T
        corners = {
            1: (x0, y0, x1, y1),
            2: (width - x1, y0, width - x0, y1),
            3: (width - x1, height - y1, width - x0, height - y0),
            4: (x0, height - y1, x1, height - y0),
            5: (y0, x0, y1, x1),
            6: (y0, height - x1, y1, height - x0),
            7: (width - y1, height - x1, width - y0, height - x0),
            8: (width - y1, x0, width - y0, x1),
        }[self.orientation]
        return np.stack(corners, axis=1)

    def from_file_pixels(self, boxes_xyxy: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Map boxes (N, 4) xyxy from the file's own pixels to the upright picture (N, 4) xyxy."""
        boxes = np.asarray(boxes_xyxy, dtype=np.float64).reshape(-1, 4)
        width, height = self.file_size
        x0, y0, x1, y1 = boxes.T
        corners = {
            1: (x0, y0, x1, y1),
            2: (width - x1, y0, width - x0, y1),
            3: (width - x1, height - y1, width - x0, height - y0),
            4: (x0, height - y1, x1, height - y0),
            5: (y0, x0, y1, x1),
            6: (height - y1, x0, height - y0, x1),
            7: (height - y1, width - x1, height - y0, width - x0),
            8: (y0, width - x1, y1, width - x0),
        }[self.orientation]
        return np.stack(corners, axis=1)


def load_image(source: Path | bytes, *, max_megapixels: float = MAX_MEGAPIXELS) -> LoadedImage:
    """Load a photograph.

    Args:
        source: a path, or a whole file's bytes.
        max_megapixels: refuse a larger picture before it is decoded.

    Returns:
        The picture as RGB uint8 (H, W, 3), upright, with the transform back to the file's own pixels.

    Raises:
        ImageError: not a picture, too large, truncated or empty.
        FileNotFoundError: there is no such file.
    """
    name = str(source) if isinstance(source, Path) else "<bytes>"
    data = source.read_bytes() if isinstance(source, Path) else source
    if not data:
        raise ImageError(f"{name}: the file is empty (0 bytes); copy it again from its source")
    try:
        with _open(data, name, max_megapixels) as image:
            orientation = image.getexif().get(_ORIENTATION_TAG, 1)
            orientation = orientation if orientation in range(1, 9) else 1
            image.seek(0)
            image.load()
            upright = ImageOps.exif_transpose(image)
            rgb = _to_srgb(upright)
    except UnidentifiedImageError as error:
        raise ImageError(
            f"{name}: not a picture in a known format; expected JPEG, PNG, TIFF, BMP, WebP or GIF"
        ) from error
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        if isinstance(error, ImageError):
            raise
        raise ImageError(f"{name}: the picture is damaged ({error}); copy it again from its source") from error
    # a reader may have swapped the sides of a turned picture already (Pillow's TIFF reader does), so go by the result
    file_size = upright.size[::-1] if orientation >= 5 else upright.size
    return LoadedImage(np.ascontiguousarray(rgb), orientation, file_size)


def find_images(folder: Path) -> list[Path]:
    """Return the picture files directly or deeper in ``folder``, sorted by path, hidden ones left out."""
    return sorted(
        p
        for p in folder.rglob("*")
        if p.suffix.lower() in IMAGE_SUFFIXES
        and p.is_file()
        and not any(q.startswith(".") for q in p.relative_to(folder).parts)
    )


def _open(data: bytes, name: str, max_megapixels: float) -> Image.Image:
    """Read the header only. Pillow's own limit is one per process: it is set under a lock and put back."""
    with _LIMIT_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the exact limit is checked below
        before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, int(max_megapixels * 1e6) + 1
        try:
            image = Image.open(io.BytesIO(data), formats=_FORMATS)
        except Image.DecompressionBombError as error:
            raise ImageError(_too_large(name, str(error), max_megapixels)) from error
        finally:
            Image.MAX_IMAGE_PIXELS = before
    width, height = image.size
    if width < 1 or height < 1:
        raise ImageError(f"{name}: the picture has no pixels ({width} x {height})")
    if width * height > max_megapixels * 1e6:
        raise ImageError(_too_large(name, f"{width} x {height} pixels", max_megapixels))
    return image


def _too_large(name: str, found: str, max_megapixels: float) -> str:
    return f"{name}: {found}, more than the limit of {max_megapixels:g} megapixels; raise it with --max-megapixels"


def _to_srgb(image: Image.Image) -> npt.NDArray[np.uint8]:
    if image.mode in {"I", "F", "I;16", "I;16B", "I;16L", "I;16N"}:
        return _grey_to_rgb(_scale_to_uint8(np.asarray(image)))
    profile = image.info.get("icc_profile")
    if image.mode == "P":
        image = image.convert("RGBA" if "transparency" in image.info else "RGB")
    if image.mode in {"La", "PA", "RGBa"}:
        image = image.convert("LA" if image.mode == "La" else "RGBA")
    if image.mode in {"LA", "RGBA"}:
        alpha: Image.Image | None = image.getchannel("A")
        image = image.convert("L" if image.mode == "LA" else "RGB")
    else:
        alpha = _alpha_of_colour(image)
    if image.mode == "LAB":
        image = _lab_to_rgb(image)
    elif profile and image.mode in {"RGB", "CMYK", "L"}:
        image = _apply_profile(image, profile)
    rgb = image if image.mode == "RGB" else image.convert("RGB")
    if alpha is not None:  # laid on grey after the profile, so that the grey stays neutral
        rgb = Image.composite(rgb, Image.new("RGB", rgb.size, _GREY), alpha)
    return np.asarray(rgb, dtype=np.uint8)


def _alpha_of_colour(image: Image.Image) -> Image.Image | None:
    """Return an alpha channel where the header names one colour as transparent; None where it names none."""
    colour = image.info.get("transparency")
    if image.mode not in {"1", "L", "RGB"} or not isinstance(colour, tuple if image.mode == "RGB" else int):
        return None
    alike = np.asarray(image) == np.asarray(bool(colour) if image.mode == "1" else colour)
    if image.mode == "RGB":
        alike = alike.all(axis=2)
    return Image.fromarray(np.where(alike, np.uint8(0), np.uint8(255)))


def _scale_to_uint8(grey_HW: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Stretch the picture's own range to 0-255, so that a 12-bit scan stored in 16 bits keeps its levels."""
    scaled_HW = np.full(grey_HW.shape, 128, np.uint8)
    if grey_HW.dtype.kind == "f":
        finite = np.isfinite(grey_HW)
        low, high = float(grey_HW.min(where=finite, initial=np.inf)), float(grey_HW.max(where=finite, initial=-np.inf))
    else:
        low, high = float(grey_HW.min()), float(grey_HW.max())
    if not low < high:
        return scaled_HW
    for top in range(0, grey_HW.shape[0], _ROWS):  # by strips: a 10,000 px scan would take gigabytes as floats
        strip = (grey_HW[top : top + _ROWS].astype(np.float64) - low) / (high - low)
        strip = np.nan_to_num(strip, nan=0.0, posinf=1.0, neginf=0.0)
        scaled_HW[top : top + _ROWS] = np.rint(strip * 255)
    return scaled_HW


def _grey_to_rgb(grey_HW: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return np.repeat(grey_HW[:, :, None], 3, axis=2)


def _apply_profile(image: Image.Image, profile: bytes) -> Image.Image:
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        converted = ImageCms.profileToProfile(image, source, ImageCms.createProfile("sRGB"), outputMode="RGB")
    except (ImageCms.PyCMSError, OSError):
        return image.convert("RGB")  # a broken profile: Pillow's own conversion is the best that is left
    return converted if converted is not None else image.convert("RGB")


def _lab_to_rgb(image: Image.Image) -> Image.Image:
    lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
    return ImageCms.applyTransform(image, ImageCms.buildTransform(lab, srgb, "LAB", "RGB")) or image
