"""Synthetic tablets: layout, and pictures whose boxes and labels can be trusted."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from dubsar.datasets.synthetic.clay import Light, Stylus, bent, press, shade
from dubsar.datasets.synthetic.glyphs import FontError, GlyphFont, load_noto
from dubsar.datasets.synthetic.layout import MAX_FACES, damage_of, draw_style, fitted, place_faces
from dubsar.datasets.synthetic.scene import (
    TabletPlan,
    paint_tablet,
    plan_tablet,
    render_sign,
    render_tablet,
    write_tablets,
)
from dubsar.datasets.synthetic.sentences import TextLine
from dubsar.datasets.tablet import Tablet

SMALL = (420, 480)
LINES = [("𒈗𒆳𒆳 𒀀𒈾𒂍", "LUGAL KUR-KUR a-na É"), ("𒀭𒈾𒊏…𒆠", "an-na-ra … ki"), ("𒄿𒈾", "i-na")]


def _loaded(load, *args) -> GlyphFont:
    try:
        return load(*args)
    except FontError as error:
        pytest.skip(f"font not installed: {error}")


@pytest.fixture(scope="module")
def noto() -> GlyphFont:
    return _loaded(load_noto)


def _plan(seed: int, font: GlyphFont, **changes) -> TabletPlan:
    arguments = {
        "lines": None,
        "size": SMALL,
        "light_deg": 315.0,
        "faces": 1,
        "sign_height_px": (34.0, 40.0),
        "glyphs": (),
    }
    return plan_tablet(seed, fonts=[font], **{**arguments, **changes})


def _with_face(plan: TabletPlan, **changes) -> TabletPlan:
    return dataclasses.replace(plan, faces=(dataclasses.replace(plan.faces[0], **changes),))


def _whole(plan: TabletPlan) -> TabletPlan:
    return _with_face(plan, cuts=(), breaks=())


# --- layout ---


@pytest.mark.parametrize(("share", "damage"), [(1, "intact"), (0.85, "intact"), (0.84, "damaged"), (0.3, "damaged")])
def test_damage_of_visible_share(share, damage):
    assert damage_of(share) == damage


def test_little_visible_is_broken():
    assert damage_of(0.29) == damage_of(0.0) == "broken"


@pytest.mark.parametrize("size", [(900, 1100), (1000, 500), (64, 64)])
def test_faces_do_not_overlap_and_stay_on_the_picture(size):
    for n_faces in range(1, MAX_FACES + 1):
        boxes = [box for _, box in place_faces(np.random.default_rng(n_faces), size, n_faces)]
        assert len(boxes) == n_faces
        covered = np.zeros(size[::-1], int)
        for x0, y0, x1, y1 in boxes:
            assert 0 <= x0 < x1 <= size[0]
            assert 0 <= y0 < y1 <= size[1]
            covered[y0:y1, x0:x1] += 1
        assert covered.max() == 1


def test_long_lines_are_cut_without_text_and_short_ones_joined(noto):
    style = draw_style(np.random.default_rng(0), noto, (40, 40))
    source = fitted(iter([TextLine(("𒈗",) * 300, "LUGAL " * 300)]), style, noto)
    cut = source(8.0)
    assert cut is not None
    assert 0 < len(cut.glyphs) < 20
    assert cut.text == ""
    short = TextLine(("𒀀", "𒈾"), "a-na", ("a", "na"))
    joined = fitted(iter([short] * 3), style, noto)(12.0)
    assert joined == TextLine(("𒀀", "𒈾") * 3, "a-na a-na a-na", ("a", "na") * 3)
    assert fitted(iter([]), style, noto)(8.0) is None


# --- pictures ---


def test_the_same_seed_gives_the_same_bytes(noto):
    first, again, other = (render_tablet(seed, fonts=[noto], size=SMALL, lines=LINES) for seed in (3, 3, 4))
    assert np.array_equal(first.rgb_HW3, again.rgb_HW3)
    assert first.tablet == again.tablet
    assert first.rgb_HW3.shape == (480, 420, 3)
    assert first.rgb_HW3.dtype == np.uint8
    assert not np.array_equal(first.rgb_HW3, other.rgb_HW3)
    assert first.tablet.identifier == "synthetic-3"
    crops = [render_sign("𒈗", noto, np.random.default_rng(5), 48) for _ in range(2)]
    assert np.array_equal(*crops)


@pytest.mark.parametrize("seed", range(4))
def test_boxes_are_exact(noto, seed):
    """Taking one sign away changes the picture inside its box, on all four sides of it, and nearly nowhere else."""
    plan = _whole(_plan(seed, noto))
    plan = dataclasses.replace(plan, stylus=Stylus(2.0, 1.0, 9.0))
    made = paint_tablet(plan)
    line_no = len(plan.faces[0].lines) // 2
    line = plan.faces[0].lines[line_no]
    for k in (0, len(line.signs) // 2, len(line.signs) - 1):
        x0, y0, x1, y1 = map(int, made.tablet.faces[0].lines[line_no].signs[k].box)
        fewer = dataclasses.replace(
            line,
            text=TextLine(line.text.glyphs[:k] + line.text.glyphs[k + 1 :], ""),
            signs=line.signs[:k] + line.signs[k + 1 :],
        )
        lines = list(plan.faces[0].lines)
        lines[line_no] = fewer
        without = paint_tablet(_with_face(plan, lines=tuple(lines)))
        change_HW = np.abs(made.rgb_HW3.astype(int) - without.rgb_HW3).sum(2)
        change_HW[change_HW < 0.25 * change_HW.max()] = 0
        inside = change_HW[max(0, y0 - 2) : y1 + 2, max(0, x0 - 2) : x1 + 2].sum() / change_HW.sum()
        assert inside > 0.97
        rows, columns = np.flatnonzero(change_HW.any(1)), np.flatnonzero(change_HW.any(0))
        assert rows[0] < y0 + 0.2 * (y1 - y0) + 3
        assert rows[-1] > y1 - 0.2 * (y1 - y0) - 3
        assert columns[0] < x0 + 0.2 * (x1 - x0) + 3
        assert columns[-1] > x1 - 0.2 * (x1 - x0) - 3


def test_damage_follows_the_visible_share_of_the_ink(noto):
    plan = _whole(_plan(1, noto, lines=[("𒈗𒂍𒌌𒈗", "LUGAL É ul LUGAL")]))
    placed = plan.faces[0].lines[0].signs[0]
    whole = paint_tablet(plan).tablet.faces[0].lines[0].signs[0]
    assert whole.damage == "intact"
    mark = press(bent(noto.shape("𒈗"), np.random.default_rng(placed.hand)), placed.pose, plan.stylus)
    ink_X = (mark.depth_HW > 0).sum(0)
    x0, y0, x1, y1 = whole.box
    seen = []
    for part in (0.03, 0.3, 0.5, 0.9, 1.2):  # break away the sign from the left
        edge = round(x0 + part * (x1 - x0))
        patch = np.array([(x0 - 3, y0 - 9), (edge, y0 - 9), (edge, y1 + 9), (x0 - 3, y1 + 9)])
        sign = paint_tablet(_with_face(plan, breaks=(patch,))).tablet.faces[0].lines[0].signs[0]
        share = ink_X[edge + 1 - mark.x0 :].sum() / ink_X.sum()
        assert sign.damage == damage_of(share), share
        seen.append(sign.damage)
        if sign.box is not None:
            assert edge <= sign.box[0] <= edge + 6, "a box holds visible ink only"
            assert sign.glyph == whole.glyph
        else:
            assert sign.candidates == ()
    assert (seen[0], seen[-2], seen[-1]) == ("intact", "broken", "broken")
    assert "damaged" in seen


def test_lost_signs_stay_in_the_line_and_leave_the_text(noto):
    plan = _whole(_plan(2, noto, lines=[("𒈗𒆳𒀀𒈾𒂍𒀭𒈾𒊏", "LUGAL KUR a-na É an-na-ra")]))
    face = plan.faces[0]
    boxes = [s.box for s in paint_tablet(plan).tablet.faces[0].lines[0].signs]
    patch = np.array(
        [(boxes[2][0] - 1, 0), (boxes[3][2] + 1, 0), (boxes[3][2] + 1, SMALL[1]), (boxes[2][0] - 1, SMALL[1])]
    )
    line = paint_tablet(_with_face(plan, breaks=(patch,))).tablet.faces[0].lines[0]
    assert [s.glyph for s in line.signs[:4]] == ["𒈗", "𒆳", "", "𒂍"], "one entry for the run of lost signs"
    assert line.signs[2].damage == "broken"
    assert line.text.startswith("LUGAL KUR […]")
    assert "a-na É" not in line.text.split("an-na-ra")[0]
    x0, y0, x1, y1 = face.box_px
    everything = np.array([(x0, y0), (x1, y0), (x1, y1), (x0, y1)], float)
    assert paint_tablet(_with_face(plan, cuts=(everything,))).tablet.faces[0].lines == ()


def test_reading_order(noto):
    for seed in range(3):
        tablet = render_tablet(seed, fonts=[noto], size=(600, 700), faces=2).tablet
        assert [face.name for face in tablet.faces] == ["obverse", "reverse"]
        for face in tablet.faces:
            middles = []
            for line in face.lines:
                boxes = [s.box for s in line.signs if s.box is not None]
                centres = [(b[0] + b[2]) / 2 for b in boxes]
                assert centres == sorted(centres)
                if boxes:
                    middles.append(np.mean([(b[1] + b[3]) / 2 for b in boxes]))
            assert middles == sorted(middles)
            assert [line.label.rstrip("′") for line in face.lines] == [str(n + 1) for n in range(len(face.lines))]


def test_text_of_corpus_lines_and_broken_stretches(noto):
    tablet = paint_tablet(_whole(_plan(5, noto, lines=LINES))).tablet
    texts = {text for _, text in LINES}
    for _, line in tablet.lines():
        assert line.text
        rest = line.text
        for text in texts:
            rest = rest.replace(text, "")
        assert rest.strip() == ""
        assert all(s.glyph and s.box and s.candidates[0].probability == 1 for s in line.signs if s.damage == "intact")
    lost = [s for s in tablet.signs() if s.box is None]
    assert lost
    assert all(s.damage == "broken" and not s.candidates for s in lost)


def test_no_lines_give_a_blank_tablet(noto):
    for lines in ([], [("", "")], [("xx…", "x x")]):
        made = render_tablet(1, fonts=[noto], size=SMALL, lines=lines)
        assert list(made.tablet.signs()) == []
        assert made.rgb_HW3.max() > 60


def test_faults_of_the_caller_are_named(noto):
    with pytest.raises(FontError, match="no font given"):
        render_tablet(1, fonts=[])
    with pytest.raises(ValueError, match="faces is 7; expected 1 to 6"):
        render_tablet(1, fonts=[noto], faces=7)
    with pytest.raises(ValueError, match=r"sign_height_px is \(9, 3\)"):
        render_tablet(1, fonts=[noto], sign_height_px=(9, 3))
    with pytest.raises(ValueError, match="size is 10 x 900"):
        render_tablet(1, fonts=[noto], size=(10, 900))


def test_light_comes_from_where_it_is_asked(noto):
    bump_HW = np.zeros((41, 41), np.float32)
    bump_HW[10:31, 10:31] = np.outer(np.hanning(21), np.hanning(21)) * 8
    for azimuth, row, column in ((0, 13, 20), (90, 20, 27), (180, 27, 20), (270, 20, 13)):
        lit_HW = shade(bump_HW, Light(azimuth, 40, 0.2))
        assert lit_HW[row, column] > lit_HW[40 - row, 40 - column] + 0.2
    assert render_tablet(1, fonts=[noto], size=SMALL, light_deg=-45).tablet.provenance["light_deg"] == "315.0"


@pytest.mark.parametrize("keep_aspect", [True, False])
def test_render_sign(noto, keep_aspect):
    for size in (32, 64):
        crop = render_sign("𒈗", noto, np.random.default_rng(size), size, keep_aspect=keep_aspect)
        assert crop.shape == (size, size, 3)
        assert crop.dtype == np.uint8
        assert crop.std() > 2
    with pytest.raises(FontError, match=r"U\+1239A"):
        render_sign("\U0001239a", noto, np.random.default_rng(0))
    assert render_sign("𒈗", noto, np.random.default_rng(0), neighbours=()).shape == (64, 64, 3)


def test_write_tablets(tmp_path, noto):
    out = tmp_path / "made"
    watched = []
    paths = write_tablets(2, out, 7, [noto], LINES, watch=lambda numbers: watched.append(numbers) or numbers)
    assert watched == [range(1, 3)]
    assert [p.name for p in paths] == ["synthetic-000001.png", "synthetic-000002.png"]
    tablet = Tablet.from_dict(json.loads((out / "synthetic-000002.json").read_text(encoding="utf-8")))
    assert tablet.identifier == "synthetic-8"
    assert tablet.image == "synthetic-000002.png"
    with Image.open(out / tablet.image) as image:
        assert image.size == (tablet.width, tablet.height)
        assert np.array_equal(np.asarray(image), render_tablet(8, fonts=[noto], lines=LINES).rgb_HW3)
    with pytest.raises(FileExistsError, match=r"made is not empty.*name a new folder"):
        write_tablets(1, out, 7, [noto])
    shutil.rmtree(out)
    assert write_tablets(0, out, 7, [noto]) == []
