"""Where labelled signs come from: ``tablet-signs``, a folder per class, or a COCO data set; all read in one way.

Each gives an inventory, which is the list of classes, and photographs with sign boxes; a picture of a single sign is a
photograph with one box. So whatever learns from crops, or is scored on them, needs to know nothing of the layout.
"""

import hashlib
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dubsar.datasets.formats.coco_export import list_coco, read_coco_split
from dubsar.datasets.formats.folders import list_folders
from dubsar.datasets.formats.tablet_signs import SPLITS, Photograph
from dubsar.datasets.inventory import Inventory, read_inventory
from dubsar.datasets.issues import Issue
from dubsar.datasets.photographs import labelled_photographs
from dubsar.datasets.sign_list import label_inventory, read_sign_list

Layout = Literal["tablet-signs", "folders", "coco"]
_SHOWN = 5  # findings that are printed; the others are counted


@dataclass(frozen=True)
class SignSource:
    """A data set of labelled signs.

    Attributes:
        root: of ``tablet-signs`` the data root that holds it, else the data set's own folder.
        layout: how it is laid out.
        catalogue: what its labels are, see `dubsar.datasets.sign_list.look_up`; of ``tablet-signs`` this is known.
        sign_list: data root that holds ``sign-list/``; needed for each catalogue but ``none``.
        tablet_pattern: see `dubsar.datasets.formats.folders.tablet_in_name`.
        more: table of further training boxes of ``tablet-signs``.
    """

    root: Path
    layout: Layout = "tablet-signs"
    catalogue: str = "none"
    sign_list: Path | None = None
    tablet_pattern: str = ""
    more: Path | None = None

    def inventory(self) -> Inventory:
        """Return the classes: those of ``classes.tsv``, or all labels of the data set, whatever their split.

        Raises:
            FileNotFoundError, ValueError: the data set or the sign list is absent or faulty.
        """
        return read_inventory(self.root) if self.layout == "tablet-signs" else self.labels()[0]

    def labels(self) -> tuple[Inventory, list[str]]:
        """Return the classes of a data set of labels, and why some have no sure glyph.

        Raises:
            FileNotFoundError, ValueError: see `inventory`; or no sign is labelled.
        """
        labels = [label for label, _ in self.listed()[0]]
        if not labels:
            raise ValueError(f"{self.root}: no sign is labelled; expected boxes with a category")
        shared = self.sign_list if self.catalogue != "none" else None
        return label_inventory(labels, self.catalogue, read_sign_list(shared) if shared else ())

    def listed(self) -> tuple[list[tuple[str, str]], list[Issue]]:
        """List a data set of labels without opening a picture: label and split of each sign, and what is doubtful.

        Raises:
            FileNotFoundError, ValueError: see `inventory`.
        """
        if self.layout == "folders":
            files, issues = list_folders(self.root, self.tablet_pattern)
            return [(f.label, f.split) for f in files], issues
        photographs, issues = list_coco(self.root, self.tablet_pattern)
        return [(b.name, b.split) for p in photographs for b in p.boxes], issues

    def photographs(
        self, split: str, inventory: Inventory | None = None, *, ignore_unknown: bool = False
    ) -> list[Photograph]:
        """Read the photographs of a split that have boxes; in ``train`` what is left out is printed.

        Args:
            split: ``train``, ``dev`` or ``test``.
            inventory: classes that the boxes must belong to; those of the data set where None.
            ignore_unknown: leave out boxes that cannot be used, and print how many; only in ``train``.

        Returns:
            ``tablet-signs`` and COCO by file; pictures of single signs in an order that mixes classes, always the same.

        Raises:
            FileNotFoundError: the data set is absent.
            ValueError: it is faulty, see the readers; a label has no class; or the split holds no sign.
        """
        if self.layout == "tablet-signs":
            return labelled_photographs(self.root, split, inventory, ignore_unknown=ignore_unknown, more=self.more)
        if split not in SPLITS:
            raise ValueError(f"split is {split!r}, expected one of {', '.join(SPLITS)}")
        if ignore_unknown and split != "train":
            raise ValueError(
                f"ignore_unknown is for training; in split {split} a dropped box would vanish from the truth"
            )
        if self.layout == "folders":
            files, issues = list_folders(self.root, self.tablet_pattern)
            found = [f.photograph() for f in files if f.split == split]
            found.sort(key=lambda p: hashlib.sha256(p.file.encode()).digest())
        else:
            found, issues = read_coco_split(self.root, split, self.tablet_pattern, ignore_unknown=ignore_unknown)
            found = [p for p in found if p.boxes]
        if split == "train":
            _print(self.root, issues)
        if not found:
            raise ValueError(
                f"{self.root}: split {split} holds no labelled sign; give it a folder of its own (train, valid, test), "
                "or where splits are drawn by tablet, tell tablets apart with data.tablet_pattern"
            )
        classes = inventory or self.inventory()
        return [_with_glyphs(p, classes) for p in found]


def _with_glyphs(photograph: Photograph, inventory: Inventory) -> Photograph:
    """Give each box the glyph of its label's class, by which a class is known."""
    glyph_of = {c.name: c.glyph for c in inventory.classes}
    unknown = [b.name for b in photograph.boxes if b.name not in glyph_of]
    if unknown:
        raise ValueError(
            f"{photograph.path}: label {unknown[0]!r} is not in sign inventory {inventory.hash} ({len(inventory)} "
            "classes); score weights on data with the labels that they were trained on, or train again"
        )
    return replace(photograph, boxes=tuple(replace(b, glyph=glyph_of[b.name]) for b in photograph.boxes))


def _print(root: Path, issues: list[Issue]) -> None:
    """Say on stderr what is left out or doubtful, the worst first."""
    order = ("error", "warning", "note")
    for issue in sorted(issues, key=lambda i: order.index(i.severity))[:_SHOWN]:
        print(issue, file=sys.stderr)
    if len(issues) > _SHOWN:
        print(f"{root}: {len(issues) - _SHOWN} findings more; `dubsar data labels` lists all", file=sys.stderr)
