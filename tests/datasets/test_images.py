"""The image loader: the same picture from every file that can hold it, one clear error for every file that cannot."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image, ImageCms

from dubsar.datasets.images import ImageError, LoadedImage, find_images, load_image

ORIENTATION = 0x0112
# what a camera that was held so has to store for the picture to be seen upright
STORED = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def picture(width: int = 48, height: int = 32) -> Image.Image:
    """A picture without any symmetry: red across, green down, a blue corner."""
    y, x = np.mgrid[0:height, 0:width]
    rgb = np.stack([x * 255 // width, y * 255 // height, np.where((x < 9) & (y < 5), 255, 0)], axis=2)
    return Image.fromarray(rgb.astype(np.uint8))


def encode(image: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=form, **options)
    return buffer.getvalue()


def stored(orientation: int, form: str, image: Image.Image | None = None) -> bytes:
    image = image or picture()
    turn = STORED[orientation]
    turned = image if turn is None else image.transpose(turn)
    if form == "TIFF":
        return encode(turned, form, tiffinfo={ORIENTATION: orientation})
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    lossless = {"lossless": True} if form == "WEBP" else {}
    return encode(turned, form, exif=exif, **lossless)


@pytest.mark.parametrize("form", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_exif_orientation_shows_the_same_pixels(orientation: int, form: str) -> None:
    loaded = load_image(stored(orientation, form))
    assert np.array_equal(loaded.rgb_HW3, np.asarray(picture()))
    assert loaded.orientation == orientation
    assert loaded.file_size == ((32, 48) if orientation >= 5 else (48, 32))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_jpeg_orientation_agrees_with_the_upright_jpeg(orientation: int) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    turn = STORED[orientation]
    image = picture() if turn is None else picture().transpose(turn)
    loaded = load_image(encode(image, "JPEG", exif=exif, quality=98, subsampling=0))
    assert loaded.rgb_HW3.shape == (32, 48, 3)
    assert np.abs(loaded.rgb_HW3.astype(int) - np.asarray(picture()).astype(int)).mean() < 2


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_go_back_to_the_files_own_pixels(orientation: int, form: str) -> None:
    """The blue corner, found upright, lies at the returned box in the pixels as stored."""
    data = stored(orientation, form)
    loaded = load_image(data)
    ys, xs = np.nonzero(loaded.rgb_HW3[:, :, 2] == 255)
    upright = np.array([[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]], dtype=np.float64)
    x0, y0, x1, y1 = (int(v) for v in loaded.to_file_pixels(upright)[0])
    turn = STORED[orientation]
    raw = np.asarray(picture() if turn is None else picture().transpose(turn))
    expected = np.zeros(raw.shape[:2], bool)
    expected[y0:y1, x0:x1] = True
    assert np.array_equal(raw[:, :, 2] == 255, expected)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_come_back_from_the_files_own_pixels(orientation: int) -> None:
    loaded = load_image(stored(orientation, "PNG"))
    upright = np.array([[1.5, 2.0, 30.0, 7.25], [0.0, 0.0, 48.0, 32.0], [40.0, 20.0, 47.0, 31.0]])
    there = loaded.to_file_pixels(upright)
    width, height = loaded.file_size
    assert (there[:, 2] > there[:, 0]).all()
    assert (there[:, 3] > there[:, 1]).all()
    assert there.min() >= 0
    assert there[:, 2].max() <= width
    assert there[:, 3].max() <= height
    assert np.array_equal(loaded.from_file_pixels(there), upright)


def test_no_boxes_stay_no_boxes() -> None:
    assert load_image(stored(6, "PNG")).to_file_pixels(np.zeros((0, 4))).shape == (0, 4)


def test_an_orientation_outside_1_to_8_is_ignored() -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 99
    loaded = load_image(encode(picture(), "PNG", exif=exif))
    assert loaded.orientation == 1
    assert np.array_equal(loaded.rgb_HW3, np.asarray(picture()))


def grey16(low: int = 0, high: int = 65535) -> np.ndarray:
    return np.linspace(low, high, 256 * 20).round().astype(np.uint16).reshape(20, 256)


@pytest.mark.parametrize("form", ["TIFF", "PNG"])
@pytest.mark.parametrize("high", [65535, 4095, 900])
def test_16_bit_grey_keeps_200_levels(form: str, high: int) -> None:
    """A 12-bit scan in a 16-bit file keeps its levels too; ``convert("RGB")`` leaves two."""
    loaded = load_image(encode(Image.fromarray(grey16(high=high)), form))
    rgb = loaded.rgb_HW3
    assert rgb.dtype == np.uint8
    assert np.array_equal(rgb[:, :, 0], rgb[:, :, 1])
    assert np.array_equal(rgb[:, :, 0], rgb[:, :, 2])
    assert len(np.unique(rgb)) >= 200
    assert (rgb.min(), rgb.max()) == (0, 255)
    assert np.all(np.diff(rgb[:, :, 0].ravel().astype(int)) >= 0)


def test_16_bit_big_endian_tiff_equals_little_endian() -> None:
    little = load_image(encode(Image.fromarray(grey16()), "TIFF")).rgb_HW3
    values = grey16().astype(">u2")
    height, width = values.shape
    tags = [(256, 3, 1, width), (257, 3, 1, height), (258, 3, 1, 16), (259, 3, 1, 1), (262, 3, 1, 1)]
    tags += [(273, 4, 1, 8 + 2 + 12 * 8 + 4), (278, 3, 1, height), (279, 4, 1, values.nbytes)]
    body = b"".join(
        struct.pack(">HHI", tag, kind, count) + (struct.pack(">HH", v, 0) if kind == 3 else struct.pack(">I", v))
        for tag, kind, count, v in tags
    )
    data = b"MM\x00\x2a" + struct.pack(">I", 8) + struct.pack(">H", len(tags)) + body + bytes(4) + values.tobytes()
    assert np.array_equal(load_image(data).rgb_HW3, little)


@pytest.mark.parametrize("orientation", [3, 6, 7])
def test_16_bit_grey_is_turned_by_exif(orientation: int) -> None:
    loaded = load_image(stored(orientation, "PNG", Image.fromarray(grey16())))
    assert np.array_equal(loaded.rgb_HW3, load_image(encode(Image.fromarray(grey16()), "PNG")).rgb_HW3)


def test_float_tiff_with_nan_is_scaled_over_its_finite_range() -> None:
    grey = np.linspace(-1.5, 2.5, 300, dtype=np.float32).reshape(10, 30)
    grey[0, 0] = np.nan
    grey[0, 1] = np.inf
    loaded = load_image(encode(Image.fromarray(grey), "TIFF")).rgb_HW3
    assert loaded[0, 0, 0] == 0
    assert loaded[0, 1, 0] == 255
    assert loaded[9, 29, 0] == 255


@pytest.mark.parametrize("value", [0, 40000])
def test_a_16_bit_picture_of_one_tone_is_mid_grey(value: int) -> None:
    loaded = load_image(encode(Image.fromarray(np.full((8, 8), value, np.uint16)), "PNG"))
    assert np.all(loaded.rgb_HW3 == 128)


def test_8_bit_grey_is_not_stretched() -> None:
    grey = Image.fromarray(np.full((6, 7), 77, np.uint8))
    for form in ("TIFF", "PNG", "JPEG", "MPO", "BMP", "GIF"):
        assert np.all(load_image(encode(grey, form)).rgb_HW3 == 77)


def test_black_and_white_tiff_becomes_0_and_255() -> None:
    loaded = load_image(encode(picture().convert("1"), "TIFF"))
    assert set(np.unique(loaded.rgb_HW3)) == {0, 255}


def test_cmyk_becomes_rgb_of_the_same_colours() -> None:
    cmyk = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    for form in ("TIFF", "JPEG"):
        red = load_image(encode(cmyk, form)).rgb_HW3
        assert red.shape == (16, 16, 3)
        assert red[8, 8, 0] > 200
        assert red[8, 8, 1:].max() < 60


def test_palette_equals_its_rgb() -> None:
    palette = picture().quantize(64)
    expected = np.asarray(palette.convert("RGB"))
    for form in ("PNG", "GIF", "TIFF"):
        assert np.array_equal(load_image(encode(palette, form)).rgb_HW3, expected)


def test_palette_transparency_is_laid_on_grey() -> None:
    palette = Image.new("P", (4, 2), 0)
    palette.putpalette([255, 0, 0, 0, 255, 0])
    palette.paste(1, (2, 0, 4, 2))
    loaded = load_image(encode(palette, "PNG", transparency=0)).rgb_HW3
    assert loaded[0, 0].tolist() == [128, 128, 128]
    assert loaded[0, 3].tolist() == [0, 255, 0]


@pytest.mark.parametrize(
    ("mode", "pixels", "key"),
    [("RGB", ((0, 0, 0), (0, 0, 9)), (0, 0, 0)), ("L", (7, 200), 7), ("1", (255, 0), 1), ("1", (0, 255), 0)],
)
def test_a_colour_that_png_names_as_transparent_is_laid_on_grey(mode: str, pixels: tuple[int, int], key: int) -> None:
    image = Image.new(mode, (2, 1))
    image.putdata(pixels)
    plain = image.convert("RGB").getpixel((1, 0))
    loaded = load_image(encode(image, "PNG", transparency=key)).rgb_HW3
    assert (tuple(loaded[0, 0]), tuple(loaded[0, 1])) == ((128, 128, 128), plain)


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_alpha_is_laid_on_neutral_grey(form: str) -> None:
    rgba = np.zeros((2, 3, 4), np.uint8)
    rgba[:, 0] = (200, 10, 20, 255)
    rgba[:, 1] = (200, 10, 20, 0)
    rgba[:, 2] = (255, 255, 255, 128)
    loaded = load_image(encode(Image.fromarray(rgba), form)).rgb_HW3
    assert loaded[0, 0].tolist() == [200, 10, 20]
    assert loaded[0, 1].tolist() == [128, 128, 128]
    assert np.abs(loaded[0, 2].astype(int) - 192).max() <= 1


def test_grey_with_alpha_is_laid_on_neutral_grey() -> None:
    grey_alpha = np.array([[[10, 255], [10, 0]]], np.uint8)
    loaded = load_image(encode(Image.fromarray(grey_alpha, mode="LA"), "PNG")).rgb_HW3
    assert loaded[0, 0].tolist() == [10, 10, 10]
    assert loaded[0, 1].tolist() == [128, 128, 128]


def linear_profile() -> bytes:
    """The sRGB primaries with a straight tone curve, made by editing the curve tags of Pillow's sRGB profile."""
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    count = struct.unpack(">I", profile[128:132])[0]
    for index in range(count):
        name, offset, _size = struct.unpack(">4sII", profile[132 + 12 * index : 144 + 12 * index])
        if name in {b"rTRC", b"gTRC", b"bTRC"}:
            # a 'para' curve of type 0 (y = x ** g) with g = 1.0
            profile[offset : offset + 16] = b"para" + bytes(4) + struct.pack(">HHi", 0, 0, 0x10000)
    return bytes(profile)


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_an_icc_profile_is_applied_with_and_without_alpha(mode: str) -> None:
    image = Image.new(mode, (8, 8), (55, 55, 55, 255) if mode == "RGBA" else (55, 55, 55))
    plain = load_image(encode(image, "PNG")).rgb_HW3
    linear = load_image(encode(image, "PNG", icc_profile=linear_profile())).rgb_HW3
    assert np.all(plain == 55)
    assert np.abs(linear.astype(int) - 128).max() <= 3  # linear 55/255 is sRGB 128/255


