"""Student, teacher and anchor of self-distillation, as one network.

The student learns by gradients; the teacher is the student's exponential moving average, in float32, and is what is
kept; the anchor is an earlier teacher that the similarities of patches are held to (Gram anchoring).
"""

import copy

import torch
from torch import Tensor, nn

from dubsar.models.ssl.encoder import SslEncoder
from dubsar.models.ssl.heads import ProjectionHead


class Branch(nn.Module):
    """A backbone with its two heads.

    Args:
        encoder: the backbone.
        cls_head: for the state of a whole view.
        patch_head: for the states of single patches.
    """

    def __init__(self, encoder: SslEncoder, cls_head: ProjectionHead, patch_head: ProjectionHead) -> None:
        super().__init__()
        self.encoder, self.cls_head, self.patch_head = encoder, cls_head, patch_head


class SslNetwork(nn.Module):
    """Student, teacher and, with Gram anchoring, an anchor; all three start with the same weights.

    Args:
        student: what is trained.
        anchored: keep an anchor.

    Attributes:
        anchor: the frozen backbone of Gram anchoring; None without.
        step: optimizer steps done, of which the schedules are functions; a buffer, so that resuming restores it.
    """

    step: Tensor

    def __init__(self, student: Branch, *, anchored: bool = False) -> None:
        super().__init__()
        self.student = student
        self.teacher = copy.deepcopy(student).requires_grad_(False)
        self.anchor = copy.deepcopy(student.encoder).requires_grad_(False) if anchored else None
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def train(self, mode: bool = True) -> "SslNetwork":
        """Set the student's mode; teacher and anchor never drop anything."""
        super().train(mode)
        self.teacher.eval()
        if self.anchor is not None:
            self.anchor.eval()
        return self

    @property
    def encoders(self) -> list[SslEncoder]:
        """All backbones."""
        return [self.student.encoder, self.teacher.encoder, *([self.anchor] if self.anchor is not None else [])]

    @torch.no_grad()
    def update_teacher(self, momentum: float) -> None:
        """Move the teacher towards the student: ``momentum`` of it stays."""
        teacher: list[Tensor] = list(self.teacher.parameters())
        student: list[Tensor] = list(self.student.parameters())
        torch._foreach_lerp_(teacher, student, 1 - momentum)

    @torch.no_grad()
    def refresh_anchor(self) -> None:
        """Make the anchor what the teacher is now."""
        assert self.anchor is not None
        self.anchor.load_state_dict(self.teacher.encoder.state_dict())
