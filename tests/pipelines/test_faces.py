"""Composite photographs, drawn: views are found and named, scale bars and debris are not taken for views."""

import time

import numpy as np
import pytest
from PIL import Image, ImageDraw

from dubsar.pipelines.reading.faces import FaceView, assign_faces, split_faces, squarely_seen

CROSS = {
    "top": (400, 40, 800, 150),
    "obverse": (400, 200, 800, 800),
    "left": (250, 200, 350, 800),
    "right": (850, 200, 950, 800),
    "bottom": (400, 850, 800, 960),
    "reverse": (400, 1010, 800, 1610),
}
GROUNDS = {"black": (4, 4, 4), "white": (250, 250, 250), "light grey": (205, 207, 210), "dark blue": (20, 30, 70)}


def photograph(views, ground=(4, 4, 4), size=(1200, 1900), bar=False, seed=0):
    rng = np.random.default_rng(seed)
    rgb = np.clip(np.array(ground) + rng.normal(0, 2, (size[1], size[0], 3)), 0, 255)
    clay = rng.normal((150, 110, 80), 4, (size[1], size[0], 3))
    clay += np.kron(rng.normal(0, 18, (size[1] // 10 + 1, size[0] // 10 + 1)), np.ones((10, 10)))[
        : size[1], : size[0], None
    ]
    mask = Image.new("L", size)
    for box in views:
        ImageDraw.Draw(mask).rounded_rectangle(box, radius=25, fill=255)
    rgb = np.where(np.asarray(mask)[:, :, None] > 0, clay, rgb)
    picture = Image.fromarray(np.clip(rgb, 0, 255).astype(np.uint8))
    if bar:
        draw = ImageDraw.Draw(picture)
        draw.rectangle((400, 1720, 760, 1760), fill=(215, 215, 215))
        for k, colour in enumerate(["#2222aa", "#22aadd", "#229955", "#eeee33", "#dd2222", "#dd33aa"]):
            draw.rectangle((400 + 60 * k, 1760, 460 + 60 * k, 1800), fill=colour)
        for k in range(6):
            draw.text((410 + 60 * k, 1730), str(k), fill=(20, 20, 20))
    return np.asarray(picture)


def area(box):
    return (box[2] - box[0]) * (box[3] - box[1])


def overlap(a, b):
    """Return intersection over union."""
    shared = [max(0.0, min(a[i + 2], b[i + 2]) - max(a[i], b[i])) for i in (0, 1)]
    return shared[0] * shared[1] / (area(a) + area(b) - shared[0] * shared[1])


@pytest.mark.parametrize("ground", GROUNDS.values(), ids=GROUNDS)
def test_a_cross_of_six_views_with_a_scale_bar(ground):
    faces = split_faces(photograph(CROSS.values(), ground, bar=True))
    assert [f.name for f in faces] == ["obverse", "bottom", "reverse", "top", "left", "right"]
    for face in faces:
        assert np.abs(np.subtract(face.box, CROSS[face.name])).max() < 30, face


def test_views_hold_their_clay_and_do_not_overlap():
    faces = split_faces(photograph(CROSS.values()))
    for face in faces:
        x0, y0, x1, y1 = CROSS[face.name]
        assert overlap(face.box, (x0, y0, x1, y1)) == pytest.approx(area((x0, y0, x1, y1)) / area(face.box))
        assert all(overlap(face.box, other.box) < 1e-4 for other in faces if other is not face)


def test_two_views_one_above_the_other():
    names = [f.name for f in split_faces(photograph([(300, 100, 900, 800), (300, 900, 900, 1700)]))]
    assert names == ["obverse", "reverse"]


def test_views_beside_one_another_are_not_named():
    faces = split_faces(photograph([(50, 100, 550, 800), (620, 100, 1120, 800)], size=(1200, 900)))
    assert [f.name for f in faces] == ["unknown", "unknown"]
    assert faces[0].box[0] < faces[1].box[0]


def test_a_single_view_leaves_out_bar_and_debris():
    debris = [(100, 100, 125, 130), (1100, 1500, 1130, 1525)]
    (face,) = split_faces(photograph([(250, 200, 950, 1500), *debris], bar=True))
    assert face.name == "unknown"
    assert np.abs(np.subtract(face.box, (250, 200, 950, 1500))).max() < 30


def test_views_joined_by_a_dim_seam_are_parted():
    rgb = photograph([(300, 100, 900, 800), (300, 806, 900, 1600)]).copy()
    rgb[790:816, 500:700] = (34, 30, 28)  # the shadow between two views pasted too close
    assert [f.name for f in split_faces(rgb)] == ["obverse", "reverse"]


def test_clay_from_rim_to_rim_is_one_face():
    faces = split_faces(photograph([(-50, -50, 900, 900)], size=(600, 500)))
    assert faces == [FaceView((0.0, 0.0, 600.0, 500.0), "unknown")]


@pytest.mark.parametrize("shape", [(1, 1), (2, 900), (40, 30)])
def test_plain_or_tiny_pictures_are_one_face(shape):
    faces = split_faces(np.full((*shape, 3), 200, np.uint8))
    assert faces == [FaceView((0.0, 0.0, float(shape[1]), float(shape[0])), "unknown")]


def test_a_view_grows_to_hold_signs_on_its_rim():
    view = (300, 300, 800, 900)
    rgb = photograph([view], size=(1200, 1200))
    (plain,) = split_faces(rgb)
    sign = [plain.box[2] - 40, 500, plain.box[2] + 20, 560]
    (grown,) = split_faces(rgb, [sign])
    assert grown.box[2] == sign[2] > plain.box[2]
    assert grown.box[:2] == plain.box[:2]


def test_signs_go_to_the_view_that_holds_them():
    faces = [FaceView((0, 0, 100, 100), "obverse"), FaceView((0, 110, 100, 200), "reverse")]
    boxes = [[10, 10, 30, 30], [10, 150, 30, 170], [10, 90, 30, 118], [500, 500, 520, 520]]
    assert assign_faces(faces, boxes).tolist() == [0, 1, 0, -1]
    assert assign_faces(faces, []).tolist() == assign_faces([], []).tolist() == []
    assert assign_faces([], boxes).tolist() == [-1] * 4


def test_four_megapixels_are_split_fast():
    rgb = np.asarray(Image.fromarray(photograph(CROSS.values(), bar=True)).resize((1600, 2533)))
    split_faces(rgb)
    start = time.perf_counter()
    split_faces(rgb)
    assert time.perf_counter() - start < 0.6  # a third of that on an idle core


def test_signs_on_edges_and_outside_are_not_squarely_seen() -> None:
    faces = [FaceView((0, 0, 100, 100), "obverse"), FaceView((110, 0, 130, 100), "right")]
    boxes = [[10, 10, 20, 20], [112, 10, 122, 20], [300, 10, 310, 20]]
    assert squarely_seen(faces, boxes).tolist() == [True, False, False]
    assert squarely_seen(faces[1:], boxes).tolist() == [True] * 3  # there is no face to prefer
    assert squarely_seen(faces, []).tolist() == []
