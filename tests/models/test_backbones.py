"""Sign classifiers: names that timm does not know, local weights, and what is said where nothing can be fetched."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from dubsar.models.backbones import MEAN, STD, SignClassifier
from dubsar.models.ssl.encoder import SslEncoder

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


def test_a_classifier_goes_on_from_a_classifier_with_other_classes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    trained = SignClassifier(NAME, 5)
    trained.add_prototypes(0.5, 0.1)
    state = {k: t.half() if t.is_floating_point() else t for k, t in trained.state_dict().items()}
    save_file(state, tmp_path / "classify.safetensors")
    for classes in (5, 9):
        other = SignClassifier(NAME, classes, weights=str(tmp_path / "classify.safetensors"))
        own = other.net.state_dict()
        same = [k for k, t in trained.net.state_dict().items() if own[k].shape == t.shape]
        assert len(own) - len(same) == (0 if classes == 5 else 2)
        assert all(torch.equal(own[k], trained.net.state_dict()[k].half().to(own[k].dtype)) for k in same)
        assert other.prototypes is None


def test_weights_of_another_backbone_are_refused(tmp_path: Path) -> None:
    save_file({"stem.weight": torch.zeros(3)}, tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=r"w\.safetensors: only 0 of \d+ tensors fit this backbone, for example not "):
        SignClassifier(NAME, 5, weights=str(tmp_path / "w.safetensors"))


VIT: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "init_values": 1.0}
CONVNEXT: dict[str, Any] = {"depths": [1, 1, 1, 1], "dims": [8, 8, 16, 16], "patch_size": 2}
PRETRAINED = {"vit_small_patch16_dinov3": VIT, "convnext_atto": CONVNEXT}


@pytest.mark.parametrize("backbone", PRETRAINED)
@pytest.mark.parametrize("side", [32, 64])
def test_what_pretraining_writes_is_loaded_whole_whatever_the_crops_size(
    backbone: str, side: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    encoder = SslEncoder(backbone, backbone_args=PRETRAINED[backbone]).eval()
    for parameter in encoder.net.parameters():  # norms and scales of a fresh network are all alike
        torch.nn.init.normal_(parameter, std=0.2)
    state = encoder.backbone_state()
    save_file(state | {"mask_token": torch.ones(32)}, tmp_path / "w.safetensors")
    given = PRETRAINED[backbone] | ({"img_size": side, "global_pool": "token"} if "vit" in backbone else {})
    weights = str(tmp_path / "w.safetensors")
    network = SignClassifier(backbone, 3, weights=weights, backbone_args=given, normalise="imagenet").eval()
    own = network.net.state_dict()
    assert set(own) - set(state) == {name for name in own if name.startswith(("head.weight", "head.bias", "head.fc."))}
    pixels = torch.rand(2, 3, side, side)
    features = network.net.forward_head(network.net.forward_features(network.normalised(pixels)), pre_logits=True)
    torch.testing.assert_close(features, encoder(pixels).cls_BD)


@pytest.mark.parametrize("backbone", ["resnet10t", "mobilenetv4_conv_small", "efficientnet_lite0"])
def test_convolutions_take_local_weights_whatever_head_the_file_has(backbone: str, tmp_path: Path) -> None:
    trained = SignClassifier(backbone, 5)
    save_file(trained.net.state_dict(), tmp_path / "w.safetensors")
    own = SignClassifier(backbone, 7, weights=str(tmp_path / "w.safetensors")).net.state_dict()
    other = {name for name, tensor in trained.net.state_dict().items() if not torch.equal(tensor, own[name])}
    assert {name.partition(".")[0] for name in other} in ({"fc"}, {"classifier"})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"depth": 3}, r"\d+ of \d+ tensors have no place in this backbone, for example \['blocks\.2\."),
        ({"depth": 1}, r"only \d+ of \d+ tensors fit this backbone, for example not \['blocks\.1\."),
        ({"num_reg_tokens": 2}, r"for example not \['reg_token'\]"),
        ({"patch_size": 16}, r"for example not \['patch_embed\.proj\.weight'\]"),
    ],
)
def test_a_file_of_another_depth_or_patch_is_refused(changed: dict[str, int], message: str, tmp_path: Path) -> None:
    save_file(
        SslEncoder("vit_small_patch16_dinov3", backbone_args=VIT | changed).backbone_state(), tmp_path / "w.safetensors"
    )
    with pytest.raises(ValueError, match=message):
        SignClassifier("vit_small_patch16_dinov3", 3, weights=str(tmp_path / "w.safetensors"), backbone_args=VIT)


def test_a_frozen_backbone_stays_in_evaluation_mode_and_its_statistics_do_not_move() -> None:
    torch.manual_seed(0)
    network = SignClassifier(NAME, 3, drop_rate=0.5)
    network.freeze_backbone()
    assert {name for name, p in network.named_parameters() if p.requires_grad} == {"net.fc.weight", "net.fc.bias"}
    before = copy.deepcopy(network.state_dict())
    pixels = torch.rand(4, 3, 32, 32)
    evaluated = network.eval()(pixels)
    trained = network.train()(pixels)
    assert network.training
    assert network.net.fc.training
    assert torch.equal(trained, evaluated)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


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
