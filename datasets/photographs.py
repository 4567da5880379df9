"""The photographs that a stage learns from and is scored on: what is left out is counted and said.

Training may go on without a few damaged pictures and without boxes that cannot be used; a score may not, so pictures
of dev and test are never skipped, and none of their boxes is dropped.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from dubsar.datasets.formats.tablet_signs import Photograph, read_tablet_signs
from dubsar.datasets.images import ImageError, LoadedImage, load_image
from dubsar.datasets.inventory import Inventory
from dubsar.datasets.issues import Issue


class DamagedDataError(ValueError):
    """More damaged pictures than a training may go on without."""


def labelled_photographs(
    root: Path,
    split: str,
    inventory: Inventory | None = None,
    *,
    ignore_unknown: bool = False,
    more: Path | None = None,
) -> list[Photograph]:
    """Read the photographs of a split that have boxes, sorted by file.

    Args:
        root: data folder that holds ``tablet-signs/``.
        split: ``train``, ``dev`` or ``test``.
        inventory: classes that the boxes must belong to; any glyph will do where None.
        ignore_unknown: leave out boxes that cannot be used, and print how many; only in ``train``.
        more: a table of further boxes of ``train``.

    Raises:
        FileNotFoundError: the folder or a table is absent.
        ValueError: with file and line, a row that cannot be used and ``ignore_unknown`` is off; or it is on for a
            split that scores.
    """
    if ignore_unknown and split != "train":
        raise ValueError(f"ignore_unknown is for training; in split {split} a dropped box would vanish from the truth")
    dropped: list[Issue] | None = [] if ignore_unknown else None
    photographs = read_tablet_signs(
        root, split=split, inventory=inventory, dropped=dropped, more=more if split == "train" else None
    )
    if dropped:
        total, empty = len(dropped) + sum(len(p.boxes) for p in photographs), sum(not p.boxes for p in photographs)
        print(
            f"{split}: {len(dropped)} of {total} boxes dropped by data.ignore_unknown, "
            f"{empty} of {len(photographs)} photographs are without a box; the first: {dropped[0]}"
        )
    return [p for p in photographs if p.boxes]


def open_photographs(
    photographs: Iterable[Photograph], *, max_bad: int | None = None
) -> Iterator[tuple[Photograph, LoadedImage]]:
    """Load photographs one by one.

    Args:
        photographs: what to load.
        max_bad: skip so many pictures that cannot be read, each with its reason on stderr; none is skipped where None.

    Yields:
        Each photograph that can be read, with its pixels.

    Raises:
        ImageError: a picture is damaged and ``max_bad`` is None.
        OSError: likewise, where it is missing or may not be read.
        DamagedDataError: more than ``max_bad`` are damaged or missing; all of them are named.
    """
    bad: list[str] = []
    for photograph in photographs:
        try:
            image = load_image(photograph.path)
        except (ImageError, OSError) as error:
            if max_bad is None:
                raise
            bad.append(str(photograph.path))
            if len(bad) > max_bad:
                raise DamagedDataError(
                    f"{len(bad)} training pictures cannot be read, more than data.max_bad={max_bad} allows: "
                    f"{', '.join(bad)}; the last: {_reason(error)}; copy them again, or raise data.max_bad"
                ) from error
            print(f"skipped ({len(bad)} of at most {max_bad}): {_reason(error)}", file=sys.stderr)
        else:
            yield photograph, image


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return str(error)