def test_the_grey_under_alpha_stays_neutral_whatever_the_profile() -> None:
    image = Image.new("RGBA", (4, 4), (9, 9, 9, 0))
    assert np.all(load_image(encode(image, "PNG", icc_profile=linear_profile())).rgb_HW3 == 128)


def test_an_icc_profile_survives_turning() -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    data = encode(Image.new("RGB", (8, 4), (55, 55, 55)), "PNG", icc_profile=linear_profile(), exif=exif)
    loaded = load_image(data).rgb_HW3
    assert loaded.shape == (8, 4, 3)
    assert np.abs(loaded.astype(int) - 128).max() <= 3


def test_a_broken_icc_profile_is_passed_over() -> None:
    data = encode(picture(), "PNG", icc_profile=b"not a profile" * 20)
    assert np.array_equal(load_image(data).rgb_HW3, np.asarray(picture()))


def test_lab_tiff_becomes_rgb() -> None:
    lab = ImageCms.profileToProfile(
        picture(), ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), outputMode="LAB"
    )
    assert lab is not None
    loaded = load_image(encode(lab, "TIFF")).rgb_HW3
    assert np.abs(loaded.astype(int) - np.asarray(picture()).astype(int)).mean() < 5


def test_only_the_first_page_of_a_tiff_is_read() -> None:
    second = Image.new("RGB", (10, 10), "red")
    data = encode(picture(), "TIFF", save_all=True, append_images=[second])
    assert np.array_equal(load_image(data).rgb_HW3, np.asarray(picture()))


