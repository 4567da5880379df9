"""Backbones of self-supervision: timm's features to the bit, masks, rows that skip a block, and rotary positions."""

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import nn
from torch.utils.checkpoint import checkpoint

from dubsar.models.adapters import add_adapters, merge_adapters
from dubsar.models.backbones import SignClassifier
from dubsar.models.ssl.encoder import DINOV3_ROPE, RopeAugmentation, SslEncoder

NAME = "vit_small_patch16_dinov3"
# layer scale as timm draws it (1e-5) would leave nothing of a block to compare
TINY: dict[str, Any] = {
    "embed_dim": 32, "depth": 2, "num_heads": 2, "patch_size": 8, "img_size": 32, "init_values": 0.5
}  # fmt: skip
CONVNEXT: dict[str, Any] = {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 24), "ls_init_value": 0.5}
STILL = RopeAugmentation()


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def vit(**options: Any) -> SslEncoder:
    return SslEncoder(NAME, backbone_args=TINY | options.pop("backbone_args", {}), **options)


def convnext(**options: Any) -> SslEncoder:
    return SslEncoder("convnext_tiny", backbone_args=CONVNEXT, **options)


def crops(count: int = 3, side: int = 32) -> torch.Tensor:
    return torch.rand(count, 3, side, side)


def random_masks(count: int, patches: int) -> torch.Tensor:
    mask = torch.rand(count, patches) < 0.4
    mask[:, 0] = True
    return mask


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("side", [32, 48])
@pytest.mark.parametrize("registers", [0, 4])
def test_features_of_a_vit_are_timms_to_the_bit(mode: str, side: int, registers: int) -> None:
    drop = 0.0 if mode == "train" else 0.5  # rows are dropped in training only
    encoder = vit(backbone_args={"num_reg_tokens": registers}, drop_path=drop, rope=STILL).train(mode == "train")
    pixels = crops(side=side)
    seen, tokens = encoder(pixels), encoder.net.forward_features(encoder.normalised(pixels))
    assert torch.equal(seen.cls_BD, tokens[:, 0])
    assert torch.equal(seen.patches_BND, tokens[:, 1 + registers :])
    assert seen.grid == (side // 8, side // 8)
    assert seen.patches_BND.shape == (3, (side // 8) ** 2, 32)
    assert (encoder.width, encoder.stride, encoder.mask_token.shape) == (32, 8, (32,))


@pytest.mark.parametrize(
    "name", ["vit_small_plus_patch16_dinov3", "vit_small_patch16_dinov3_qkvb", "vit_small_patch16_rope_mixed_224"]
)
def test_other_vits_of_the_family_give_timms_features(name: str) -> None:
    given = {"use_fc_norm": False} if "mixed" in name else {}
    encoder = SslEncoder(name, backbone_args=TINY | given).eval()
    pixels = crops()
    tokens = encoder.net.forward_features(encoder.normalised(pixels))
    assert torch.equal(encoder(pixels).patches_BND, tokens[:, encoder.net.num_prefix_tokens :])


def test_rows_and_columns_of_an_oblong_crop_are_told_apart() -> None:
    encoder = vit().eval()
    pixels = torch.rand(1, 3, 16, 40)
    seen = encoder(pixels)
    assert seen.grid == (2, 5)
    mask = torch.zeros(1, 2, 5, dtype=torch.bool)
    mask[0, 1, 3] = True
    changed = pixels.clone()
    changed[:, :, 8:, 24:32] = 0
    assert torch.equal(encoder(pixels, mask.flatten(1)).cls_BD, encoder(changed, mask.flatten(1)).cls_BD)
    assert not torch.equal(seen.cls_BD, encoder(changed).cls_BD)


@pytest.mark.parametrize(("build", "stride", "token"), [(vit, 8, 32), (convnext, 32, 8)])
def test_what_a_mask_hides_changes_nothing(build: Any, stride: int, token: int) -> None:
    encoder = build().eval()
    assert encoder.mask_token.shape == (token,)
    nn.init.normal_(encoder.mask_token)
    side = 4 * stride
    pixels, mask = crops(side=side), random_masks(3, 16)
    cells = mask.view(3, 1, 4, 4).repeat_interleave(stride, 2).repeat_interleave(stride, 3)
    hidden = torch.where(cells, torch.rand_like(pixels), pixels)
    seen, other = encoder(pixels, mask), encoder(hidden, mask)
    assert torch.equal(seen.cls_BD, other.cls_BD)
    assert torch.equal(seen.patches_BND, other.patches_BND)
    shown = encoder(torch.where(cells, pixels, torch.rand_like(pixels)), mask)
    assert not torch.equal(seen.cls_BD, shown.cls_BD)
    assert torch.equal(encoder(pixels, torch.zeros_like(mask)).cls_BD, encoder(pixels).cls_BD)
    assert not torch.equal(encoder(pixels).cls_BD, seen.cls_BD)


def test_the_mask_token_learns_from_masked_patches_alone() -> None:
    encoder = vit()
    encoder(crops(), random_masks(3, 16)).patches_BND.sum().backward()
    assert encoder.mask_token.grad is not None
    assert encoder.mask_token.grad.abs().sum() > 0
    encoder.zero_grad()
    encoder(crops(), torch.zeros(3, 16, dtype=torch.bool)).patches_BND.sum().backward()
    assert encoder.mask_token.grad.abs().sum() == 0


def test_batches_of_several_sizes_are_seen_one_by_one() -> None:
    encoder = vit().eval()
    large, small, mask = crops(2, 48), crops(5, 16), random_masks(2, 36)
    whole, local = encoder.forward_shapes([large, small], [mask, None])
    assert torch.equal(whole.patches_BND, encoder(large, mask).patches_BND)
    assert torch.equal(local.cls_BD, encoder(small).cls_BD)
    assert [f.grid for f in encoder.forward_shapes([large, small])] == [(6, 6), (2, 2)]
    with pytest.raises(ValueError, match=r"zip\(\)"):
        encoder.forward_shapes([large, small], [mask])


def test_dropped_rows_pass_a_block_unchanged_and_the_others_count_for_them() -> None:
    encoder = vit(drop_path=0.5).train()
    block = encoder.net.blocks[-1]
    x = torch.randn(8, 5, 32)
    nn.init.zeros_(block.gamma_2)  # attention alone: one draw of rows to look at
    out = block(x)
    same = [i for i in range(8) if torch.equal(out[i], x[i])]
    assert len(same) == 4
    kept = [i for i in range(8) if i not in same]
    full = type(block).forward(block, x)
    torch.testing.assert_close(out[kept] - x[kept], 2 * (full[kept] - x[kept]), atol=1e-5, rtol=1e-5)
    drawn = {tuple(i for i in range(8) if torch.equal(block(x)[i], x[i])) for _ in range(8)}
    assert len(drawn) > 1


def test_a_block_with_dropped_rows_is_itself_in_expectation() -> None:
    encoder = vit(drop_path=0.5).train()
    block = encoder.net.blocks[-1]
    nn.init.zeros_(block.gamma_1)
    x = torch.randn(4, 5, 32)
    with torch.no_grad():
        mean = torch.stack([block(x) for _ in range(800)]).mean(0)
        full = type(block).forward(block, x)
    # each row is in half of the draws, so that the mean is off by the residual times a standard error of 1/sqrt(800)
    assert ((mean - full).abs() <= 5 / math.sqrt(800) * (full - x).abs() + 1e-6).all()


def test_rates_grow_with_depth_from_none() -> None:
    encoder = vit(backbone_args={"depth": 3}, drop_path=0.5).train()
    x = torch.randn(8, 5, 32)
    for block, dropped in zip(encoder.net.blocks, (0, 2, 4), strict=True):
        nn.init.zeros_(block.gamma_2)
        assert sum(torch.equal(a, b) for a, b in zip(block(x), x, strict=True)) == dropped


@pytest.mark.parametrize("batch", [1, 2])
def test_small_batches_keep_a_row(batch: int) -> None:
    encoder = vit(drop_path=0.9).train()
    assert encoder(crops(batch)).cls_BD.isfinite().all()


def test_a_copy_calls_its_own_blocks() -> None:
    encoder = vit(drop_path=0.5, rope=STILL)
    other = copy.deepcopy(encoder)
    with torch.no_grad():
        for parameter in other.net.blocks.parameters():
            parameter.zero_()
    pixels = crops(4)
    other.train()
    # zeroed blocks change nothing, so that all that is left is the first layer and the norm
    x, _ = other.net._pos_embed(other.net.patch_embed(other.normalised(pixels)))
    torch.testing.assert_close(other(pixels).patches_BND, other.net.norm(x)[:, 5:])
    assert encoder.net.blocks[1].attn.proj.weight.abs().sum() > 0
    assert encoder.state_dict().keys() == other.state_dict().keys()


def test_a_block_that_is_computed_again_drops_the_same_rows() -> None:
    block = vit(drop_path=0.5).train().net.blocks[-1]
    x = torch.randn(6, 5, 32, requires_grad=True)
    gradients = []
    for run in (lambda: block(x), lambda: checkpoint(block, x, use_reentrant=False)):
        torch.manual_seed(3)
        (gradient,) = torch.autograd.grad(run().square().sum(), x)  # type: ignore[no-untyped-call]
        gradients.append(gradient)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("whole", [False, True])
def test_compiled_blocks_drop_rows_and_give_the_same(whole: bool) -> None:
    encoder = vit(drop_path=0.5).train()
    compiled = copy.deepcopy(encoder)
    for module in [compiled] if whole else compiled.net.blocks:
        module.compile(backend="aot_eager", fullgraph=not whole)
    pixels, mask = crops(4), random_masks(4, 16)
    seen = []
    for network in (encoder, compiled):
        torch.manual_seed(1)
        seen.append(network(pixels, mask).patches_BND)
    torch.testing.assert_close(seen[1], seen[0], atol=1e-5, rtol=1e-5)


def test_adapters_on_the_blocks_learn_and_merge() -> None:
    encoder = SslEncoder(f"{NAME}_qkvb", backbone_args=TINY, drop_path=0.5)
    pixels = crops(4)
    before = encoder.eval()(pixels).patches_BND
    keys = set(encoder.backbone_state())
    settings = {"variant": "dora", "rank": 2, "alpha": 4, "dropout": 0.0, "targets": []}
    add_adapters(encoder, encoder.net.blocks, settings)
    torch.testing.assert_close(encoder(pixels).patches_BND, before, atol=1e-5, rtol=1e-5)
    encoder.train()(pixels).patches_BND.square().sum().backward()
    grads = {n: p.grad for n, p in encoder.named_parameters() if "blocks.1" in n and "lora_B" in n}
    assert len(grads) == 4
    assert all(g is not None and g.abs().sum() > 0 for g in grads.values())
    merge_adapters(encoder)
    assert set(encoder.backbone_state()) == keys


def test_rotary_positions_are_stretched_in_training_only() -> None:
    encoder = vit()
    pixels = crops()
    assert encoder.net.rope.rescale_coords == 2.0
    assert (encoder.net.rope.shift_coords, encoder.net.rope.jitter_coords) == (None, None)
    encoder.train()
    assert not torch.equal(encoder(pixels).cls_BD, encoder(pixels).cls_BD)
    encoder.eval()
    assert torch.equal(encoder(pixels).cls_BD, encoder(pixels).cls_BD)
    still = vit(rope=STILL).train()
    assert torch.equal(still(pixels).cls_BD, still(pixels).cls_BD)


def test_each_change_of_rotary_positions_acts_as_it_says() -> None:
    def angles(rope: RopeAugmentation) -> torch.Tensor:
        module = vit(rope=rope).train().net.rope
        sin = module.get_embed(shape=(4, 4))[:, :8]  # the first half of a head: rows, columns times 4 periods
        return torch.asin(sin.view(16, 2, 4)[:, :, -1]) * module.periods[-1] / (2 * math.pi)

    rows, columns = angles(STILL)[:, 0], angles(STILL)[:, 1]
    torch.testing.assert_close(columns[:4], torch.tensor([-0.75, -0.25, 0.25, 0.75]))
    factors = torch.stack([(angles(RopeAugmentation(rescale=2.0)) / angles(STILL)) for _ in range(64)])
    torch.testing.assert_close(factors, factors[:, :1, :1].expand_as(factors), atol=1e-3, rtol=1e-3)
    assert 0.5 <= factors.min() < 0.7
    assert 1.4 < factors.max() <= 2.001
    jittered = angles(RopeAugmentation(jitter=2.0)) / angles(STILL)
    assert (jittered[0, 0] - jittered[0, 1]).abs() > 1e-3
    shifted = angles(RopeAugmentation(shift=0.5))
    torch.testing.assert_close(shifted[:, 0] - rows, (shifted[0, 0] - rows[0]).expand(16), atol=1e-3, rtol=1e-3)
    assert 0 < (shifted[0, 0] - rows[0]).abs() <= 0.5


def test_rotary_positions_given_among_the_backbones_arguments_stay() -> None:
    assert vit(backbone_args={"rope_jitter_coords": 1.5}).net.rope.rescale_coords is None
    assert vit(backbone_args={"rope_jitter_coords": 1.5}, rope=RopeAugmentation(shift=1)).net.rope.jitter_coords is None


def test_rotary_positions_are_float32_in_16_bits() -> None:
    encoder = vit().eval()
    exact = encoder.net.rope.get_embed(shape=(4, 4))
    seen: list[torch.Tensor] = []
    encoder.net.blocks[0].register_forward_pre_hook(
        lambda _module, _args, kwargs: seen.append(kwargs["rope"]), with_kwargs=True
    )
    with torch.autocast("cpu", torch.bfloat16):
        encoder(crops())
    encoder.to(torch.bfloat16)
    assert encoder(crops().bfloat16(), random_masks(3, 16)).cls_BD.dtype == torch.bfloat16
    assert all(torch.equal(rope, exact) for rope in seen)
    assert len(seen) == 2


@pytest.mark.parametrize(("build", "side"), [(vit, 32), (convnext, 64)])
def test_the_layout_of_memory_changes_nothing(build: Any, side: int) -> None:
    encoder, pixels = build().eval(), crops(side=side)
    mask = random_masks(3, (side // encoder.stride) ** 2)
    plain = encoder(pixels, mask).patches_BND
    encoder.to(memory_format=torch.channels_last)
    seen = encoder(pixels.contiguous(memory_format=torch.channels_last), mask).patches_BND
    torch.testing.assert_close(seen, plain, atol=1e-5, rtol=1e-5)


def test_rows_are_dropped_under_autocast() -> None:
    encoder = vit(drop_path=0.5).train()
    with torch.autocast("cpu", torch.bfloat16):
        seen = encoder(crops(4), random_masks(4, 16))
    seen.patches_BND.sum().backward()
    assert seen.cls_BD.isfinite().all()


@pytest.mark.parametrize("build", [vit, convnext])
@pytest.mark.parametrize("kind", ["imagenet", "fixed", "per_crop"])
def test_pixels_are_normalised_as_a_classifiers_are(build: Any, kind: str) -> None:
    encoder, pixels = build(normalise=kind), crops()
    classifier = SignClassifier("resnet10t", 3, normalise=kind)
    assert torch.equal(encoder.normalised(pixels), classifier.normalised(pixels))
    if kind == "imagenet":
        mean, deviation = (torch.tensor(t).view(3, 1, 1) for t in (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD))
        torch.testing.assert_close(encoder.normalised(pixels), (pixels - mean) / deviation)


def test_imagenet_statistics_are_those_of_the_name() -> None:
    satellite = SslEncoder("vit_large_patch16_dinov3.sat493m", backbone_args=TINY)
    expected = (torch.full((3, 1, 1), 0.5) - torch.tensor([0.430, 0.411, 0.296]).view(3, 1, 1)) / torch.tensor(
        [0.213, 0.156, 0.143]
    ).view(3, 1, 1)
    torch.testing.assert_close(satellite.normalised(torch.full((1, 3, 2, 2), 0.5)), expected.expand(1, 3, 2, 2))


@pytest.mark.parametrize("first", [False, True])
def test_features_of_a_convnext_are_timms_normed_as_its_head_does(first: bool) -> None:
    encoder = SslEncoder("convnext_tiny", backbone_args=CONVNEXT | {"head_norm_first": first}).eval()
    pixels = crops(2, 64)
    seen, last = encoder(pixels), encoder.net.forward_features(encoder.normalised(pixels))
    assert torch.equal(seen.cls_BD, encoder.net(encoder.normalised(pixels)))
    map_ = last if first else encoder.net.head.norm(last)
    assert torch.equal(seen.patches_BND, map_.flatten(2).transpose(1, 2))
    assert (seen.grid, seen.patches_BND.shape, encoder.width, encoder.stride) == ((2, 2), (2, 4, 24), 24, 32)
    assert encoder(crops(2, 32)).patches_BND.shape == (2, 1, 24)


def test_stochastic_depth_of_a_convnext_is_timms() -> None:
    rates = [getattr(m, "drop_prob", 0) for m in convnext(drop_path=0.3).modules()]
    assert max(rates) == pytest.approx(0.3)
    assert not [m for m in convnext().modules() if getattr(m, "drop_prob", 0)]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vit_small_dinov3", {}, r"timm knows no 'vit_small_dinov3'; near it are "),
        ("resnet18", {}, r"model\.backbone: resnet18 cannot be pretrained here, expected a ViT of timm's Eva family"),
        (NAME, {"backbone_args": {"checkpoint_path": "x"}}, r"checkpoint_path cannot be given here"),
        (NAME, {"backbone_args": {"depht": 2}}, r"model\.backbone_args: .*unexpected keyword argument 'depht'"),
        (NAME, {"backbone_args": {"drop_path_rate": 0.5}}, r"give drop_path_rate as model\.drop_path_rate"),
        (NAME, {"backbone_args": {"patch_drop_rate": 0.5}}, r"patch_drop_rate leaves patches out"),
        (NAME, {"backbone_args": {"use_fc_norm": True}}, r"has no norm behind its last block; give use_fc_norm: false"),
        (NAME, {"backbone_args": {"class_token": False}}, r"has no class token here"),
        (NAME, {"backbone_args": {"patch_size": (8, 4)}}, r"patches are \(8, 4\) px, expected square ones"),
        (NAME, {"drop_path": 1.0}, r"model\.drop_path_rate is 1\.0, expected at least 0 and below 1"),
        (NAME, {"normalise": "none"}, r"model\.normalise is 'none', expected one of fixed, per_crop, imagenet"),
        ("convnext_atto_ols", {}, r"the stem of convnext_atto_ols overlaps"),
        ("convnext_atto", {"rope": DINOV3_ROPE}, r"model\.rope: convnext_atto has no rotary positions; leave it out"),
        ("eva02_tiny_patch14_224", {"rope": DINOV3_ROPE, "backbone_args": {"use_fc_norm": False}},
         r"eva02_tiny_patch14_224 has no rotary positions of DINOv3's kind"),
    ],
)  # fmt: skip
def test_what_cannot_be_pretrained_is_refused(name: str, options: dict[str, Any], message: str) -> None:
    if name.startswith("vit"):
        options = options | {"backbone_args": TINY | options.get("backbone_args", {})}
    with pytest.raises(ValueError, match=message):
        SslEncoder(name, **options)


@pytest.mark.parametrize("values", [{"shift": -0.1}, {"jitter": 0.9}, {"rescale": 0.0}])
def test_changes_of_rotary_positions_are_checked(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"model\.rope: found RopeAugmentation.*expected shift >= 0, jitter >= 1"):
        RopeAugmentation(**values)


def test_crops_and_masks_of_another_shape_are_refused() -> None:
    encoder = vit()
    with pytest.raises(ValueError, match=r"crops are 33 x 32 px, expected multiples of the stride of 8 px"):
        encoder(torch.rand(1, 3, 33, 32))
    with pytest.raises(ValueError, match=r"mask is torch\.bool \(1, 4\), expected bool \(1, 16\): 4 x 4 patches of 1"):
        encoder(crops(1), torch.zeros(1, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"mask is torch\.float32 \(1, 16\), expected bool"):
        encoder(crops(1), torch.zeros(1, 16))
