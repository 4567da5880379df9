"""A scan of 10,000 x 10,000 px is read tile by tile: memory stays bounded, and no sign is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dubsar.datasets
from dubsar.datasets.boxes import iou_matrix
from dubsar.datasets.tablet import Sign, Tablet

SAMPLE = Path(next(iter(dubsar.datasets.__path__))) / "sample" / "tablet.jpg"
SIDE = 10_000  # px
PLACE = (8_500, 9_100)  # px, where the face stands on the scan, on black ground
CLEAR = 0.5  # a score at which a detection does not hang on half a pixel
MOST_BYTES = 4 * 2**30
READ = """
import resource, sys
from dubsar.pipelines.cli import main
for name in ("scan", "face"):
    sys.argv = ["dubsar", "read", f"{name}.png", "-o", name, "--device", "cpu"]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, stop.code
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print("peak bytes", peak if sys.platform == "darwin" else peak * 1024)
"""


def read(folder: Path) -> tuple[Tablet, list[Sign]]:
    """Return a tablet that was written, and those of its signs that have a box."""
    tablet = Tablet.from_dict(json.loads((folder / "tablet.json").read_text(encoding="utf-8")))
    return tablet, [s for s in tablet.signs() if s.box is not None]


@pytest.mark.slow
def test_a_large_scan_is_read_in_bounded_memory(tmp_path: Path) -> None:
    face = Image.open(SAMPLE).crop((0, 0, 1000, 650))
    face.save(tmp_path / "face.png")
    scan = Image.new("RGB", (SIDE, SIDE))
    scan.paste(face, PLACE)
    scan.save(tmp_path / "scan.png", compress_level=1)
    del scan
    done = subprocess.run(
        [sys.executable, "-c", READ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    peak = int(done.stdout.rsplit("peak bytes", 1)[1])
    assert peak < MOST_BYTES, f"{peak / 2**30:.2f} GiB"

    tablet, signs = read(tmp_path / "scan")
    _, alone = read(tmp_path / "face")
    assert (tablet.width, tablet.height) == (SIDE, SIDE)
    rows = (tmp_path / "scan" / "signs.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) - 1 == sum(1 for _ in tablet.signs())

    clear = np.array([s.box for s in alone if s.found >= CLEAR])
    assert len(clear) > 20
    boxes = np.array([s.box for s in signs])
    kept = iou_matrix(clear + np.array(PLACE * 2), boxes).max(axis=1) > 0.5
    assert kept.mean() >= 0.9, f"{kept.sum()} of {len(kept)}"
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    assert ((centres >= PLACE) & (centres < np.add(PLACE, face.size))).all()  # nothing was seen on plain ground