def test_path_and_bytes_give_the_same_pixels(tmp_path: Path) -> None:
    data = stored(7, "PNG")
    path = tmp_path / "a.png"
    path.write_bytes(data)
    from_path, from_bytes = load_image(path), load_image(data)
    assert np.array_equal(from_path.rgb_HW3, from_bytes.rgb_HW3)
    assert path.read_bytes() == data
    assert isinstance(from_path, LoadedImage)
    assert from_path.rgb_HW3.flags["C_CONTIGUOUS"]


def png_header(width: int, height: int) -> bytes:
    """A PNG of a kilobyte whose header claims any size."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def test_a_header_that_claims_30000_x_30000_is_refused_before_decoding(tmp_path: Path) -> None:
    path = tmp_path / "huge.png"
    path.write_bytes(png_header(30_000, 30_000))
    with pytest.raises(ImageError, match=r"huge\.png: .*limit of 400 megapixels.*--max-megapixels"):
        load_image(path)


def test_a_size_between_pillows_warning_and_error_is_refused_without_a_warning(
    recwarn: pytest.WarningsRecorder,
) -> None:
    with pytest.raises(ImageError, match=r"3000 x 2000 pixels, more than the limit of 5 megapixels"):
        load_image(png_header(3000, 2000), max_megapixels=5)
    assert not [w for w in recwarn if issubclass(w.category, Image.DecompressionBombWarning)]


def test_the_limit_is_inclusive_and_can_be_raised() -> None:
    data = encode(picture(100, 100), "PNG")
    assert load_image(data, max_megapixels=0.01).rgb_HW3.shape == (100, 100, 3)
    with pytest.raises(ImageError, match="--max-megapixels"):
        load_image(data, max_megapixels=0.0099)


@pytest.mark.parametrize("before", [Image.MAX_IMAGE_PIXELS, 12_345, None])
def test_pillows_own_limit_is_put_back(before: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", before)
    load_image(encode(picture(), "PNG"))
    assert before == Image.MAX_IMAGE_PIXELS
    for bad in (png_header(30_000, 30_000), b"text", b""):
        with pytest.raises(ImageError):
            load_image(bad)
        assert before == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF"])
def test_a_truncated_picture_is_an_error_that_names_the_file(form: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = encode(Image.fromarray(rng.integers(0, 255, (200, 200, 3), dtype=np.uint8)), form)
    path = tmp_path / f"cut.{form.lower()}"
    path.write_bytes(data[: len(data) * 6 // 10])
    with pytest.raises(ImageError, match=rf"cut\.{form.lower()}: .*copy it again"):
        load_image(path)


def test_a_truncated_jpeg_that_verify_passes_is_still_found() -> None:
    rng = np.random.default_rng(0)
    data = encode(Image.fromarray(rng.integers(0, 255, (200, 200, 3), dtype=np.uint8)), "JPEG")[:-2000]
    Image.open(io.BytesIO(data)).verify()  # does not complain, which is why the pixels are decoded
    with pytest.raises(ImageError, match="damaged"):
        load_image(data)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"a\.jpg: the file is empty \(0 bytes\)"),
        (b"This is a text file.\n" * 50, r"a\.jpg: not a picture in a known format; expected JPEG"),
        (b"\x89PNG\r\n\x1a\n", r"a\.jpg: "),
        (b"\xff\xd8\xff\xe0", r"a\.jpg: "),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", r"a\.jpg: not a picture"),
    ],
)
def test_what_is_no_picture_is_one_clear_error(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(content)
    with pytest.raises(ImageError, match=message):
        load_image(path)


@pytest.mark.parametrize("form", ["EPS", "PDF", "ICO", "PPM"])
def test_other_formats_are_refused_before_their_reader_starts(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(picture(), form)
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("Ghostscript was started"))
    with pytest.raises(ImageError, match="not a picture in a known format; expected JPEG, PNG, TIFF, BMP, WebP or GIF"):
        load_image(data)


def test_a_missing_file_is_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_image(tmp_path / "absent.jpg")


def test_find_images_is_sorted_and_leaves_out_what_is_hidden(tmp_path: Path) -> None:
    for name in ("b.JPG", "a.png", "sub/c.tiff", ".hidden.png", ".cache/d.png", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert [p.relative_to(tmp_path).as_posix() for p in find_images(tmp_path)] == ["a.png", "b.JPG", "sub/c.tiff"]
    assert find_images(tmp_path / "absent") == []
