"""Reader for a folder per class: one picture is one sign, and the folder that it lies in is its label.

    ROOT/{train,valid,test}/CLASS/*.png     the data set's own splits; ``dev`` and ``val`` are names of ``valid``
    ROOT/CLASS/*.png                        split here, by tablet where file names tell it, else by picture

Labels are kept as they are written, in NFC: `SU`, `su`, `šu` and `ŠU` are four classes. Folders whose names differ by
Unicode normalisation alone (macOS writes them decomposed) are one class. What is not used (hidden files, files that
are no pictures, empty classes) is listed; a layout that could be meant in another way is refused.
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from unicodedata import normalize

from PIL import Image

from dubsar.datasets.formats.tablet_signs import Photograph, SignBox
from dubsar.datasets.images import IMAGE_SUFFIXES
from dubsar.datasets.inventory import CATALOGUES
from dubsar.datasets.issues import Issue
from dubsar.datasets.splits import Record, draw_splits, find_leaks, unnumbered

SPLIT_FOLDERS = {"train": "train", "valid": "dev", "val": "dev", "dev": "dev", "test": "test"}
_EXPECTED = "expected ROOT/CLASS/*.png, or ROOT/train/CLASS/*.png with valid and test beside it"
# a program that enlarges data sets calls copies of one picture NAME_jpg.rf.HASH.jpg
_COPY = re.compile(r"(?:[._](?:jpe?g|png|tiff?|bmp|webp|gif))?\.rf\.[0-9A-Za-z]+$", re.IGNORECASE)
_COUNTER = re.compile(r"[-_ ]+\d+$")


@dataclass(frozen=True)
class SignFile:
    """One picture of one sign: where it lies, below what, its label, its tablet as its name tells it, its split."""

    path: Path
    file: str
    label: str
    tablet: str
    split: str

    def photograph(self) -> Photograph:
        """Return it as a photograph with one box, which is the whole picture; only the file's header is read."""
        width, height = _size(self.path)
        box = SignBox(self.file, (0, 0, width, height), self.label, self.label, "", "", self.split, "", "folders", 0)
        return Photograph(self.file, self.path, self.tablet, "", width, height, self.split, "folders", (box,))


def list_folders(root: Path, tablet_pattern: str = "") -> tuple[list[SignFile], list[Issue]]:
    """List the pictures of a folder-per-class data set; none is opened.

    Args:
        root: the data set's folder.
        tablet_pattern: see `tablet_in_name`.

    Returns:
        The pictures sorted by file, and what is left out or doubtful: no entry of the folder is passed over in silence
        but hidden ones, which are counted.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: it has another layout, or no picture; the message says what was expected.
    """
    if not root.is_dir():
        what = "is a file; unpack it first" if root.is_file() else "no such folder"
        raise FileNotFoundError(f"{root}: {what}; {_EXPECTED}")
    issues: list[Issue] = []
    tops = _folders(root, issues)
    named = [t for t in tops if t.name in SPLIT_FOLDERS]
    if named:
        files = _of_splits(root, named, tops, tablet_pattern, issues)
    else:
        drawn = _of_classes(root, root, "", tablet_pattern, issues)
        splits = draw_splits([[f.tablet] for f in drawn])
        files = [SignFile(f.path, f.file, f.label, f.tablet, s) for f, s in zip(drawn, splits, strict=True)]
    if not files:
        raise ValueError(f"{root}: no picture in a folder named after its sign; {_EXPECTED}")
    issues += _alike(root, files)
    issues += find_leaks([Record((f.tablet,), f.split, f.path, 0) for f in files]) if named else []
    return sorted(files, key=lambda f: f.file), issues


def tablet_in_name(stem: str, label: str = "", pattern: str = "") -> str:
    """Return the tablet that a picture's name tells; empty where it tells none.

    A counter at the end is left out: ``KBo_4.9_012`` is of KBo_4.9. What is left names a tablet where it holds a letter
    and a digit and is not the label: ``AN_12``, ``sign_12`` and ``HZL_8_12`` of label 8 tell none.

    Args:
        stem: the file's name without its suffix.
        label: of the picture; empty where it shows several signs.
        pattern: regular expression that finds the tablet in the name, by its first group where it has one.
    """
    name = original_name(stem)
    if pattern:
        found = re.search(pattern, name)
        return (found[1] if found.re.groups else found[0]) or "" if found else ""
    tablet = _COUNTER.sub("", name)
    names_label = _squeezed(tablet) in {c + _squeezed(label) for c in ("", *CATALOGUES)} if label else False
    told = any(c.isdigit() for c in tablet) and any(c.isalpha() for c in tablet) and not names_label
    return tablet if told else ""


def original_name(stem: str) -> str:
    """Return what a picture was called before copies of it were made, in NFC."""
    return _COPY.sub("", normalize("NFC", stem))


