"""Model files: weights as safetensors beside a JSON that says what they are. Written atomically; never a pickle.

The JSON holds config, inventory, text form, normalisation, library versions, metrics, licence and the SHA-256 of the
weights, so that a file can be judged before it is used. Order of writing: the new JSON under a hidden name, the
weights, then the JSON's own name; the checksum says which JSON belongs to the weights, so that a write that is killed
in between loses neither the old pair nor the new one.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

FORMAT = "dubsar-weights-1"
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
_WEIGHTS = "*.safetensors"
_LFS = b"version https://git-lfs"  # how a Git LFS pointer begins
_FOREIGN = {".pt", ".pth", ".ckpt", ".bin", ".pkl", ".pickle", ".npz", ".onnx"}


class CheckpointError(ValueError):
    """Weights that cannot be used; the message names file, finding and remedy."""


@dataclass(frozen=True)
class ModelFile:
    """Weights, what is known of them, and how many bytes they take on disk."""

    state: dict[str, torch.Tensor]
    card: dict[str, Any]
    size: int = 0


def write_atomically(path: Path, write: Callable[[Any], object]) -> None:
    """Let ``write`` fill a temporary file in the same folder, sync it, and rename it to ``path``.

    Raises:
        OSError: naming ``path``, for example where the disk is full; what stood there before is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError as error:
        raise OSError(
            error.errno, f"{path}: could not be written ({error.strerror}); the old file is unchanged"
        ) from error
    finally:
        Path(name).unlink(missing_ok=True)


def save_model(
    path: Path, state: dict[str, torch.Tensor], card: dict[str, Any], *, dtype: torch.dtype | None = None
) -> None:
    """Write ``<path>.safetensors`` and ``<path>.json``.

    Args:
        path: without suffix.
        state: parameters and buffers; a compiled module's ``_orig_mod.`` prefix is removed.
        card: what the weights are: stage, config, metrics, licence, inventory.
        dtype: store floating tensors in this type (float16 halves a file that ships).
    """
    tensors = {
        name.replace("_orig_mod.", ""): (t.to(dtype) if dtype and t.is_floating_point() else t)
        .detach()
        .cpu()
        .contiguous()
        .clone()
        for name, t in state.items()
    }
    data = save_tensors(tensors, metadata={"format": FORMAT})
    card = {
        "format": FORMAT,
        **card,
        "sha256": hashlib.sha256(data).hexdigest(),
        "parameters": _count_parameters(state),
        "versions": {
            name: _version(name) for name in ("dubsar", "torch", "lightning", "timm", "transformers", "ultralytics")
        },
    }
    text = json.dumps(card, ensure_ascii=False, indent=1).encode()
    weights, card_path, next_path = _files(path)
    write_atomically(next_path, lambda file: file.write(text))
    write_atomically(weights, lambda file: file.write(data))
    os.replace(next_path, card_path)


def load_model(path: Path, stage: str) -> ModelFile:
    """Read what `save_model` wrote, as float32.

    Args:
        path: with or without suffix, or a run folder.
        stage: the stage that the weights must be of.

    Raises:
        CheckpointError: not safetensors, damaged, no JSON beside it, a wrong checksum, or another stage's weights.
        FileNotFoundError: there is no such file.
    """
    if path.suffix in _FOREIGN or (path.is_file() and path.suffix not in {".safetensors", ".json"}):
        raise CheckpointError(
            f"{path}: weights are read from .safetensors only (a pickle can run code); give the {stage}.safetensors "
            f"that `dubsar train {stage}` wrote, with its {stage}.json beside it"
        )
    weights, card_path, next_path = _files(path / stage if path.is_dir() else path)
    if not weights.exists():
        raise FileNotFoundError(_explain_absence(path, weights, stage))
    data = weights.read_bytes()
    if damage := _find_damage(data):
        raise CheckpointError(f"{weights}: {damage}")
    found = hashlib.sha256(data).hexdigest()
    card = _read_card(next_path) if next_path.exists() else {}
    if card.get("sha256") != found:
        if not card_path.exists():
            raise CheckpointError(
                f"{weights}: its model card {card_path.name} is missing; keep the two files together, in one folder"
            )
        card = _read_card(card_path)
    if card.get("sha256") != found:
        raise CheckpointError(
            f"{weights}: SHA-256 is {found[:16]}…, its card says {str(card.get('sha256'))[:16]}…; the two files are of "
            "different trainings, or one was changed on its way: copy it again, both together"
        )
    if card.get("stage") != stage:
        raise CheckpointError(
            f"{weights}: weights of stage {card.get('stage')!r}, expected {stage!r}; "
            f"give weights that `dubsar train {stage}` made"
        )
    try:
        tensors = load_tensors(data)
    except SafetensorError as error:
        raise CheckpointError(f"{weights}: not a safetensors file ({error}); copy it again") from error
    return ModelFile({k: t.float() if t.is_floating_point() else t for k, t in tensors.items()}, card, len(data))


