"""The training step of a plain timm script, with timm's own parts: what the classifier's step is judged by.

Joined as timm's ``train.py`` joins them (https://github.com/huggingface/pytorch-image-models): its mixup with smoothed
labels, loss, optimizer, clipping, schedule and moving average; model, sizes and precision are those of our config.
"""

from typing import Any

import timm
import torch
from timm.data import Mixup
from timm.loss import LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3, dispatch_clip_grad

from dubsar.configs.schema import ClassifyConfig
from dubsar.models.backbones import MEAN, STD
from dubsar.pipelines.levers.resolve import resolve_config


class TimmLoop:
    """A timm model in training; `step` takes a batch of our stream.

    Args:
        config: of our stage; its ``efficiency`` decides about bf16, memory layout, fused optimizer and average.
        classes: of the inventory.
    """

    def __init__(self, config: ClassifyConfig, classes: int) -> None:
        model, optim, levers = config.model, config.optim, resolve_config(config)
        torch.manual_seed(config.trainer.seed)
        rates = {"drop_rate": model.drop_rate} | ({"drop_path_rate": p} if (p := model.drop_path_rate) else {})
        self.net = timm.create_model(model.backbone, num_classes=classes, **rates, **model.backbone_args).train()
        self.bf16, self.channels_last = levers["precision"] == "bf16", levers["channels_last"]
        if self.channels_last:
            self.net.to(memory_format=torch.channels_last)
        smoothing = model.label_smoothing
        self.mixup = Mixup(model.mixup, label_smoothing=smoothing, num_classes=classes) if model.mixup else None
        self.loss = SoftTargetCrossEntropy() if self.mixup else LabelSmoothingCrossEntropy(smoothing)
        self.clip = config.trainer.clip_norm
        fused = {"fused": True} if levers["fused_optimizer"] else {}
        self.optimizer = create_optimizer_v2(
            self.net, "adamw", lr=optim.lr, weight_decay=optim.weight_decay, betas=optim.betas, **fused
        )
        self.schedule = CosineLRScheduler(
            self.optimizer, config.trainer.max_steps, warmup_t=optim.warmup_steps, t_in_epochs=False
        )
        ema = levers["ema"]
        self.average = ModelEmaV3(self.net, decay=ema["decay"]) if ema else None

    def step(self, batch: dict[str, Any], number: int = 0) -> None:
        """Take one optimizer step, normalising the batch as timm's loader does."""
        pixels_BCHW = (batch["pixels_BCHW"] - MEAN) / STD
        if self.channels_last:
            pixels_BCHW = pixels_BCHW.contiguous(memory_format=torch.channels_last)
        targets = batch["classes_B"]
        if self.mixup:
            pixels_BCHW, targets = self.mixup(pixels_BCHW, targets)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            logits_BC = self.net(pixels_BCHW)
        loss = self.loss(logits_BC.float(), targets)
        loss.backward()
        if self.clip:
            dispatch_clip_grad(self.net.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update(self.net)
        self.schedule.step_update(number + 1)
