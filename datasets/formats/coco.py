"""COCO detection JSON: ``images``, ``categories`` with arbitrary ids, ``annotations`` with ``bbox`` as [x, y, w, h].

Boxes are in pixels of the picture; a picture without annotations is a tablet without signs. ``iscrowd`` marks a region,
not a sign: listed, not read. Messages carry the line of the JSON file where the faulty object begins.
"""

import bisect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard

from dubsar.datasets.formats.collect import BoxCollector, candidate_for, is_cuneiform, label_of
from dubsar.datasets.inventory import Inventory
from dubsar.datasets.issues import Issue
from dubsar.datasets.tablet import Face, Line, Sign, Tablet

_LINE = "\x00line"


def read_coco(
    path: Path,
    *,
    glyph_of: dict[str, str] | None = None,
    ignore_unknown: bool = False,
    wanted: Callable[[str], bool] | None = None,
) -> tuple[list[Tablet], list[Issue]]:
    """Read a COCO file as tablets, one a picture, each with one face and one unlabelled line.

    Args:
        path: the JSON file.
        glyph_of: glyph by category name, for names that are not cuneiform themselves.
        ignore_unknown: drop and list a bad box instead of refusing the file.
        wanted: which pictures to read, by file name, with their boxes; all where None.

    Returns:
        The tablets in the order of ``images``, and what was found wrong.

    Raises:
        ValueError: not COCO JSON, or with file and line a picture that cannot be used, or (``ignore_unknown`` off) a
            box that cannot.
    """
    data = _load(path)
    names, issues = _names(path, data["categories"], ignore_unknown)
    pictures: dict[int | str, tuple[dict[str, Any], BoxCollector]] = {}
    for image in data["images"]:
        size, ident = _size(path, image), image.get("id")
        if not _is_id(ident):
            fault = f"picture {image.get('file_name')!r} has id {ident!r}; expected a whole number or a text"
            raise ValueError(f"{path}:{image[_LINE]}: {fault}")
        if ident in pictures:
            raise ValueError(f"{path}:{image[_LINE]}: image id {ident!r} stands twice; ids must differ")
        pictures[ident] = (image, BoxCollector(path, size, ignore_unknown, refuse_duplicates=True))
    others = {i for i, (image, _) in pictures.items() if wanted and not wanted(str(image.get("file_name", "")))}
    orphans = BoxCollector(path, None, ignore_unknown)
    for annotation in data["annotations"]:
        ident = annotation.get("image_id")
        if _is_id(ident) and ident in others:
            continue
        if _is_id(ident) and ident in pictures:
            _add(pictures[ident][1], annotation, names, glyph_of)
        else:
            orphans.reject(annotation[_LINE], f"image_id {ident!r} is not among the images")
    issues.extend(orphans.finish())
    chosen = [picture for ident, picture in pictures.items() if ident not in others]
    for _, boxes in chosen:
        issues.extend(boxes.finish())
    return [_tablet(image, boxes, path) for image, boxes in chosen], sorted(issues, key=lambda i: i.line)


def write_coco(path: Path, tablets: list[Tablet], inventory: Inventory | None = None) -> list[Issue]:
    """Write tablets as COCO JSON; return what the format cannot hold.

    Args:
        path: where to write.
        tablets: signs without a box, and signs that are not in the inventory, are listed and left out.
        inventory: its class ids become category ids and its glyphs the names; where None, categories are the labels
            met, counted from 1.
    """
    issues: list[Issue] = []
    if inventory is not None:
        ids = dict(inventory.id_of_glyph)
    else:
        labels = sorted({s.glyph or label_of(s) for t in tablets for s in t.signs() if s.box})
        ids = {label: number for number, label in enumerate(labels, start=1)}
    annotations: list[dict[str, Any]] = []
    for image_id, tablet in enumerate(tablets, start=1):
        for sign in tablet.signs():
            label = sign.glyph or label_of(sign)
            if sign.box is None or label not in ids:
                what = f"sign {label!r} is not in the inventory" if sign.box else "a sign has no box"
                issues.append(Issue(path, 0, f"{tablet.identifier}: {what}; left out", "warning"))
                continue
            x0, y0, x1, y1 = sign.box
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image_id,
                    "category_id": ids[label],
                    "bbox": [x0, y0, x1 - x0, y1 - y0],
                    "area": (x1 - x0) * (y1 - y0),
                    "iscrowd": 0,
                }
            )
    images = [
        {"id": n, "file_name": t.image or t.identifier, "width": t.width, "height": t.height}
        for n, t in enumerate(tablets, start=1)
    ]
    categories = [{"id": number, "name": label} for label, number in ids.items()]
    document = {"images": images, "categories": categories, "annotations": annotations}
    path.write_text(json.dumps(document, ensure_ascii=False, indent=1), encoding="utf-8", newline="\n")
    return issues


