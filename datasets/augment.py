"""Augmentation of photographs of clay: light, focus, grain, compression, small rotations. Never a mirror.

A mirrored sign is another sign, or none; a test goes through every transform that is used here. This is the only module
that imports albumentations, so it is the one that stops it from asking a registry for its version.
"""

import os
from typing import Any

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")

import albumentations as A
import cv2

GROUND = 0  # museum photographs stand on black


def tile_augmentation(degrees: float = 4.0) -> A.Compose:
    """Build the augmentation of detector tiles with boxes (pascal_voc) and a background-weight mask.

    Boxes are clipped to the tile, and one that loses more than half of what showed is dropped.
    """
    return A.Compose(
        [
            A.Affine(rotate=(-degrees, degrees), shear=(-3, 3), fill=GROUND, fill_mask=255, p=0.6),
            *_photographic(),
        ],
        bbox_params=A.BboxParams("pascal_voc", label_fields=["classes"], min_visibility=0.5, clip=True),
    )


def crop_augmentation() -> A.Compose:
    """Build the augmentation of sign crops (H, W, 3)."""
    return A.Compose(
        [
            A.Affine(
                rotate=(-6, 6),
                shear=(-6, 6),
                scale={"x": (0.85, 1.15), "y": (0.85, 1.15)},
                translate_percent=(-0.07, 0.07),
                keep_ratio=False,
                border_mode=cv2.BORDER_REPLICATE,
                p=0.9,
            ),
            *_photographic(),
        ]
    )


def _photographic() -> list[Any]:
    """Return what differs between photographs of the same clay."""
    return [
        A.RandomBrightnessContrast(0.2, 0.3, p=0.6),
        A.RandomGamma((80, 125), p=0.3),
        A.HueSaturationValue(10, 30, 10, p=0.4),
        A.ToGray(p=0.2),
        A.OneOf(
            [A.GaussianBlur(blur_limit=(3, 5)), A.MotionBlur(blur_limit=(3, 5)), A.Downscale(scale_range=(0.5, 0.9))],
            p=0.25,
        ),
        A.GaussNoise(std_range=(0.01, 0.05), p=0.2),
        A.ImageCompression(quality_range=(50, 95), p=0.2),
    ]
