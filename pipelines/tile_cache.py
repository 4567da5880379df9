"""From photographs, rendered tablets and their sign sizes to the tiles that pretraining cuts its views from."""

import fcntl
import os
import tempfile
from functools import cache
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dubsar.configs.schema import PretrainConfig
from dubsar.datasets.photographs import labelled_photographs
from dubsar.datasets.sources import require_outside_data
from dubsar.datasets.synthetic.glyphs import assyrian_table, available_fonts
from dubsar.datasets.synthetic.scene import write_tablets
from dubsar.datasets.unlabelled import Signs, TileCache, build_cache, find_photographs
from dubsar.datasets.windows import sign_size
from dubsar.models.checkpoint import shipped
from dubsar.pipelines.networks import load_detector
from dubsar.pipelines.reading.engine import search_size, tile_settings
from dubsar.pipelines.reading.progress import watched

SURE = 0.25  # mean score of the best 15 finds; below it the size of a photograph's signs is not known
WRITTEN = 0.35  # score of a find that counts as writing: on bare and slanting sides nearly all that is found is fainter
SYNTHETIC_SEED = 50_000


class SignSizes:
    """How high signs are on a photograph, by its boxes where it has some, and where the shipped detector finds them."""

    def __init__(self, boxed: dict[Path, float]) -> None:
        self.boxed = boxed

    def __call__(self, path: Path, rgb_HW3: npt.NDArray[np.uint8]) -> Signs:
        """Return height and boxes in px of the picture that is given; height 0 where it cannot be told."""
        detector, settings = _detector()
        found = search_size(detector, rgb_HW3, settings)
        sure = found.scores_N[:15].sum() >= 15 * SURE
        return Signs(self.boxed.get(path, found.sign_px if sure else 0.0), found.boxes_N4[found.scores_N >= WRITTEN])


@cache
def _detector() -> Any:
    """Load the shipped detector once in each process; processes side by side compute with one thread each."""
    if parent_process():
        torch.set_num_threads(1)
    detector, config, _ = load_detector(shipped("detect"))
    return detector, tile_settings(config)


def cache_folder() -> Path:
    """Return where tiles are kept where the config names no place."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "dubsar" / "tiles"


def open_tiles(config: PretrainConfig, root: Path) -> TileCache:
    """Return the tiles of a config's photographs and rendered tablets; what is not cached yet is read.

    Raises:
        ValueError: there is no photograph, or the cache lies in the data folder.
        FontError: tablets are to be rendered and there is no font.
    """
    data = config.data
    cache = Path(data.cache) if data.cache else cache_folder()
    require_outside_data(cache, "data.cache")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several processes the first fills the cache, and the others find it full
        return _filled(config, root, cache)


def _filled(config: PretrainConfig, root: Path, cache: Path) -> TileCache:
    data = config.data
    paths, boxed = _photographs(config, root)
    if data.synthetic_tablets:
        paths += _rendered(data.synthetic_tablets, cache / f"rendered-{data.synthetic_tablets}", root)
    return build_cache(
        paths,
        cache,
        sign_px=data.sign_px,
        tile=data.tile,
        measure=SignSizes(boxed),
        max_bad=data.max_bad,
        watch=watched,
        workers=config.trainer.workers,
    )


def _photographs(config: PretrainConfig, root: Path) -> tuple[list[Path], dict[Path, float]]:
    data = config.data
    if data.folders:
        return find_photographs([Path(f) for f in data.folders])[: data.limit or None], {}
    photographs = labelled_photographs(root, "train")[: data.limit or None]
    return [p.path for p in photographs], {p.path: sign_size([b.box_xyxy for b in p.boxes]) for p in photographs}


def _rendered(count: int, folder: Path, root: Path) -> list[Path]:
    """Render tablets once; they are measured like photographs. The folder appears when all of them are there."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        fonts = available_fonts(assyrian_table(root))
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as begun:
            write_tablets(count, Path(begun) / "tablets", SYNTHETIC_SEED, fonts)
            (Path(begun) / "tablets").rename(folder)
    return sorted(folder.glob("*.png"))
