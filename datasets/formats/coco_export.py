"""Reader for a COCO data set on disk: photographs with sign boxes, whose category names are the labels.

    ROOT/{train,valid,test}/_annotations.coco.json   the data set's own splits, pictures beside the JSON; ``dev`` and
                                                     ``val`` are names of ``valid``
    ROOT/*.json                                      one file, pictures beside it or in ``images``; split here, by
                                                     tablet: of pictures in folders each folder is one (a camera's
                                                     names say nothing); else as file names tell, else by photograph

Labels are kept as they are written, in NFC. Boxes are judged by `dubsar.datasets.formats.coco`.
"""

from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from unicodedata import normalize

from PIL import Image

from dubsar.datasets.formats.coco import read_coco
from dubsar.datasets.formats.collect import label_of
from dubsar.datasets.formats.folders import SPLIT_FOLDERS, original_name, tablet_in_name
from dubsar.datasets.formats.tablet_signs import Photograph, SignBox
from dubsar.datasets.issues import Issue
from dubsar.datasets.splits import Record, draw_splits, find_leaks, unnumbered
from dubsar.datasets.tablet import Tablet

JSON = "_annotations.coco.json"
_EXPECTED = f"expected ROOT/train/{JSON} with valid and test beside it, or one COCO file in ROOT"


@dataclass(frozen=True)
class CocoFile:
    """One COCO file of a data set; ``split`` is empty where its pictures are split here."""

    path: Path
    split: str


def find_coco(root: Path) -> list[CocoFile]:
    """Find the COCO files of a data set.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: none or no unambiguous one is there; the message says what was expected.
    """
    if not root.is_dir():
        what = "is a file; give the folder that it lies in" if root.is_file() else "no such folder"
        raise FileNotFoundError(f"{root}: {what}; {_EXPECTED}")
    of_splits = {name: root / name for name in SPLIT_FOLDERS if (root / name).is_dir()}
    if of_splits:
        missing = [str(folder / JSON) for folder in of_splits.values() if not (folder / JSON).is_file()]
        if missing:
            raise ValueError(f"{root}: {missing[0]} is not there; {_EXPECTED}")
        dev = [name for name in of_splits if SPLIT_FOLDERS[name] == "dev"]
        if len(dev) > 1:
            raise ValueError(f"{root}: holds {' and '.join(dev)}, which are names of one split; keep one of them")
        return [CocoFile(folder / JSON, SPLIT_FOLDERS[name]) for name, folder in of_splits.items()]
    found = sorted(p for p in root.glob("*.json") if not p.name.startswith("."))
    if len(found) != 1:
        what = f"{len(found)} JSON files ({', '.join(p.name for p in found)})" if found else "no JSON file"
        raise ValueError(f"{root}: holds {what}; {_EXPECTED}")
    return [CocoFile(found[0], "")]


def list_coco(root: Path, tablet_pattern: str = "") -> tuple[list[Photograph], list[Issue]]:
    """List all photographs of a data set with the boxes that can be used; what cannot is listed. No picture is opened.

    Raises:
        FileNotFoundError, ValueError: see `find_coco`; or a file is no COCO JSON, with file and line.
    """
    photographs: list[Photograph] = []
    issues: list[Issue] = []
    files = find_coco(root)
    for file in files:
        tablets, found = read_coco(file.path, ignore_unknown=True)
        issues += found
        photographs += [_photograph(root, file, tablet, tablet_pattern) for tablet in tablets]
    if files[0].split:
        issues += find_leaks([Record((p.object_id,), p.split, p.path, 0) for p in photographs])
    else:
        splits = draw_splits([[p.object_id] for p in photographs])
        photographs = [_in_split(p, split) for p, split in zip(photographs, splits, strict=True)]
    return sorted(photographs, key=lambda p: p.file), issues


def read_coco_split(
    root: Path, split: str, tablet_pattern: str = "", *, ignore_unknown: bool = False
) -> tuple[list[Photograph], list[Issue]]:
    """Read the photographs of one split with their boxes, sorted by file.

    Args:
        root: the data set's folder.
        split: ``train``, ``dev`` or ``test``.
        tablet_pattern: see `dubsar.datasets.formats.folders.tablet_in_name`.
        ignore_unknown: drop and list boxes that cannot be used, instead of refusing the file.

    Raises:
        FileNotFoundError: see `find_coco`.
        ValueError: likewise; with file and line a box of this split that cannot be used; or the JSON gives a picture
            another size than it has.
    """
    known, _ = list_coco(root, tablet_pattern)
    chosen = {p.file: p for p in known if p.split == split}
    photographs: list[Photograph] = []
    issues: list[Issue] = []
    for file in find_coco(root):
        if file.split in {"", split}:
            folder = file.path.parent
            tablets, found = read_coco(
                file.path,
                ignore_unknown=ignore_unknown,
                wanted=lambda name, folder=folder: _place(root, folder, name)[1] in chosen,  # type: ignore[misc]
            )
            issues += found
            photographs += [_in_split(_photograph(root, file, t, tablet_pattern), split) for t in tablets]
    for photograph in photographs:
        _check_size(photograph)
    return sorted(photographs, key=lambda p: p.file), issues


def _photograph(root: Path, file: CocoFile, tablet: Tablet, pattern: str) -> Photograph:
    if not tablet.image:
        raise ValueError(f"{file.path}: a picture has no file_name; expected one beside the JSON or in images/")
    path, name = _place(root, file.path.parent, tablet.image)
    boxes = []
    for sign in tablet.signs():
        label = normalize("NFC", label_of(sign))
        if sign.box is not None:
            boxes.append(SignBox(name, sign.box, label, label, "", "", file.split, "", "coco", 0))
    known_as = _tablet(PurePosixPath(tablet.image).with_suffix(""), pattern)
    return Photograph(name, path, known_as, "", tablet.width, tablet.height, file.split, "coco", tuple(boxes))


def _tablet(name: PurePosixPath, pattern: str) -> str:
    """Return the tablet of a picture by its name below the JSON file; what the user's pattern finds comes first."""
    folder = "/".join(part for part in name.parts[:-1] if part != "images")
    if folder:
        return (pattern and tablet_in_name(str(name), "", pattern)) or unnumbered(folder)
    return tablet_in_name(name.name, "", pattern) or unnumbered(original_name(name.name))


def _place(root: Path, folder: Path, name: str) -> tuple[Path, str]:
    """Return where a picture lies, and its name below the root.

    Raises:
        ValueError: the name leads out of the data set.
    """
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"{folder}: file_name {name!r} leads out of the data set; expected a name below {folder}")
    path = folder / name
    if not path.exists() and (folder / "images" / name).exists():
        path = folder / "images" / name
    return path, path.relative_to(root).as_posix()


def _in_split(photograph: Photograph, split: str) -> Photograph:
    return replace(photograph, split=split, boxes=tuple(replace(b, split=split) for b in photograph.boxes))


def _check_size(photograph: Photograph) -> None:
    """Refuse a picture of another size than the JSON says: its boxes would be cut elsewhere."""
    try:
        with Image.open(photograph.path) as image:
            size = image.size
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return  # opening it for its pixels says what is wrong
    if size != (photograph.width, photograph.height):
        raise ValueError(
            f"{photograph.path}: the JSON says {photograph.width} x {photograph.height} pixels, the file has "
            f"{size[0]} x {size[1]}; boxes are in the file's own pixels, before any EXIF rotation: export it again"
        )