def _tablet(path: Path, root: Path, label: str, pattern: str) -> str:
    """Return the tablet of one sign's picture; without one the picture stands for itself, with all its copies."""
    told = tablet_in_name(path.stem, label, pattern)
    name = original_name(path.stem)
    alone = f"{label}/{name}" if name != normalize("NFC", path.stem) else path.relative_to(root).as_posix()
    return told or unnumbered(alone)


def _squeezed(name: str) -> str:
    return re.sub(r"[\W_]", "", name)


def _of_splits(root: Path, named: list[Path], tops: list[Path], pattern: str, issues: list[Issue]) -> list[SignFile]:
    """List a data set that brings its own splits."""
    others = [t.name for t in tops if t not in named]
    if others:
        raise ValueError(
            f"{root}: holds {', '.join(p.name for p in named)} and, beside them, {_some(others)}; classes lie either "
            "in split folders or in the root, not in both"
        )
    dev = [t.name for t in named if SPLIT_FOLDERS[t.name] == "dev"]
    if len(dev) > 1:
        raise ValueError(f"{root}: holds {' and '.join(dev)}, which are names of one split; keep one of them")
    return [f for top in named for f in _of_classes(root, top, SPLIT_FOLDERS[top.name], pattern, issues)]


def _of_classes(root: Path, folder: Path, split: str, pattern: str, issues: list[Issue]) -> list[SignFile]:
    """List the pictures below one folder of classes."""
    found: list[SignFile] = []
    first: dict[str, str] = {}
    loose = [p.name for p in _files(folder, []) if p.suffix.lower() in IMAGE_SUFFIXES]
    if loose:
        raise ValueError(f"{folder}: pictures lie in it that are in no class ({_some(loose)}); {_EXPECTED}")
    classes = _folders(folder, issues if folder != root else [])
    if any(p.suffix.lower() == ".json" for p in _files(folder, [])) and not classes:
        raise ValueError(f"{folder}: holds JSON and no folder of a class; of a COCO export say data.source=coco")
    if {c.name for c in classes} == {"images", "labels"}:
        raise ValueError(f"{folder}: holds images and labels, as YOLO has it; {_EXPECTED}")
    for path in classes:
        label = normalize("NFC", path.name)
        if first.setdefault(label, path.name) != path.name:
            same = f"the same label as a folder beside it but for Unicode normalisation; both are class {label!r}"
            issues.append(Issue(path, 0, same, "warning"))
        deeper = [p.name for p in _folders(path, [])]
        if deeper:
            raise ValueError(f"{path}: class {label!r} holds folders ({_some(deeper)}), expected pictures; {_EXPECTED}")
        pictures = [p for p in _files(path, issues) if p.suffix.lower() in IMAGE_SUFFIXES]
        if not pictures:
            issues.append(Issue(path, 0, f"class {label!r} has no picture here", "warning"))
        for picture in pictures:
            tablet = _tablet(picture, root, label, pattern)
            found.append(SignFile(picture, picture.relative_to(root).as_posix(), label, tablet, split))
    return found


def _folders(folder: Path, issues: list[Issue]) -> list[Path]:
    """Return the folders in a folder by name, without hidden ones and those that archives of macOS hold."""
    found = sorted(p for p in folder.iterdir() if p.is_dir())
    kept = [p for p in found if not p.name.startswith((".", "__MACOSX"))]
    issues += [Issue(p, 0, "hidden; not read", "note") for p in found if p not in kept]
    return kept


def _files(folder: Path, issues: list[Issue]) -> list[Path]:
    """Return the files in a folder by name, without hidden ones; those that are no pictures are listed."""
    found = sorted(p for p in folder.iterdir() if not p.is_dir())
    kept = [p for p in found if not p.name.startswith(".")]
    issues += [Issue(p, 0, "hidden; not read", "note") for p in found if p not in kept]
    issues += [Issue(p, 0, "no picture; not read", "note") for p in kept if p.suffix.lower() not in IMAGE_SUFFIXES]
    return kept


def _alike(root: Path, files: list[SignFile]) -> list[Issue]:
    """List labels that only case tells apart: on a file system that does not, their folders would become one."""
    spellings: dict[str, set[str]] = defaultdict(set)
    for file in files:
        spellings[file.label.lower()].add(file.label)
    return [
        Issue(
            root,
            0,
            f"{', '.join(sorted(labels))} are {len(labels)} classes that differ in case alone; keep the data off file "
            "systems that know no case (macOS, Windows), where their folders would be mixed",
            "note",
        )
        for labels in spellings.values()
        if len(labels) > 1
    ]


def _size(path: Path) -> tuple[int, int]:
    """Read a picture's width and height; what is damaged counts as 1 x 1: reading its pixels says why."""
    try:
        with Image.open(path) as image:
            return image.size
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return 1, 1


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
