"""Model files: whole or not at all, checked before use, never a pickle."""

import errno
import hashlib
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from dubsar.models.checkpoint import CheckpointError, load_model, save_model, shipped, write_atomically

STATE = {"layer.weight": torch.arange(6.0).reshape(2, 3), "steps": torch.tensor(7)}


def save(folder: Path, **card: object) -> Path:
    save_model(folder / "detect", STATE, {"stage": "detect", **card})
    return folder / "detect"


def test_weights_and_card_come_back(tmp_path: Path) -> None:
    path = save(tmp_path, metrics={"ap50": 0.5}, licence="ḫ")
    for given in (path, path.with_suffix(".safetensors"), path.with_suffix(".json")):
        file = load_model(given, "detect")
        assert torch.equal(file.state["layer.weight"], STATE["layer.weight"])
        assert torch.equal(file.state["steps"], STATE["steps"])
        assert (file.card["metrics"], file.card["licence"], file.card["parameters"]) == (
            {"ap50": 0.5},
            "ḫ",
            6,
        )  # a counter is no parameter
        assert file.card["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["detect.json", "detect.safetensors"]


def test_a_name_with_a_dot_keeps_it(tmp_path: Path) -> None:
    save_model(tmp_path / "v1.0", STATE, {"stage": "detect"})
    assert (tmp_path / "v1.0.safetensors").exists()
    assert load_model(tmp_path / "v1.0", "detect").card["stage"] == "detect"


def test_half_precision_on_disk_is_float32_in_memory(tmp_path: Path) -> None:
    save_model(tmp_path / "a", STATE, {"stage": "detect"}, dtype=torch.float16)
    save_model(tmp_path / "b", {"w": torch.rand(1000)}, {"stage": "detect"}, dtype=torch.float16)
    state = load_model(tmp_path / "a", "detect").state
    assert (state["layer.weight"].dtype, state["steps"].dtype) == (torch.float32, torch.int64)
    assert (tmp_path / "b.safetensors").stat().st_size < 2200


def test_names_of_a_compiled_module_are_its_own(tmp_path: Path) -> None:
    state = {"net._orig_mod.block.weight": torch.ones(2), "_orig_mod.bias": torch.zeros(1)}
    save_model(tmp_path / "c", state, {"stage": "detect"})
    assert set(load_model(tmp_path / "c", "detect").state) == {"net.block.weight", "bias"}


def test_views_that_share_memory_are_stored_apart(tmp_path: Path) -> None:
    shared = torch.rand(4)
    save_model(tmp_path / "c", {"a": shared, "b": shared, "c": shared[::2]}, {"stage": "detect"})
    assert torch.equal(load_model(tmp_path / "c", "detect").state["c"], shared[::2])


def test_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path)
    weights = path.with_suffix(".safetensors")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"{weights}: SHA-256 is [0-9a-f]{{16}}…, its card says .*copy it again"):
        load_model(path, "detect")


def test_files_that_cannot_be_used_are_refused_with_the_reason(tmp_path: Path) -> None:
    path = save(tmp_path)
    with pytest.raises(CheckpointError, match="weights of stage 'detect', expected 'classify'"):
        load_model(path, "classify")
    with pytest.raises(
        FileNotFoundError, match=r"none\.safetensors: no such weights; `dubsar train detect` makes them"
    ):
        load_model(tmp_path / "none", "detect")
    path.with_suffix(".json").write_text("[1]")
    with pytest.raises(
        CheckpointError, match=r"detect\.json: not a model card \(found list, expected an object\); give"
    ):
        load_model(path, "detect")
    path.with_suffix(".json").write_text("{")
    with pytest.raises(CheckpointError, match=r"detect\.json: not a model card"):
        load_model(path, "detect")
    path.with_suffix(".json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match=r"detect\.json: not a model card \(nested too deeply\); copy it again"):
        load_model(path, "detect")
    path.with_suffix(".json").unlink()
    with pytest.raises(CheckpointError, match=r"its model card detect\.json is missing; keep the two files together"):
        load_model(path, "detect")


def test_a_git_lfs_pointer_is_told_from_weights(tmp_path: Path) -> None:
    path = save(tmp_path)
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
    for suffix in (".json", ".safetensors"):
        path.with_suffix(suffix).write_bytes(pointer)
        with pytest.raises(CheckpointError, match=rf"detect\{suffix}: a Git LFS pointer of 74 bytes.*`git lfs install"):
            load_model(path, "detect")


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (0, "the file is empty; copy it again"),
        (5, "not a safetensors file"),
        (30, "cut off: it has 30 bytes, its header announces [0-9,]+; copy or download it again"),
        (-1, "cut off: it has [0-9,]+ bytes, its header announces [0-9,]+; copy or download it again"),
    ],
)
def test_a_truncated_file_is_told_from_a_changed_one(tmp_path: Path, keep: int, message: str) -> None:
    path = save(tmp_path)
    weights = path.with_suffix(".safetensors")
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=rf"detect\.safetensors: {message}"):
        load_model(path, "detect")


