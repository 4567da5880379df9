"""The report page: complete, self-contained, and nothing from outside runs in it."""

import base64
import hashlib
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from dubsar.datasets.images import LoadedImage
from dubsar.datasets.inventory import Inventory, SignClass
from dubsar.datasets.tablet import Candidate, Face, Line, Sign, Tablet
from dubsar.pipelines.reading.export import NO_SIGNS
from dubsar.pipelines.reading.report import MAX_SIDE, write_report

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg onload=alert(1)>",
    "</title></script>",
]


class Page(HTMLParser):
    """The elements and the text of a page, as a browser would see them."""

    VOID = frozenset({"meta", "image", "br", "img", "link"})

    def __init__(self, source):
        super().__init__()
        self.elements, self.text, self.open = [], [], []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append((tuple(self.open), data))

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]


def picture(width=120, height=80, orientation=1):
    upright = (width, height) if orientation < 5 else (height, width)
    return LoadedImage(np.full((upright[1], upright[0], 3), 90, np.uint8), orientation, (width, height))


def sign(x, text="lugal", damage="intact", confidence=0.5):
    candidates = (Candidate(glyph="𒈗", name=text, probability=0.75), Candidate(glyph="𒀀", name="A", probability=0.2))
    return Sign(box=(x, 10, x + 10, 18), candidates=candidates, reading=text, damage=damage, confidence=confidence)


def tablet(width=120, height=80, text="lugal"):
    lines = (
        Line(
            label="1", signs=(sign(20, text), Sign(damage="broken"), sign(60, text, "damaged")), text=f"{text}-uš […] x"
        ),
        Line(label="2", signs=(sign(30, text, confidence=0.875),), text=text),
    )
    return Tablet(
        identifier=text,
        image=f"{text}.jpg",
        width=width,
        height=height,
        faces=(Face(name="obverse", lines=lines), Face(name="reverse", lines=lines[1:])),
        provenance={text: text},
        notes=(text,),
    )


def report(image, read, tmp_path):
    write_report(image, read, tmp_path / "report.html")
    return (tmp_path / "report.html").read_text("utf-8")


def test_lines_and_boxes_point_to_one_another(tmp_path):
    page = Page(report(picture(), tablet(), tmp_path))
    rects = page.all("rect")
    assert [(r["data-line"], r["data-sign"]) for r in rects] == [("0", "0"), ("0", "2"), ("1", "0"), ("2", "0")]
    assert [i["data-line"] for i in page.all("li")] == ["0", "1", "2"]
    assert all(i["tabindex"] == "0" for i in page.all("li"))  # reached without a mouse
    spans = {(s["data-line"], s["data-sign"]) for s in page.all("span") if "data-sign" in s}
    assert spans == {("0", "0"), ("0", "1"), ("0", "2"), ("1", "0"), ("2", "0")}
    assert [float(rects[1][k]) for k in ("x", "y", "width", "height")] == [60, 10, 10, 8]
    assert (rects[1]["class"], rects[2]["style"]) == ("damaged", "--c:0.875")


def test_text_candidates_notes_and_provenance_are_shown(tmp_path):
    page = Page(report(picture(), tablet(), tmp_path))
    texts = [t for _, t in page.text]
    assert [t for t in texts if t in ("obverse", "reverse")] == ["obverse", "reverse"]
    assert "lugal-uš […] x" in texts
    tooltips = [t for path, t in page.text if path[-2:] == ("rect", "title")]
    assert len(tooltips) == 4
    assert all("𒈗 lugal 75%, 𒀀 A 20%" in t for t in tooltips)
    assert [t for path, t in page.text if path[0:2] == ("html", "body") and "footer" in path].count("lugal") == 3


def test_tooltips_name_the_catalogue_numbers(tmp_path):
    inventory = Inventory((SignClass("𒈗", "LUGAL", "266", "115", "151"), SignClass("𒀀", "A", "839", "364|365", "579")))
    write_report(picture(), tablet(), tmp_path / "report.html", inventory)
    page = Page((tmp_path / "report.html").read_text("utf-8"))
    tooltips = [t for path, t in page.text if path[-2:] == ("rect", "title")]
    assert tooltips[0].split(" · ") == [
        *("lugal", "𒈗 lugal 75%, 𒀀 A 20%", "MZL 266", "HZL 115", "ABZ 151", "intact", "confidence 50%")
    ]
    spans = [s["title"] for s in page.all("span") if "data-sign" in s]
    assert [t for t in spans if "MZL 266" in t] == tooltips
    assert spans[1].startswith("none · broken")  # a lost stretch has no number


@pytest.mark.parametrize("text", HOSTILE)
def test_labels_file_names_and_readings_are_shown_as_text(text, tmp_path):
    plain, page = (Page(report(picture(), tablet(text=t), tmp_path)) for t in ("lugal", text))
    # the page has the very same elements and attributes: nothing of the text became markup
    assert [(tag, sorted(attrs)) for tag, attrs in page.elements] == [
        (tag, sorted(attrs)) for tag, attrs in plain.elements
    ]
    assert page.open == []
    assert any(text in t for path, t in page.text if path[-1:] == ("h1",))
    assert sum(text in t for path, t in page.text if path[-2:] == ("rect", "title")) == 4


def test_policy_allows_only_the_page_s_own_script(tmp_path):
    source = report(picture(), tablet(), tmp_path)
    (script,) = re.findall(r"<script>(.*?)</script>", source, re.S)
    policy = next(m["content"] for m in Page(source).all("meta") if "http-equiv" in m)
    assert f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy
    assert "default-src 'none'" in policy
    assert "script-src 'unsafe-inline'" not in policy


def test_nothing_is_fetched(tmp_path):
    source = report(picture(), tablet(), tmp_path)
    page = Page(source)
    assert not re.search(r"https?://|url\(|@import|//cdn", source)
    links = [v for _, attrs in page.elements for k, v in attrs.items() if k in ("src", "href", "srcset", "data")]
    assert len(links) == 1
    assert links[0].startswith("data:image/jpeg;base64,")


def embedded(source):
    data = re.search(r'href="data:image/jpeg;base64,([^"]+)"', source)[1]
    return Image.open(io.BytesIO(base64.b64decode(data)))


def test_large_photographs_are_embedded_smaller_and_boxes_still_fit(tmp_path):
    source = report(picture(3000, 1500), tablet(3000, 1500), tmp_path)
    assert embedded(source).size == (MAX_SIDE, 1000)
    page = Page(source)
    assert page.all("svg")[0]["viewbox"] == "0 0 3000 1500"
    assert page.all("image")[0]["width"] == "3000"


def test_small_photographs_are_not_enlarged(tmp_path):
    assert embedded(report(picture(), tablet(), tmp_path)).size == (120, 80)


def test_boxes_follow_the_orientation_of_the_photograph(tmp_path):
    page = Page(report(picture(orientation=6), tablet(), tmp_path))  # the camera was turned: upright is 80 x 120
    assert page.all("svg")[0]["viewbox"] == "0 0 80 120"
    rect = page.all("rect")[0]
    assert [float(rect[k]) for k in ("x", "y", "width", "height")] == [62, 20, 8, 10]


def test_a_tablet_without_signs_says_so(tmp_path):
    empty = Tablet(identifier="P1", width=120, height=80)
    page = Page(report(picture(), empty, tmp_path))
    assert page.all("rect") == []
    assert NO_SIGNS in [t for _, t in page.text]


def test_a_report_on_another_picture_is_refused(tmp_path):
    with pytest.raises(ValueError, match="give the photograph that was read"):
        write_report(picture(60, 40), tablet(), tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []
