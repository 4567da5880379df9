"""DINOv2 of lightly's own building blocks, joined as its example joins them: what pretraining's speed is judged by.

The example: ``examples/pytorch/dinov2.py`` of https://github.com/lightly-ai/lightly (lightly 1.6). Sizes, optimizer,
clipping and precision are those of our config. Needs the package ``lightly``, which only developers install.
"""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from lightly.loss import DINOLoss, IBOTPatchLoss, KoLeoLoss
from lightly.models.modules import DINOv2ProjectionHead, MaskedVisionTransformerTIMM
from lightly.models.utils import random_block_mask, update_momentum
from lightly.transforms.dino_transform import DINOTransform
from lightly.utils.scheduler import CosineWarmupScheduler, cosine_schedule
from PIL import Image
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.utils.data import default_collate

from dubsar.configs.schema import PretrainConfig
from dubsar.pipelines.levers.resolve import resolve_config
from dubsar.pipelines.networks import build_encoder

_GLOBAL_SCALE, _LOCAL_SCALE = (0.32, 1.0), (0.05, 0.32)  # of a picture's area, as the example has them


class _Branch(nn.Module):
    """A ViT behind lightly's masking, with a head for whole views and one for patches."""

    def __init__(self, config: PretrainConfig) -> None:
        super().__init__()
        self.backbone = MaskedVisionTransformerTIMM(plain_vit(config), antialias=False, pos_embed_initialization="skip")
        model, width = config.model, self.backbone.vit.embed_dim
        self.cls_head, self.patch_head = (
            DINOv2ProjectionHead(width, model.hidden, model.bottleneck, prototypes)
            for prototypes in (model.prototypes, model.patch_prototypes)
        )


def plain_vit(config: PretrainConfig) -> VisionTransformer:
    """Return a ViT as wide and deep as the config's, with as many tokens, and learned instead of rotary positions."""
    with torch.device("meta"):
        net = build_encoder(config, fresh=True).net
    return VisionTransformer(
        img_size=config.data.global_px,
        patch_size=net.patch_embed.patch_size[0],
        embed_dim=net.embed_dim,
        depth=len(net.blocks),
        num_heads=net.blocks[0].attn.num_heads,
        mlp_ratio=net.blocks[0].mlp.fc1.out_features / net.embed_dim,
        reg_tokens=net.num_prefix_tokens - 1,
        init_values=1.0,
        num_classes=0,
        dynamic_img_size=True,
    )


