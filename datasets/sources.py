"""Where data comes from: the data folder on this computer, and public sources that a user can fetch by hand."""

import os
from dataclasses import dataclass
from pathlib import Path

DATA_VARIABLE = "DUBSAR_DATA"
DEFAULT_DATA_ROOT = "../shared/data"


@dataclass(frozen=True)
class PublicSource:
    """A public source: nothing is fetched from it; the user does that, and minds its terms.

    Attributes:
        licence: as the source states it; where it states none, that is said.
        sha256: of the archive where its publisher gives one, else empty.
        note: what to know before using it.
    """

    name: str
    address: str
    licence: str
    use: str
    sha256: str = ""
    note: str = ""


SOURCES: tuple[PublicSource, ...] = (
    PublicSource(
        "TLHdig Beta 0.3",
        "https://doi.org/10.5281/zenodo.20328284",
        "CC BY 4.0",
        "Hittite lines with Unicode signs: training the Hittite transliterator",
        note="about 23,900 AOxml files; Zenodo gives the archive's MD5, f9acbc8db3111cc7dd88d82f7819a912; "
        "224 files are not well-formed, one is encrypted",
    ),
    PublicSource(
        "eBL cuneiform-sign-detection",
        "https://github.com/ElectronicBabylonianLiterature/cuneiform-sign-detection",
        "MIT for code and boxes; photographs remain with their museums (British Museum: CC BY-NC-SA 4.0)",
        "photographs with sign boxes (gt_*.txt): detector and classifier",
    ),
    PublicSource(
        "CompVis cuneiform-sign-detection-dataset",
        "https://github.com/CompVis/cuneiform-sign-detection-dataset",
        "none stated; cite Dencker et al. 2020, PLOS ONE 15(12) e0243039",
        "sign boxes and transliterations of Neo-Assyrian tablets: detector and classifier",
        note="81 tablets with boxes; the pictures are fetched apart, from CDLI",
    ),
    PublicSource(
        "eBL transliterated-fragments",
        "https://github.com/ElectronicBabylonianLiterature/transliterated-fragments",
        "MIT; cite doi 10.5334/johd.148",
        "sign sequences and eBL-ATF of the eBL Fragmentarium: the Akkadian transliterator",
    ),
    PublicSource(
        "Oracc JSON",
        "https://github.com/oracc/json",
        "CC0 in the files of 2017; current projects state their own, often CC BY-SA: read the field in each file",
        "Akkadian and Sumerian texts with lemmas: the transliterator",
        note="described at http://oracc.museum.upenn.edu/doc/opendata/; some files have 0 bytes",
    ),
    PublicSource(
        "Oracc sign list",
        "https://github.com/oracc/ogsl",
        "CC0",
        "sign names, readings, code points and catalogue numbers: the sign inventory",
    ),
    PublicSource(
        "MaiCuBeDa Hilprecht",
        "https://doi.org/10.11588/DATA/QSNIQ2",
        "CC BY-SA 4.0 as its users report it; read the record",
        "sign annotations on renderings of 3D models (mostly Ur III): detector and classifier",
        note="described in doi 10.5334/joad.172",
    ),
    PublicSource(
        "HeiCuBeDa Hilprecht",
        "https://doi.org/10.11588/data/IE8CCN",
        "read the record",
        "renderings of 3D models of the Hilprecht collection: pretraining",
    ),
    PublicSource(
        "CDLI",
        "https://cdli.earth",
        "photographs for non-commercial use, commercial rights with the holding institutions; read its terms",
        "photographs, catalogue and C-ATF of several hundred thousand objects: pretraining, texts",
        note="https://github.com/cdli-gh/data holds catalogue and texts; many blocks break the ATF rules",
    ),
    PublicSource(
        "UD_Hittite-HitTB",
        "https://github.com/UniversalDependencies/UD_Hittite-HitTB",
        "CC BY-SA 4.0",
        "Hittite example sentences: the Hittite transliterator",
    ),
)


def data_root() -> Path:
    """Return the data folder: the environment variable ``DUBSAR_DATA``, else ``../shared/data``; it need not exist."""
    return Path(os.environ.get(DATA_VARIABLE) or DEFAULT_DATA_ROOT)


def require_outside_data(path: Path, option: str, data: Path | None = None) -> None:
    """Refuse to write into the data folder, links followed.

    Args:
        path: where something is to be written; it need not exist.
        option: the option that names it, such as ``--run``.
        data: the data folder; `data_root()` where None.

    Raises:
        ValueError: it is the data folder or lies in it; the message names both.
    """
    root = (data or data_root()).resolve()
    if path.resolve().is_relative_to(root):
        raise ValueError(
            f"{option} {path}: lies in the data folder {root}, which is never written to; name a place outside it"
        )


def require_data(root: Path, *parts: str) -> Path:
    """Return ``root/parts`` where it exists.

    Raises:
        FileNotFoundError: it does not; the message names the path and the variable to set.
    """
    path = root.joinpath(*parts)
    if not path.exists():
        raise FileNotFoundError(
            f"{path}: no such file or folder (looked below {root.absolute()}); "
            f"set {DATA_VARIABLE} to the folder that holds {parts[0] if parts else 'the data'}"
        )
    return path
