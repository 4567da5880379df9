# %% [markdown]
# # Look at the data
# Which signs stand where, how often, under which numbers of the handbooks, and what is wrong with them.
#
# This needs the data folder: set `DUBSAR_DATA` before Jupyter starts. Without it the cells below find nothing to show.

# %%
from collections import Counter

import matplotlib.pyplot as plt
import numpy as np

from dubsar.datasets.check import check_data
from dubsar.datasets.crops import CropSize, cut_crops
from dubsar.datasets.formats.tablet_signs import read_tablet_signs
from dubsar.datasets.images import load_image
from dubsar.datasets.inventory import Inventory, read_inventory
from dubsar.datasets.lines import read_line_pairs
from dubsar.datasets.sources import data_root

root = data_root()
here = (root / "tablet-signs").is_dir()
photographs = read_tablet_signs(root, split="train") if here else []
inventory = read_inventory(root) if here else Inventory(())
print(f"{len(photographs)} photographs of the training split, {len(inventory)} sign classes, in {root}")

# %% [markdown]
# ## One photograph and its boxes
# Boxes are kept in pixels of the file as stored; `from_file_pixels` turns them the way the photograph is turned. Most
# photographs are labelled in part: clay without a box is not always clay without a sign.

# %%
for photograph in sorted(photographs, key=lambda p: abs(len(p.boxes) - 80))[:1]:
    image = load_image(photograph.path)
    boxes = image.from_file_pixels(np.array([b.box_xyxy for b in photograph.boxes]))
    figure, axes = plt.subplots(figsize=(8, 8))
    axes.imshow(image.rgb_HW3)
    for x0, y0, x1, y1 in boxes:
        axes.add_patch(plt.Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, color="deepskyblue"))
    axes.set(title=f"{photograph.object_id}: {len(boxes)} signs", xticks=[], yticks=[])
    plt.show()

# %% [markdown]
# ## The commonest signs, and the rare ones
# Half of the classes have but a handful of examples; scores on them are luck as much as learning.

# %%
counts = Counter(box.glyph for photograph in photographs for box in photograph.boxes)
for glyph, count in counts.most_common(12):
    print(f"{count:5} {glyph}  {inventory[inventory.id_of_glyph[glyph]].name:8} {inventory.of_glyph(glyph).numbers}")
few = sum(counts[sign.glyph] < 5 for sign in inventory.classes)
print(f"{few} of {len(inventory)} classes have fewer than 5 examples in training")

# %% [markdown]
# ## A sign by its number
# For those who think in HZL numbers. A number may name several classes, and a class may have several numbers.

# %%
for catalogue, number in (("HZL", "1"), ("HZL", "8"), ("HZL", "335"), ("ABZ", "579")):
    found = [inventory[i] for i in inventory.by_number(catalogue, number)]
    print(catalogue, number, "is", ", ".join(f"{sign.glyph} {sign.name} ({sign.numbers})" for sign in found) or "-")

# %% [markdown]
# ## One sign by many hands
# The same crops that the classifier learns from: a margin around the box, stretched to a square.

# %%
glyph = "𒀭"  # AN, HZL 8
crops = []
for photograph in (p for p in photographs if any(b.glyph == glyph for b in p.boxes)):
    image = load_image(photograph.path)
    boxes = image.from_file_pixels(np.array([b.box_xyxy for b in photograph.boxes if b.glyph == glyph]))
    crops.extend(cut_crops(image.rgb_HW3, boxes[:2], CropSize(64, 0.1)))
    if len(crops) >= 12:
        break
if crops:
    plt.figure(figsize=(9, 3))
    plt.imshow(np.concatenate([np.concatenate(crops[:6], 1), np.concatenate(crops[6:12], 1)]))
    plt.axis("off")
    plt.show()

# %% [markdown]
# ## Lines of text
# What the transliterator learns from: the signs of a line, without spaces, and how editors read them.

# %%
lines = read_line_pairs(root, "hittite", "train") if (root / "hittite-lines").is_dir() else []
for line in lines[:5]:
    print(f"{line.text_id} {line.label}\n    {line.signs}\n    {line.translit}")

# %% [markdown]
# ## What is wrong
# `dubsar data check` prints all of it. An error spoils training or scores; a note is known and dealt with.

# %%
issues = check_data(root) if here else []
print(dict(Counter(issue.severity for issue in issues)))
for issue in [i for i in issues if i.severity == "error"][:8]:
    print(f"{issue.path.name}:{issue.line}: {issue.message}")
