"""What `dubsar export` does: hand the detector over to Ultralytics, for those who want to use or train it there."""

from pathlib import Path

from dubsar.datasets.sources import require_outside_data
from dubsar.models.checkpoint import shipped
from dubsar.models.detector import export_ultralytics
from dubsar.pipelines.networks import inventory_of, load_detector


def export_detector(weights: Path | None, out: Path, *, overwrite: bool = False) -> None:
    """Write a detector as Ultralytics' ``.pt`` and say how to use it.

    Args:
        weights: of stage detect; those that ship where None.
        out: the file; its folder is made.
        overwrite: replace a file that is there.

    Raises:
        ValueError: ``out`` does not end in .pt, by which Ultralytics knows its own files, or lies in the data folder.
        FileExistsError: ``out`` is there already.
        CheckpointError, FileNotFoundError: the weights are damaged or absent.
    """
    require_outside_data(out, "--out")
    if out.suffix != ".pt":
        raise ValueError(f"{out}: the name ends in {out.suffix!r}, but Ultralytics loads .pt only; name it detector.pt")
    if out.is_dir():
        raise IsADirectoryError(f"{out}: a folder; name a file")
    if out.exists() and not overwrite:
        raise FileExistsError(f"{out}: is there already; --overwrite replaces it, or name another file")
    path = weights or shipped("detect")
    network, config, file = load_detector(path)
    names = {0: "sign"}
    if config.model.classes == "inventory":  # Latin names: Ultralytics draws them, and its font has no cuneiform
        names = {i: c.name or c.glyph for i, c in enumerate(inventory_of(file, path).classes)}
    export_ultralytics(network, names, out)
    print(
        f"{out}: for ultralytics.YOLO({out.name!r}). It is a pickle, as Ultralytics needs it: loading one can run "
        "code, so dubsar itself never loads one."
    )
    print(
        f"Scale photographs so that a sign is about {config.data.sign_px:g} px large, and predict with max_det=2000 "
        "(Ultralytics keeps 300 boxes otherwise)."
    )
    print(file.card["licence"])
