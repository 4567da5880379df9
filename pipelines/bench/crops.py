"""How much does it save to keep the crops of the training photographs in memory?"""

import numpy as np
import numpy.typing as npt

from dubsar.datasets.augment import crop_augmentation
from dubsar.datasets.crops import CropSize, cut_crops
from dubsar.datasets.images import load_image
from dubsar.datasets.inventory import read_inventory
from dubsar.datasets.photographs import labelled_photographs
from dubsar.datasets.sources import data_root
from dubsar.pipelines.bench.measure import Arm, Effort, Measured, compare, interleave, timings
from dubsar.pipelines.bench.stage import small_config
from dubsar.pipelines.stages.classify import BORDER, centre, read_crops

DECODED, CACHED, AUGMENTED = "decode and cut", "cached", ", augmented"
REQUIRED = 100.0
Pixels = npt.NDArray[np.uint8]
_AT_ONCE = 64  # cached crops per call: one takes too little time for a clock


def bench_crops(effort: Effort) -> list[Measured]:
    """Time a crop from the photograph's file against one from memory, without and with what training does to both."""
    config = small_config("classify", effort)
    size = CropSize(config.data.crop_px, config.data.context, BORDER)
    root = data_root()
    photographs = labelled_photographs(root, "train")
    chosen = np.random.default_rng(0).permutation(len(photographs))
    crops = read_crops(root, "train", size, read_inventory(root), _AT_ONCE).pixels_NSS3
    augment = crop_augmentation()

    def decode(number: int) -> Pixels:
        photograph = photographs[chosen[number % len(chosen)]]
        image = load_image(photograph.path)
        box = image.from_file_pixels(np.array([photograph.boxes[0].box_xyxy]))
        pixels: Pixels = cut_crops(image.rgb_HW3, box, size)[0]
        return pixels

    def change(pixels: Pixels) -> Pixels:
        changed: Pixels = augment(image=pixels)["image"]
        return centre(changed, size.crop_px)

    arms = [
        Arm(DECODED, decode),
        Arm(CACHED, lambda _: [pixels.copy() for pixels in crops], lambda _: len(crops)),
        Arm(DECODED + AUGMENTED, lambda number: change(decode(number))),
        Arm(CACHED + AUGMENTED, lambda _: [change(pixels) for pixels in crops], lambda _: len(crops)),
    ]
    samples = interleave(arms, effort)
    comparisons = [
        compare(samples, DECODED, CACHED, required=REQUIRED),
        compare(samples, DECODED + AUGMENTED, CACHED + AUGMENTED),
    ]
    note = f"crops of {size.side_px} px; decoding is that of one training photograph after another"
    return [Measured("classify", "crop", timings(samples), comparisons, (note,))]
