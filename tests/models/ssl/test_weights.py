"""Weights to start from: both key layouts give equal features, and each thing that does not fit has its own message."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from dubsar.models.backbones import SignClassifier
from dubsar.models.checkpoint import save_model
from dubsar.models.ssl.encoder import SslEncoder
from dubsar.models.ssl.weights import Loaded, load_backbone, to_meta

NAME = "vit_small_patch16_dinov3"
TINY: dict[str, Any] = {
    "embed_dim": 32, "depth": 2, "num_heads": 2, "patch_size": 8, "img_size": 32, "init_values": 0.5
}  # fmt: skip
CONVNEXT: dict[str, Any] = {"depths": (1, 1, 2, 1), "dims": (8, 8, 16, 24), "ls_init_value": 0.5}
State = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def vit(name: str = NAME, **given: Any) -> SslEncoder:
    return randomised(SslEncoder(name, backbone_args=TINY | given))


def convnext(name: str = "convnext_tiny", **given: Any) -> SslEncoder:
    return randomised(SslEncoder(name, backbone_args=CONVNEXT | given))


def randomised(encoder: SslEncoder) -> SslEncoder:
    """Give all parameters values of their own, norms and zero biases as well."""
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return encoder.eval()


def written(path: Path, state: State) -> Path:
    save_file({key: tensor.contiguous() for key, tensor in state.items()}, path / "w.safetensors")
    return path / "w.safetensors"


def as_metas_files_are(encoder: SslEncoder) -> State:
    """Return all tensors of such a file: the mask token, and periods rounded to bfloat16, are among them."""
    state = to_meta(encoder.backbone_state()) | {"mask_token": encoder.mask_token.detach()[None]}
    if "blocks.0.norm1.weight" in state:
        state["rope_embed.periods"] = encoder.net.rope.periods.bfloat16()
    return state


KINDS = [
    (vit, NAME, {}),
    (vit, NAME, {"num_reg_tokens": 0}),
    (vit, f"{NAME}_qkvb", {}),
    (vit, "vit_small_plus_patch16_dinov3", {}),
    (convnext, "convnext_tiny", {}),
    (convnext, "convnext_atto", {}),  # its MLPs are convolutions
]


@pytest.mark.parametrize(("build", "name", "given"), KINDS)
@pytest.mark.parametrize("layout", ["timm", "meta"])
def test_a_random_network_has_equal_features_in_both_layouts(
    tmp_path: Path, build: Callable[..., SslEncoder], name: str, given: dict[str, Any], layout: str
) -> None:
    source, target = build(name, **given), build(name, **given)
    pixels, patches = torch.rand(2, 3, 64, 64), (64 // source.stride) ** 2
    mask = torch.rand(2, patches) < 0.5
    state = as_metas_files_are(source) if layout == "meta" else source.backbone_state()
    assert not torch.equal(source(pixels).cls_BD, target(pixels).cls_BD)
    loaded = load_backbone(target, written(tmp_path, state))
    assert loaded.layout == layout
    assert [key for key in loaded.ignored if key != "rope_embed.periods"] == []
    assert torch.equal(source(pixels).cls_BD, target(pixels).cls_BD)
    assert torch.equal(source(pixels).patches_BND, target(pixels).patches_BND)
    equal = torch.equal(source(pixels, mask).cls_BD, target(pixels, mask).cls_BD)
    assert equal == (layout == "meta")  # whose files have a mask token


def test_metas_keys_are_those_of_its_files() -> None:
    keys = set(as_metas_files_are(vit(f"{NAME}_qkvb", depth=1)))
    layers = {f"{layer}.{kind}" for layer in ("norm1", "norm2", "attn.proj", "mlp.fc1", "mlp.fc2", "attn.qkv")
              for kind in ("weight", "bias")} | {"ls1.gamma", "ls2.gamma", "attn.qkv.bias_mask"}  # fmt: skip
    assert keys == {f"blocks.0.{name}" for name in layers} | {
        "cls_token", "storage_tokens", "mask_token", "patch_embed.proj.weight", "patch_embed.proj.bias",
        "norm.weight", "norm.bias", "rope_embed.periods",
    }  # fmt: skip
    gated = set(to_meta(vit("vit_small_plus_patch16_dinov3", depth=1).backbone_state()))
    assert {f"blocks.0.mlp.w{i}.weight" for i in (1, 2, 3)} <= gated
    conv = set(to_meta(convnext().backbone_state()))
    assert {"downsample_layers.0.0.weight", "downsample_layers.0.1.weight", "downsample_layers.3.1.bias"} <= conv
    assert {"stages.2.1.dwconv.weight", "stages.0.0.pwconv1.weight", "stages.0.0.gamma", "norm.weight"} <= conv
    assert not [key for key in conv if "blocks" in key or "head" in key]


def test_biases_of_zero_fit_a_network_that_has_none(tmp_path: Path) -> None:
    source, target = vit(f"{NAME}_qkvb"), vit()
    for name, parameter in source.named_parameters():
        if name.endswith(("q_bias", "v_bias")):
            torch.nn.init.zeros_(parameter)
    pixels = torch.rand(1, 3, 32, 32)
    for state in (as_metas_files_are(source), source.backbone_state()):
        loaded = load_backbone(target, written(tmp_path, state))
        assert {
            key for key in loaded.ignored if not key.endswith((".periods", "_bias", "qkv.bias", "bias_mask"))
        } == set()
        assert [key for key in loaded.ignored if key.startswith("blocks.1.attn")]
        assert torch.equal(source(pixels).cls_BD, target(pixels).cls_BD)


def test_a_masked_bias_of_keys_may_be_anything(tmp_path: Path) -> None:
    source, target = vit(f"{NAME}_qkvb"), vit(f"{NAME}_qkvb")
    state = as_metas_files_are(source)
    state["blocks.0.attn.qkv.bias"][32:64] = torch.nan
    load_backbone(target, written(tmp_path, state))
    assert torch.equal(source.backbone_state()["blocks.0.attn.q_bias"], target.backbone_state()["blocks.0.attn.q_bias"])
    state["blocks.0.attn.qkv.bias"][32:64] = 1
    state["blocks.0.attn.qkv.bias_mask"].fill_(1)
    with pytest.raises(ValueError, match=r"blocks\.0\.attn\.qkv\.bias: keys have biases, which timm's"):
        load_backbone(target, written(tmp_path, state))


def test_one_network_is_found_among_heads_and_named_if_it_is_not_alone(tmp_path: Path) -> None:
    source, target = vit(), vit()
    state = {f"teacher.backbone.{key}": t for key, t in as_metas_files_are(source).items()}
    state |= {"teacher.dino_head.mlp.0.weight": torch.zeros(2), "teacher.backbone.local_cls_norm.bias": torch.zeros(2)}
    assert load_backbone(target, written(tmp_path, state)) == Loaded(
        "meta",
        [
            "teacher.backbone.local_cls_norm.bias",
            "teacher.backbone.rope_embed.periods",
            "teacher.dino_head.mlp.0.weight",
        ],
    )
    pixels = torch.rand(1, 3, 32, 32)
    assert torch.equal(source(pixels).cls_BD, target(pixels).cls_BD)
    both = state | {key.replace("teacher", "student"): t.clone() for key, t in state.items()}
    with pytest.raises(ValueError, match=r"2 networks \(student\.backbone\., teacher\.backbone\.\); give a file"):
        load_backbone(target, written(tmp_path, both))


def test_what_was_written_by_dubsar_is_read_by_classifier_and_encoder(tmp_path: Path) -> None:
    source, target = vit(), vit()
    card = {"stage": "pretrain", "config": {"model": {"normalise": "imagenet"}}}
    save_model(tmp_path / "pretrain", source.backbone_state(), card)
    assert load_backbone(target, tmp_path) == Loaded("dubsar", [])
    pixels = torch.rand(2, 3, 32, 32)
    assert torch.equal(source(pixels).cls_BD, target(pixels).cls_BD)
    classifier = SignClassifier(
        NAME, 7, weights=str(tmp_path / "pretrain.safetensors"), backbone_args=TINY, normalise="imagenet"
    ).eval()
    tokens = classifier.net.forward_features(classifier.normalised(pixels))
    assert torch.equal(tokens[:, 0], source(pixels).cls_BD)
    assert classifier(pixels).shape == (2, 7)


def test_a_classifier_that_was_trained_is_a_start_too(tmp_path: Path) -> None:
    classifier = SignClassifier(NAME, 7, backbone_args=TINY)
    target = SslEncoder(NAME, backbone_args=TINY, normalise="fixed").eval()
    save_model(tmp_path / "classify", classifier.state_dict(), {"config": {"model": {"normalise": "fixed"}}})
    loaded = load_backbone(target, tmp_path / "classify.safetensors")
    assert loaded == Loaded("dubsar", ["net.head.bias", "net.head.weight"])
    assert torch.equal(target.backbone_state()["cls_token"], classifier.net.cls_token)
    with pytest.raises(ValueError, match=r"pixels normalised 'fixed', here 'imagenet'; set model\.normalise=fixed"):
        load_backbone(vit(), tmp_path / "classify.safetensors")


def test_a_convnext_goes_into_a_classifier(tmp_path: Path) -> None:
    source = convnext()
    path = written(tmp_path, source.backbone_state())
    classifier = SignClassifier(
        "convnext_tiny", 7, weights=str(path), backbone_args=CONVNEXT, normalise="imagenet"
    ).eval()
    pixels = torch.rand(2, 3, 64, 64)
    last = classifier.net.forward_features(classifier.normalised(pixels))
    assert torch.equal(classifier.net.forward_head(last, pre_logits=True), source(pixels).cls_BD)


FAULTS: list[tuple[Callable[[], SslEncoder], str]] = [
    (lambda: vit(num_reg_tokens=1), r"registers: 1 in the file, 4 in the network; .*\(num_reg_tokens\)"),
    (lambda: vit(num_reg_tokens=0), r"registers: 0 in the file, 4 in the network"),
    (lambda: vit(embed_dim=64), r"width: 64 in the file, 32 in the network; .*\(embed_dim, of a ConvNeXt dims\)"),
    (lambda: vit(patch_size=16), r"patch size: 16 in the file, 8 in the network; .*\(patch_size\)"),
    (lambda: vit(depth=3), r"blocks: 3 in the file, 2 in the network; .*\(depth, of a ConvNeXt depths\)"),
    (lambda: vit(depth=1), r"blocks: 1 in the file, 2 in the network"),
    (lambda: vit(f"{NAME}_qkvb"), r"qkv bias: the file has biases .*none; give .* qkv_bias: true, or .* with _qkvb"),
    (lambda: vit(mlp_ratio=2), r"blocks\.0\.mlp\.fc1\.weight is \(64, 32\), expected \(128, 32\)"),
    (convnext, r"not of a ViT, as the backbone is; set model\.backbone to the file's"),
]  # fmt: skip


@pytest.mark.parametrize(("build", "message"), FAULTS)
@pytest.mark.parametrize("layout", ["timm", "meta"])
def test_a_file_of_another_network_is_refused_and_nothing_is_changed(
    tmp_path: Path, build: Callable[[], SslEncoder], message: str, layout: str
) -> None:
    source, target = build(), vit()
    before = {key: t.clone() for key, t in target.state_dict().items()}
    path = written(tmp_path, as_metas_files_are(source) if layout == "meta" else source.backbone_state())
    with pytest.raises(ValueError, match=re.escape(f"{path}: ") + message):
        load_backbone(target, path)
    assert all(torch.equal(t, before[key]) for key, t in target.state_dict().items())


@pytest.mark.parametrize("layout", ["timm", "meta"])
def test_biases_that_the_network_wants_have_to_be_there(tmp_path: Path, layout: str) -> None:
    source = vit()
    path = written(tmp_path, as_metas_files_are(source) if layout == "meta" else source.backbone_state())
    with pytest.raises(ValueError, match=r"the network has biases .*the file has none; .*qkv_bias: false, .*without"):
        load_backbone(vit(f"{NAME}_qkvb"), path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"depths": (1, 1, 3, 1)}, r"blocks: 6 in the file, 5 in the network"),
        ({"dims": (16, 16, 16, 24)}, r"width: 16 in the file, 8 in the network"),
        ({"dims": (8, 8, 16, 32)}, r"(stages|downsample_layers)\.3.* is \(32, 16, 2, 2\), expected \(24, 16, 2, 2\)"),
    ],
)
@pytest.mark.parametrize("layout", ["timm", "meta"])
def test_another_convnext_is_refused(tmp_path: Path, given: dict[str, Any], message: str, layout: str) -> None:
    source = convnext(**given)
    path = written(tmp_path, as_metas_files_are(source) if layout == "meta" else source.backbone_state())
    with pytest.raises(ValueError, match=message):
        load_backbone(convnext(), path)


def test_tensors_that_are_missing_or_have_no_place_are_named(tmp_path: Path) -> None:
    state = vit().backbone_state()
    less = {key: t for key, t in state.items() if not key.startswith("norm.")}
    with pytest.raises(ValueError, match=r"2 of 32 tensors are missing, such as \['norm\.weight', 'norm\.bias'\]"):
        load_backbone(vit(), written(tmp_path, less))
    more = state | {"pos_embed": torch.zeros(1, 16, 32), "head.weight": torch.zeros(2, 32)}
    with pytest.raises(ValueError, match=r"1 tensors that the network has no place for, such as \['pos_embed'\]"):
        load_backbone(vit(), written(tmp_path, more))
    untied = state | {"cls_norm.weight": torch.zeros(32), "blocks.1.attn.norm.weight": torch.zeros(32)}
    with pytest.raises(ValueError, match=r"2 tensors that the network has no place for, .*'cls_norm\.weight'"):
        load_backbone(vit(), written(tmp_path, untied))
    with pytest.raises(ValueError, match=r"\['model\.embeddings\.cls_token'\]; those of transformers are not read"):
        load_backbone(vit(), written(tmp_path, {"model.embeddings.cls_token": torch.zeros(1)}))


def test_rotary_positions_of_other_periods_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, as_metas_files_are(vit()))
    load_backbone(vit(), path)  # although the file's are rounded
    with pytest.raises(
        ValueError, match=r"periods of rotary positions are 4 from 1 to 31\.6, the network's 4 from 1 to 17"
    ):
        load_backbone(vit(rope_temperature=45), path)
    with pytest.raises(ValueError, match=r"are 4 from 1 to 31\.6, the network's 2 from 1 to 10; .*width per head"):
        load_backbone(vit(num_heads=4), path)


def test_only_safetensors_are_read(tmp_path: Path) -> None:
    (tmp_path / "w.pth").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"w\.pth: weights are read from \.safetensors only \(a pickle can run code\)"):
        load_backbone(vit(), tmp_path / "w.pth")
    torch.save(vit().backbone_state(), tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=r"w\.safetensors: not a safetensors file"):
        load_backbone(vit(), tmp_path / "w.safetensors")
    with pytest.raises(FileNotFoundError, match=r"pretrain\.safetensors: no such weights"):
        load_backbone(vit(), tmp_path)


def test_a_card_that_cannot_be_read_is_left_to_others(tmp_path: Path) -> None:
    save_model(tmp_path / "pretrain", vit().backbone_state(), {})
    for text in ("{", json.dumps({"config": []})):
        (tmp_path / "pretrain.json").write_text(text, encoding="utf-8")
        assert load_backbone(vit(), tmp_path).layout == "dubsar"
