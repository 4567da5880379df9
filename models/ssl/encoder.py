"""Backbones of self-supervision: what a timm ViT or ConvNeXt sees in a view, as one state for all and one per patch.

Masked patches, rows that skip a block, and rotary positions that are stretched at random are what training by
self-distillation asks for beyond timm's own forward pass; without them the features are timm's to the bit.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import timm
import torch
from timm.layers import RotaryEmbeddingDinoV3
from timm.models import is_model_in_modules
from timm.models.eva import Eva, EvaBlock
from torch import Tensor, nn

from dubsar.models.backbones import check_normalisation, create_backbone, normalised


@dataclass(frozen=True)
class Features:
    """What a backbone sees, its final norm applied.

    Attributes:
        cls_BD: state of the whole view: the class token, or the mean over a ConvNeXt's last map.
        patches_BND: states of its patches, row by row.
        grid: rows and columns of patches.
    """

    cls_BD: Tensor
    patches_BND: Tensor
    grid: tuple[int, int]


@dataclass(frozen=True)
class RopeAugmentation:
    """How the coordinates of rotary positions, which reach from -1 to 1, change at random in training.

    All patches of one forward pass share the draw. The defaults change nothing.

    Attributes:
        shift: each axis moves by up to so much.
        jitter: each axis is stretched by a factor between 1/jitter and jitter.
        rescale: both axes are stretched by one factor between 1/rescale and rescale.
    """

    shift: float = 0.0
    jitter: float = 1.0
    rescale: float = 1.0

    def __post_init__(self) -> None:
        if self.shift < 0 or self.jitter < 1 or self.rescale < 1:
            raise ValueError(f"model.rope: found {self}, expected shift >= 0, jitter >= 1 and rescale >= 1")


# all published DINOv3 networks were trained with it; neither timm's configs nor the weights' files say so
DINOV3_ROPE = RopeAugmentation(rescale=2.0)


class SslEncoder(nn.Module):
    """See the patches of a view, and the view as a whole.

    Rotary positions are computed in float32, whatever the precision of the rest. Crops of any size go through, if it is
    a multiple of ``stride``.

    Args:
        backbone: timm model name, a ViT of its Eva family (such as all ``*_dinov3``) or a ConvNeXt.
        pretrained: load timm's weights for that name (from the hub, or its local cache).
        backbone_args: keyword arguments of that timm model.
        normalise: see `dubsar.models.backbones.normalised`; with ``per_crop``, masked pixels count in the crop's mean.
        drop_path: stochastic depth: the rate of the last block; the first has 0 and the rates between grow linearly.
        rope: changes of rotary positions in training; None: those that the backbone was trained with.

    Attributes:
        net: the timm model.
        width: of all features.
        stride: px per patch.
        mask_token: what stands in the place of a masked patch, (width,), of a ConvNeXt (width of its stem,).

    Raises:
        ValueError: timm does not know the name or an argument, or the backbone cannot be used so.
        FileNotFoundError: pretrained weights cannot be had offline.

    Source: Oquab et al. 2023, DINOv2, section 5 (stochastic depth by rows); Siméoni et al. 2025, DINOv3, section 3.2
    (jitter of rotary positions).
    """

    def __init__(
        self,
        backbone: str,
        *,
        pretrained: bool = False,
        backbone_args: dict[str, Any] | None = None,
        normalise: str = "imagenet",
        drop_path: float = 0.0,
        rope: RopeAugmentation | None = None,
    ) -> None:
        super().__init__()
        self.normalise = check_normalisation(normalise)
        if not 0 <= drop_path < 1:
            raise ValueError(f"model.drop_path_rate is {drop_path}, expected at least 0 and below 1")
        if "drop_path_rate" in (backbone_args or {}):
            raise ValueError("model.backbone_args: give drop_path_rate as model.drop_path_rate")
        is_vit = is_model_in_modules(backbone, ("eva",))
        if timm.is_model(backbone) and not is_model_in_modules(backbone, ("eva", "convnext")):
            raise ValueError(
                f"model.backbone: {backbone} cannot be pretrained here, expected a ViT of timm's Eva family, such as "
                "vit_small_patch16_dinov3, or a ConvNeXt, such as convnext_tiny"
            )
        given = (backbone_args or {}) | ({"dynamic_img_size": True} if is_vit else {})
        # a ViT's blocks skip rows; a ConvNeXt's are timm's own, which compute the residuals that they drop
        options = {"drop_path_rate": drop_path} if drop_path and not is_vit else {}
        self.net = create_backbone(backbone, 0, pretrained=pretrained, given=given, options=options)
        if is_vit:
            _check_vit(backbone, self.net)
            _drop_rows(self.net.blocks, drop_path)
            _augment_rope(backbone, self.net.rope, rope)
            self.width, self.stride, token = self.net.embed_dim, self.net.patch_embed.patch_size[0], self.net.embed_dim
        else:
            _check_convnext(backbone, self.net, rope)
            self.width, self.stride = self.net.num_features, self.net.feature_info[-1]["reduction"]
            token = self.net.stem[0].out_channels
        self.mask_token = nn.Parameter(torch.zeros(token))

    def forward(self, pixels_BCHW: Tensor, mask_BN: Tensor | None = None) -> Features:
        """Return features of RGB crops in 0-1.

        Args:
            pixels_BCHW: float (B, 3, H, W), H and W multiples of ``stride``.
            mask_BN: bool (B, N), true where a patch is hidden; N counts rows x columns of patches, row by row.

        Raises:
            ValueError: crops or masks of another shape.
        """
        batch, _, height, width = pixels_BCHW.shape
        grid = height // self.stride, width // self.stride
        if height % self.stride or width % self.stride:
            raise ValueError(f"crops are {height} x {width} px, expected multiples of the stride of {self.stride} px")
        if mask_BN is not None and (mask_BN.dtype != torch.bool or mask_BN.shape != (batch, grid[0] * grid[1])):
            raise ValueError(
                f"mask is {mask_BN.dtype} {tuple(mask_BN.shape)}, expected bool {(batch, grid[0] * grid[1])}: "
                f"{grid[0]} x {grid[1]} patches of {batch} crops"
            )
        fed = self.normalised(pixels_BCHW)
        cls_BD, patches_BND = self._tokens(fed, mask_BN) if isinstance(self.net, Eva) else self._map(fed, mask_BN, grid)
        return Features(cls_BD, patches_BND, grid)

    def forward_shapes(self, crops: Sequence[Tensor], masks: Sequence[Tensor | None] | None = None) -> list[Features]:
        """Return features of several batches of crops, each of its own size; one call per batch.

        Args:
            crops: each as `forward` takes it.
            masks: one for each, or None.
        """
        given: Sequence[Tensor | None] = masks if masks is not None else [None] * len(crops)
        return [self(pixels_BCHW, mask_BN) for pixels_BCHW, mask_BN in zip(crops, given, strict=True)]

    def normalised(self, pixels_BCHW: Tensor) -> Tensor:
        """Return what the backbone is fed (B, 3, H, W) for RGB crops in 0-1."""
        return normalised(pixels_BCHW, self.normalise, self.net)

    def backbone_state(self) -> dict[str, Tensor]:
        """Return the backbone's tensors in timm's key layout, as ``model.weights`` of a classifier loads them."""
        state: dict[str, Tensor] = self.net.state_dict()
        return state

    def _tokens(self, pixels_BCHW: Tensor, mask_BN: Tensor | None) -> tuple[Tensor, Tensor]:
        net = self.net
        x = net.patch_embed(pixels_BCHW)  # (B, rows, columns, D)
        if mask_BN is not None:
            x = torch.where(mask_BN.view(*x.shape[:3], 1), self.mask_token.to(x.dtype), x)
        x, rope = net._pos_embed(x)
        x = net.norm_pre(x)
        for i, block in enumerate(net.blocks):
            x = block(x, rope=rope[i] if net.rope_mixed else rope)
        x = net.norm(x)
        return x[:, 0], x[:, net.num_prefix_tokens :]

    def _map(self, pixels_BCHW: Tensor, mask_BN: Tensor | None, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        net = self.net
        x = net.stem(pixels_BCHW)
        if mask_BN is not None:
            times = self.stride // net.stem[0].stride[0]  # cells of the stem's map on a side of a patch
            mask = mask_BN.view(-1, 1, *grid).repeat_interleave(times, 2).repeat_interleave(times, 3)
            x = torch.where(mask, self.mask_token.to(x.dtype).view(1, -1, 1, 1), x)
        x = net.norm_pre(net.stages(x))
        norm = getattr(net.head, "norm", nn.Identity())  # it stands behind the pool in most; patches get it as well
        return net.forward_head(x, pre_logits=True), norm(x).flatten(2).transpose(1, 2)


def _check_vit(backbone: str, net: Any) -> None:
    """Refuse a ViT that has no class token, no final norm, no square patches, or that leaves patches out."""
    where = f"model.backbone_args: {backbone}"
    if not isinstance(net, Eva) or net.cls_token is None:
        raise ValueError(f"{where} has no class token here; leave out class_token, num_classes and use_naflex")
    if isinstance(net.norm, nn.Identity):
        raise ValueError(f"{where} has no norm behind its last block; give use_fc_norm: false")
    if net.patch_drop is not None:
        raise ValueError(f"{where}: patch_drop_rate leaves patches out, but each has to be there; give 0")
    if len(set(net.patch_embed.patch_size)) > 1:
        raise ValueError(f"{where}: patches are {net.patch_embed.patch_size} px, expected square ones")


def _check_convnext(backbone: str, net: Any, rope: RopeAugmentation | None) -> None:
    """Refuse a ConvNeXt whose stem lets pixels of a masked patch into the next."""
    if net.stem[0].kernel_size != net.stem[0].stride:
        raise ValueError(
            f"model.backbone: the stem of {backbone} overlaps, so that masked patches would show through; take a "
            "ConvNeXt with patches as its stem, such as convnext_tiny"
        )
    if rope is not None:
        raise ValueError(f"model.rope: {backbone} has no rotary positions; leave it out")


def _augment_rope(backbone: str, rope: Any, wanted: RopeAugmentation | None) -> None:
    """Set how rotary positions change in training; timm does so in no other mode."""
    if wanted is None:
        # what was given among the backbone's own arguments stays
        if not isinstance(rope, RotaryEmbeddingDinoV3) or rope.aug_active:
            return
        wanted = DINOV3_ROPE
    elif not isinstance(rope, RotaryEmbeddingDinoV3):
        raise ValueError(f"model.rope: {backbone} has no rotary positions of DINOv3's kind; leave it out")
    rope.shift_coords = wanted.shift or None
    rope.jitter_coords = wanted.jitter if wanted.jitter > 1 else None
    rope.rescale_coords = wanted.rescale if wanted.rescale > 1 else None
    rope.aug_active = wanted != RopeAugmentation()


def _drop_rows(blocks: nn.ModuleList, rate: float) -> None:
    """Let blocks skip a share of the rows of a batch in training, growing linearly with depth up to ``rate``."""
    for i, block in enumerate(blocks):
        share = rate * i / max(1, len(blocks) - 1)
        if not share:
            continue
        if not isinstance(block, EvaBlock):
            raise ValueError("model.drop_path_rate: blocks with norms behind attention cannot skip rows; give 0")
        # a partial, not a closure: a copied network then calls its own block
        block.forward = functools.partial(_forward, block, block.forward, share)  # type: ignore[method-assign]


def _forward(
    block: Any, forward: Any, rate: float, x_BTD: Tensor, rope: Tensor | None = None, **options: Any
) -> Tensor:
    """Compute a block's two residuals, each on as many rows of the batch as its rate leaves; all of them count."""
    batch = len(x_BTD)
    kept = max(1, round(batch * (1 - rate)))
    if not block.training or kept == batch:
        out: Tensor = forward(x_BTD, rope=rope, **options)
        return out
    rows = torch.randperm(batch, device=x_BTD.device)[:kept]
    part = block.attn(block.norm1(x_BTD.index_select(0, rows)), rope=rope, **options)
    x_BTD = _add(x_BTD, rows, part, block.gamma_1)
    rows = torch.randperm(batch, device=x_BTD.device)[:kept]
    return _add(x_BTD, rows, block.mlp(block.norm2(x_BTD.index_select(0, rows))), block.gamma_2)


def _add(x_BTD: Tensor, rows: Tensor, part: Tensor, gamma: Tensor | None) -> Tensor:
    """Add a residual to the rows that it was computed on, scaled so that its expectation stays."""
    part = part if gamma is None else gamma * part
    return x_BTD.index_add(0, rows, part.to(x_BTD.dtype), alpha=len(x_BTD) / len(rows))
