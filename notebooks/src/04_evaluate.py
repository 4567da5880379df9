# %% [markdown]
# # How good is it?
# First the sample tablet, whose truth ships with dubsar; then, where the data folder is there (`DUBSAR_DATA`), a few
# examples of the dev split. For figures to quote run `dubsar evaluate classify --split test` and the like.

# %%
import json
from collections import Counter
from pathlib import Path

import numpy as np

import dubsar.datasets
from dubsar.configs.base import load
from dubsar.configs.schema import ReadConfig, shipped_config
from dubsar.datasets.boxes import match
from dubsar.datasets.inventory import Inventory, SignClass
from dubsar.datasets.sources import data_root
from dubsar.datasets.tablet import Tablet
from dubsar.models.checkpoint import load_model, shipped
from dubsar.pipelines.evaluation import evaluate_read, evaluate_stage
from dubsar.pipelines.reading.evaluate import ReadScores, add_signs
from dubsar.pipelines.reading.read import read_tablet

sample = Path(next(iter(dubsar.datasets.__path__))) / "sample"
truth = Tablet.from_dict(json.loads((sample / "tablet.json").read_text(encoding="utf-8")))
tablet = read_tablet(sample / "tablet.jpg")

# %% [markdown]
# ## The sample: signs found, signs named
# A sign is found where its box and the true one overlap by half. A rendered tablet is far easier than clay.

# %%
true = [sign for sign in truth.signs() if sign.box is not None and sign.damage == "intact"]
boxes = np.array([sign.box for sign in true])
scores = ReadScores()
add_signs(scores, tablet, boxes, [sign.glyph for sign in true])
print({name: round(value, 1) for name, value in scores.summary().items() if "sign" in name or "top" in name})

# %% [markdown]
# ## Which signs are taken for which?
# More telling than any average: signs of like shape (BA and ZU, KU and LU) are where a reader has to look twice.

# %%
found = [sign for sign in tablet.signs() if sign.box is not None]
pairs = match(np.array([s.box for s in found]).reshape(-1, 4), boxes, 0.5, np.array([s.confidence for s in found]))
wrong = Counter((true[t].glyph, found[f].glyph) for f, t in pairs if found[f].glyph != true[t].glyph)
inventory = Inventory.from_list(load_model(shipped("classify"), "classify").card["inventory"])
for glyphs, count in wrong.most_common(8):
    is_, taken_for = (inventory.of_glyph(glyph) or SignClass(glyph, "(no class)") for glyph in glyphs)
    print(f"{count} x {is_.glyph} {is_.name} taken for {taken_for.glyph} {taken_for.name} {taken_for.numbers}")

# %% [markdown]
# ## Is a probability worth its name?
# Of the signs that are given 80 %, about 80 % should be right.

# %%
right = np.array([found[f].glyph == true[t].glyph for f, t in pairs], dtype=float)
sure = np.array([found[f].confidence for f, _ in pairs])
for low, high in ((0.0, 0.5), (0.5, 0.8), (0.8, 1.01)):
    chosen = (sure >= low) & (sure < high)
    if chosen.any():
        print(
            f"{chosen.sum():4} signs of {low:.0%} to {min(high, 1):.0%}: said {sure[chosen].mean():.0%}, "
            f"right {right[chosen].mean():.0%}"
        )

# %% [markdown]
# ## A few examples of dev
# Tune on dev and leave test alone until the end. So few examples (`limit`) say little; the command line takes all.

# %%
if (data_root() / "tablet-signs").is_dir():
    evaluate_stage("classify", None, "dev", limit=4)
    evaluate_read(load(shipped_config("read"), ReadConfig), "dev", limit=1)
if (data_root() / "hittite-lines").is_dir():
    evaluate_stage("transliterate", None, "dev", limit=4)