class LightlyLoop:
    """Student, teacher, losses and optimizer; `step` takes a batch that `batch_of` has made.

    Args:
        config: of our stage.
        same_attention: take the attention that the config asks for; else timm's own choice, as the example does.
    """

    def __init__(self, config: PretrainConfig, *, same_attention: bool = False) -> None:
        self.config, levers = config, resolve_config(config)
        self.bf16 = levers["precision"] == "bf16"
        random.seed(config.trainer.seed)
        torch.manual_seed(config.trainer.seed)
        self.student, self.teacher = _Branch(config), _Branch(config)
        self.teacher.load_state_dict(self.student.state_dict())
        self.teacher.requires_grad_(requires_grad=False).eval()
        if same_attention:
            for block in (*self.student.backbone.vit.blocks, *self.teacher.backbone.vit.blocks):
                block.attn.fused_attn = levers["attention"] != "eager"
        model = config.model
        temperatures = {"student_temp": model.student_temperature, "teacher_temp": model.teacher_temperature[1]}
        self.cls_loss = DINOLoss(model.prototypes, **temperatures)
        self.patch_loss, self.koleo = IBOTPatchLoss(model.patch_prototypes, **temperatures), KoLeoLoss()
        kinds = [[p for p in self.student.parameters() if (p.ndim > 1) is decays] for decays in (True, False)]
        decay = config.optim.weight_decay
        groups = [{"params": kinds[0], "weight_decay": decay}, {"params": kinds[1], "weight_decay": 0.0}]
        fused = levers["fused_optimizer"] or None
        self.optimizer = torch.optim.AdamW(groups, lr=config.optim.lr, betas=config.optim.betas, fused=fused)
        steps = config.trainer.max_steps
        self.schedule = CosineWarmupScheduler(self.optimizer, config.optim.warmup_steps, steps)

    def step(self, views: Sequence[Tensor], number: int = 0) -> None:
        """Take one optimizer step, and let the teacher follow."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            loss = self.loss(torch.cat(tuple(views[:2])), torch.cat(tuple(views[2:])), len(views))
        loss.backward()  # type: ignore[no-untyped-call]
        if self.config.trainer.clip_norm:
            nn.utils.clip_grad_norm_(self.student.parameters(), self.config.trainer.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        momentum = cosine_schedule(number, self.config.trainer.max_steps, *self.config.model.teacher_momentum)
        update_momentum(self.student, self.teacher, m=momentum)

    def loss(self, globals_BCHW: Tensor, locals_BCHW: Tensor, views: int) -> Tensor:
        """Return the sum of the three losses, masks drawn here as in the example."""
        model, vit = self.config.model, self.student.backbone.vit
        masks_BHW = self.masks((len(globals_BCHW), *vit.patch_embed.grid_size))
        masks_BT = nn.functional.pad(masks_BHW.flatten(1), (vit.num_prefix_tokens, 0))  # class token and registers stay
        with torch.no_grad():
            seen_BTD = self.teacher.backbone.encode(globals_BCHW)
            cls_targets = self.teacher.cls_head(seen_BTD[:, 0]).chunk(2)
            patch_targets_MK = self.teacher.patch_head(seen_BTD[masks_BT])
        whole_BTD = self.student.backbone.encode(globals_BCHW, mask=masks_BT)
        local_BTD = self.student.backbone.encode(locals_BCHW)
        logits = torch.cat([self.student.cls_head(tokens_BTD[:, 0]) for tokens_BTD in (whole_BTD, local_BTD)])
        cls = self.cls_loss(cls_targets, logits.chunk(views))
        patch = self.patch_loss(patch_targets_MK, self.student.patch_head(whole_BTD[masks_BT]), masks_BHW)
        spread = torch.stack([self.koleo(half_BD) for half_BD in whole_BTD[:, 0].chunk(2)]).mean()
        total: Tensor = model.cls_weight * cls + model.patch_weight * patch + model.koleo_weight * spread
        return total

    def masks(self, size: tuple[int, int, int]) -> Tensor:
        """Draw block masks (B, rows, columns), as many and as large as ours."""
        low, high = self.config.model.mask_shares
        least = max(1, min(4, int(low * size[1] * size[2])))  # it refuses a block larger than all that is masked
        masks_BHW: Tensor = random_block_mask(
            size,
            batch_mask_ratio=self.config.model.mask_probability,
            min_image_mask_ratio=low,
            max_image_mask_ratio=high,
            min_num_masks_per_block=least,
        )
        return masks_BHW


def views_of(batch: dict[str, Tensor]) -> list[Tensor]:
    """Return the views of one of our batches, one tensor (B, 3, H, W) each, normalised as lightly's transform does."""
    views = [*batch["globals_VBCHW"], *batch["locals_VBCHW"]]
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    return [(view_BCHW - mean) / std for view_BCHW in views]


class LightlyInput:
    """lightly's views of decoded pictures.

    Args:
        config: of our stage, for the sizes of the views.
        pictures: uint8 (H, W, 3), one of each image of a batch.
    """

    def __init__(self, config: PretrainConfig, pictures: Sequence[Any]) -> None:
        self.pictures = [Image.fromarray(np.ascontiguousarray(picture)) for picture in pictures]
        data = config.data
        self.transform = DINOTransform(
            global_crop_size=data.global_px,
            global_crop_scale=_GLOBAL_SCALE,
            local_crop_size=data.local_px,
            local_crop_scale=_LOCAL_SCALE,
            n_local_views=data.locals,
        )

    def batch(self) -> list[Tensor]:
        """Return the views of all pictures, one tensor (B, 3, H, W) each."""
        views: list[Tensor] = default_collate([self.transform(picture) for picture in self.pictures])
        return views