def _explain_absence(given: Path, weights: Path, stage: str) -> str:
    """Say where weights were looked for, what is there instead, and how to get them."""
    made = f"`dubsar train {stage}` makes them"
    if given.is_dir() and any((given / "checkpoints").glob("*.ckpt")):
        made = f"the run was broken off; `dubsar train {stage} --run {given} --resume` ends it and writes them"
    folder = weights.parent
    if not folder.is_dir():
        return f"{weights}: no such weights, and no such folder; {made}"
    others = sorted(p.relative_to(folder).as_posix() for p in (*folder.glob(_WEIGHTS), *folder.glob(f"*/{_WEIGHTS}")))
    there = ", ".join(others[:5]) + (", …" if len(others) > 5 else "")
    return f"{weights}: no such weights; {made}" + (f" (this folder has {there})" if others else "")


def _find_damage(data: bytes) -> str:
    """Return what is wrong with the bytes of a safetensors file, and what to do; empty where nothing shows."""
    if data.startswith(_LFS):
        return (
            f"a Git LFS pointer of {len(data)} bytes, not the weights themselves; "
            "run `git lfs install && git lfs pull` in the repository that it is from"
        )
    if not data:
        return "the file is empty; copy it again"
    # a file begins with the length of its JSON header, which names the span of each tensor after it
    length = int.from_bytes(data[:8], "little")
    if data[8:9] != b"{":
        return (
            f"not a safetensors file (it begins with {data[:12]!r}); weights are read from .safetensors only "
            "(a pickle can run code), and no other file becomes one by renaming"
        )
    wanted = 8 + length
    if len(data) >= wanted:
        try:
            header = json.loads(data[8:wanted])
            wanted += max((t["data_offsets"][1] for k, t in header.items() if k != "__metadata__"), default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            return "its header cannot be read; copy it again"
    if len(data) < wanted:
        return f"cut off: it has {len(data):,} bytes, its header announces {wanted:,}; copy or download it again"
    return ""


def _count_parameters(state: dict[str, torch.Tensor]) -> int:
    """Count trained numbers: tied tensors once, batch-norm statistics not at all."""
    numbers = {name: t for name, t in state.items() if t.is_floating_point() and not name.endswith(_STATISTICS)}
    trained = {t.data_ptr(): t.numel() for t in numbers.values()}
    return sum(trained.values())


def _files(path: Path) -> tuple[Path, Path, Path]:
    """Return weights, card, and the card's hidden name while it waits for its weights; the suffix may be left out."""
    stem = path.stem if path.suffix in {".safetensors", ".json"} else path.name
    return tuple(path.with_name(name) for name in (f"{stem}.safetensors", f"{stem}.json", f".{stem}.next.json"))  # type: ignore[return-value]


def _read_card(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    if data.startswith(_LFS):
        raise CheckpointError(f"{path}: {_find_damage(data)}")
    try:
        card = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else error
        raise CheckpointError(
            f"{path}: not a model card ({what}); copy it again, with the .safetensors beside it"
        ) from error
    if not isinstance(card, dict):
        raise CheckpointError(
            f"{path}: not a model card (found {type(card).__name__}, expected an object); give the JSON that was "
            "written with the weights"
        )
    return card


def shipped(stage: str) -> Path:
    """Return the path, without suffix, of the weights that ship with dubsar for ``stage``."""
    return Path(__file__).resolve().parent / "weights" / stage


def _version(package: str) -> str:
    for name in (package, f"{package}-opencv-headless"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "not installed"