class _LineDecoder(json.JSONDecoder):
    """A JSON decoder that notes in each object the line on which it begins."""

    def __init__(self, newlines: list[int]) -> None:
        super().__init__()
        inner: Any = json.decoder.JSONObject  # type: ignore[attr-defined]
        scanner: Any = json.scanner  # type: ignore[attr-defined]

        def parse_object(text_and_end: tuple[str, int], *args: Any) -> tuple[dict[str, Any], int]:
            found, end = inner(text_and_end, *args)
            found[_LINE] = bisect.bisect_left(newlines, text_and_end[1]) + 1
            return found, end

        self.parse_object = parse_object
        self.scan_once = scanner.py_make_scanner(self)


def _load(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        newlines = [i for i, c in enumerate(text) if c == "\n"]
        data = _LineDecoder(newlines).decode(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: not JSON ({error.msg})") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 ({error})") from error
    except RecursionError as error:
        raise ValueError(f"{path}: nested too deeply for COCO") from error
    keys = ("images", "categories", "annotations")
    wrong = [k for k in keys if not isinstance(data, dict) or not isinstance(data.get(k), list)]
    if wrong:
        raise ValueError(f"{path}:1: {', '.join(wrong)} absent or no list; expected COCO JSON with {', '.join(keys)}")
    for key in keys:
        if not all(isinstance(item, dict) for item in data[key]):
            raise ValueError(f"{path}:1: {key} holds something that is no object")
    return dict(data)


def _size(path: Path, image: dict[str, Any]) -> tuple[int, int]:
    width, height, name = image.get("width"), image.get("height"), image.get("file_name")
    if not (isinstance(width, int) and isinstance(height, int) and width > 0 and height > 0):
        raise ValueError(
            f"{path}:{image[_LINE]}: picture {name!r} is {width!r} x {height!r}; expected whole pixels above 0"
        )
    return width, height


def _is_id(ident: object) -> TypeGuard[int | str]:
    return isinstance(ident, int | str) and not isinstance(ident, bool)


def _names(
    path: Path, categories: list[dict[str, Any]], ignore_unknown: bool
) -> tuple[dict[int | str, str], list[Issue]]:
    """Map the id of each category to its name; one whose id is no id is refused, or dropped and listed."""
    names: dict[int | str, str] = {}
    issues: list[Issue] = []
    for category in categories:
        ident, name = category.get("id"), str(category.get("name", ""))
        if _is_id(ident):
            names[ident] = name
            continue
        fault = f"category {name!r} has id {ident!r}; expected a whole number or a text"
        if not ignore_unknown:
            raise ValueError(f"{path}:{category[_LINE]}: {fault}")
        issues.append(Issue(path, category[_LINE], f"{fault}; the category was dropped"))
    return names, issues


def _add(
    boxes: BoxCollector, annotation: dict[str, Any], names: dict[int | str, str], glyph_of: dict[str, str] | None
) -> None:
    line, ident = annotation[_LINE], annotation.get("id")
    if annotation.get("iscrowd"):
        boxes.skip(line, f"annotation {ident!r} marks a crowd, not a sign; not read")
        return
    category = annotation.get("category_id")
    if not _is_id(category) or category not in names:
        boxes.reject(line, f"annotation {ident!r}: category id {category!r} is not defined")
        return
    try:
        x, y, w, h = (float(v) for v in annotation["bbox"])
    except (KeyError, TypeError, ValueError, OverflowError):
        boxes.reject(line, f"annotation {ident!r}: bbox is {annotation.get('bbox')!r}; expected [x, y, width, height]")
        return
    name = names[category]
    score = annotation.get("score", 1.0)
    confidence = float(score) if isinstance(score, int | float) and 0 <= score <= 1 else 1.0
    candidate = candidate_for(name, glyph_of).model_copy(update={"probability": confidence})
    sign = Sign(candidates=(candidate,), confidence=confidence, provenance="coco")
    if glyph_of is not None and boxes.ignore_unknown and not (is_cuneiform(name) or name in glyph_of):
        boxes.reject(line, f"annotation {ident!r}: unknown label {name!r}")
        return
    boxes.add(line, (x, y, x + w, y + h), name, sign)


def _tablet(image: dict[str, Any], boxes: BoxCollector, path: Path) -> Tablet:
    name = str(image.get("file_name", ""))
    return Tablet(
        identifier=Path(name).stem if name else str(image.get("id")),
        image=name,
        width=image["width"],
        height=image["height"],
        faces=(Face(lines=(Line(label="", signs=tuple(boxes.signs)),)),) if boxes.signs else (),
        provenance={"format": "coco", "file": path.name},
    )