@pytest.mark.parametrize(
    "data",
    [
        b"<!doctype html><title>404</title>",
        b"PK\x03\x04" + bytes(40),
        (9).to_bytes(8, "little") + b"{nonsense",
        (2).to_bytes(8, "little") + b"{}" + bytes(9),
        (14).to_bytes(8, "little") + b'{"w": {"a":1}}',
        (2**63).to_bytes(8, "little") + b"{}",
        (500_005).to_bytes(8, "little") + b'{"a":' * 100_001,
    ],
    ids=["web page", "zip", "no json", "too long", "no span", "absurd length", "nested"],
)
def test_what_is_no_safetensors_file_is_refused_even_with_a_fitting_card(tmp_path: Path, data: bytes) -> None:
    path = save(tmp_path)
    path.with_suffix(".safetensors").write_bytes(data)
    card = {"stage": "detect", "sha256": hashlib.sha256(data).hexdigest()}
    path.with_suffix(".json").write_text(json.dumps(card))
    with pytest.raises(CheckpointError, match=r"not a safetensors file|header cannot be read|cut off"):
        load_model(path, "detect")


def test_a_folder_stands_for_the_weights_in_it_or_says_what_it_has(tmp_path: Path) -> None:
    save(tmp_path / "small")
    assert load_model(tmp_path / "small", "detect").card["stage"] == "detect"
    with pytest.raises(
        FileNotFoundError, match=r"small/classify\.safetensors: no such.*\(this folder has detect\.safe"
    ):
        load_model(tmp_path / "small", "classify")
    with pytest.raises(FileNotFoundError, match=r"\(this folder has small/detect\.safetensors\)"):
        load_model(tmp_path, "detect")  # the folder above
    (tmp_path / "broken" / "checkpoints").mkdir(parents=True)
    (tmp_path / "broken" / "checkpoints" / "last.ckpt").touch()
    with pytest.raises(FileNotFoundError, match=rf"broken off; `dubsar train detect --run {tmp_path}/broken --resume`"):
        load_model(tmp_path / "broken", "detect")
    with pytest.raises(FileNotFoundError, match=r"no such weights, and no such folder; `dubsar train detect` makes"):
        load_model(tmp_path / "none" / "detect", "detect")


class Payload:
    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.target,)


@pytest.mark.parametrize("name", ["evil.pt", "evil.ckpt", "evil", "evil.safetensors"])
def test_a_pickle_is_refused_and_its_payload_does_not_run(tmp_path: Path, name: str) -> None:
    save_model(tmp_path / "evil", STATE, {"stage": "detect"})
    path, target = tmp_path / name, tmp_path / "pwned"
    path.write_bytes(pickle.dumps(Payload(str(target))))
    with pytest.raises(CheckpointError, match=r"safetensors only \(a pickle can run code\)|SHA-256"):
        load_model(path, "detect")
    assert not target.exists()
    pickle.loads(path.read_bytes())  # the payload is real
    assert target.exists()


def test_a_full_disk_names_the_path_and_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, metrics=1)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"could not be written \(No space left on device\); the old file") as caught:
        save(tmp_path, metrics=2)
    assert caught.value.errno == errno.ENOSPC
    assert str(tmp_path) in str(caught.value)
    assert load_model(path, "detect").card["metrics"] == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["detect.json", "detect.safetensors"]


def test_a_writer_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(file: object) -> None:
        raise ValueError("not serialisable")

    with pytest.raises(ValueError, match="not serialisable"):
        write_atomically(tmp_path / "deep" / "a.json", fail)
    assert list((tmp_path / "deep").iterdir()) == []


WRITER = """
import sys, itertools
from pathlib import Path
import torch
from dubsar.models.checkpoint import save_model
for n in itertools.count(1):
    save_model(Path(sys.argv[1]), {"w": torch.full((200_000,), float(n))}, {"stage": "detect", "n": n})
    print(n, flush=True)
"""


def test_killed_at_any_moment_of_a_save_the_newest_whole_pair_loads(tmp_path: Path) -> None:
    draw = random.Random(0)
    fork = f"{WRITER}"
    for attempt in range(3):  # each process saves some hundred times; the kill falls anywhere
        folder = tmp_path / str(attempt)
        writer = subprocess.Popen(
            [sys.executable, "-c", fork, str(folder / "detect")], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        first = int(writer.stdout.readline())
        time.sleep(draw.uniform(0.02, 0.2))
        os.kill(writer.pid, signal.SIGKILL)
        rest = [int(line) for line in writer.stdout.read().split()]
        writer.wait()
        announced = rest[-1] if rest else first
        file = load_model(folder / "detect", "detect")
        assert file.card["n"] >= announced
        assert float(file.state["w"][0]) == float(file.state["w"][-1]) == file.card["n"]


@pytest.mark.parametrize("stop_after", [0, 1, 2])
def test_killed_between_the_renames_the_pair_still_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: int
) -> None:
    path = save(tmp_path, n=1)
    real, count = os.replace, 0

    def dies(*args: object) -> None:
        nonlocal count
        if count == stop_after:
            raise KeyboardInterrupt
        count += 1
        real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "replace", dies)
    with pytest.raises(KeyboardInterrupt):
        save_model(path, {"layer.weight": torch.ones(1)}, {"stage": "detect", "n": 2})
    monkeypatch.undo()
    file = load_model(path, "detect")
    assert (file.card["n"], file.state["layer.weight"].numel()) == ((2, 1) if stop_after == 2 else (1, 6))
    save(tmp_path, n=3)
    assert load_model(path, "detect").card["n"] == 3


def test_shipped_weights_are_found_beside_the_code() -> None:
    assert shipped("detect").parent.name == "weights"
    for card in shipped("detect").parent.glob("*.json"):
        assert json.loads(card.read_text(encoding="utf-8"))["stage"] == card.stem
