"""Sign classifiers: names that timm does not know, local weights, and what is said where nothing can be fetched."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dubsar.models.backbones import MEAN, STD, SignClassifier

NAME = "resnet10t"


def test_logits_have_one_column_per_class_and_pixels_are_normalised() -> None:
    torch.manual_seed(0)
    network = SignClassifier(NAME, 7).eval()
    pixels = torch.rand(2, 3, 32, 32)
    logits = network(pixels)
    assert logits.shape == (2, 7)
    assert torch.equal(logits, network.net((pixels - MEAN) / STD))


def test_an_unknown_name_is_refused_with_near_ones() -> None:
    with pytest.raises(ValueError, match=r"model\.backbone: timm knows no 'resnet10'; near it are .*resnet10t"):
        SignClassifier("resnet10", 3)
    with pytest.raises(ValueError, match=r"timm knows no 'resmet18'; near it are .*resnet18"):
        SignClassifier("resmet18", 3)
    with pytest.raises(ValueError, match=r"timm knows no 'qqqq'$"):
        SignClassifier("qqqq", 3)


def test_local_weights_are_taken_but_for_a_head_of_another_size(tmp_path: Path) -> None:
    torch.manual_seed(0)
    trained = SignClassifier(NAME, 5)
    save_file(trained.net.state_dict(), tmp_path / "w.safetensors")
    same = SignClassifier(NAME, 5, weights=str(tmp_path / "w.safetensors"))
    assert all(torch.equal(t, same.net.state_dict()[k]) for k, t in trained.net.state_dict().items())
    other = SignClassifier(NAME, 9, weights=str(tmp_path / "w.safetensors"))
    assert torch.equal(other.net.state_dict()["conv1.0.weight"], trained.net.state_dict()["conv1.0.weight"])
    assert other.eval()(torch.rand(1, 3, 32, 32)).shape == (1, 9)


def test_weights_of_another_backbone_are_refused(tmp_path: Path) -> None:
    save_file({"stem.weight": torch.zeros(3)}, tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=r"w\.safetensors: only 0 of \d+ tensors fit this backbone, for example not "):
        SignClassifier(NAME, 5, weights=str(tmp_path / "w.safetensors"))


def test_files_that_are_no_safetensors_are_refused(tmp_path: Path) -> None:
    (tmp_path / "w.pt").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"w\.pt: weights are read from \.safetensors only \(a pickle can run code\)"):
        SignClassifier(NAME, 5, weights=str(tmp_path / "w.pt"))
    with pytest.raises(FileNotFoundError, match=r"none\.safetensors: no such weights"):
        SignClassifier(NAME, 5, weights=str(tmp_path / "none.safetensors"))
    (tmp_path / "w.safetensors").write_bytes(b"\x80\x04garbage")
    with pytest.raises(ValueError, match=r"w\.safetensors: not a safetensors file"):
        SignClassifier(NAME, 5, weights=str(tmp_path / "w.safetensors"))


def test_pretrained_offline_says_which_file_to_bring() -> None:
    with pytest.raises(
        FileNotFoundError, match=r"model\.pretrained: weights of resnet18 cannot be fetched; bring the file"
    ):
        SignClassifier("resnet18", 5, pretrained=True)


def test_drop_path_reaches_the_backbone() -> None:
    from timm.layers import DropPath

    assert not [m for m in SignClassifier(NAME, 3).modules() if isinstance(m, DropPath) and m.drop_prob]
    assert [m for m in SignClassifier(NAME, 3, drop_path_rate=0.2).modules() if isinstance(m, DropPath) and m.drop_prob]
    assert SignClassifier(NAME, 3, drop_rate=0.25).net.drop_rate == 0.25


def test_per_crop_normalisation_sees_neither_the_lamp_nor_the_exposure() -> None:
    torch.manual_seed(0)
    network = SignClassifier("resnet10t", 5, normalise="per_crop").eval()
    pixels = torch.rand(2, 3, 32, 32) * 0.4
    fed = network.normalised(pixels)
    torch.testing.assert_close(fed.mean((1, 2, 3)), torch.zeros(2), atol=1e-5, rtol=0)
    assert (fed.std((1, 2, 3)) > 0.8).all()  # not quite 1: what has no contrast is not blown up
    torch.testing.assert_close(network.normalised(pixels + 0.3), fed)  # a brighter lamp
    assert network.normalised(torch.full((1, 3, 32, 32), 0.5)).abs().max() < 1e-3


def test_backbone_arguments_reach_timm() -> None:
    narrow = SignClassifier("resnet18", 5, backbone_args={"channels": [8, 16, 32, 64]})
    assert narrow.net.num_features == 64
    with pytest.raises(ValueError, match=r"model\.backbone_args: resnet18: .*unexpected keyword argument 'chanels'"):
        SignClassifier("resnet18", 5, backbone_args={"chanels": [8, 16, 32, 64]})


@pytest.mark.parametrize("argument", ["checkpoint_path", "pretrained", "pretrained_cfg_overlay", "num_classes"])
def test_a_config_cannot_make_timm_load_a_file_or_an_address(argument: str) -> None:
    with pytest.raises(ValueError, match=f"{argument} cannot be given here; weights come from model.weights"):
        SignClassifier("resnet18", 5, backbone_args={argument: "evil.pth"})
