# %% [markdown]
# # Train each stage
# With the debug configs: a few steps on a few examples, under a minute on one CPU core. It proves the path and learns
# nothing; `dubsar train classify` is the real thing, with the same code.
#
# This needs the data folder: set `DUBSAR_DATA` before Jupyter starts. Without it no stage is trained.

# %%
import json
from pathlib import Path

import matplotlib.pyplot as plt

from dubsar.configs.base import load
from dubsar.configs.schema import STAGES, shipped_config
from dubsar.datasets.sources import data_root
from dubsar.pipelines.launch import launch
from dubsar.pipelines.run_report import read_curves

here = (data_root() / "tablet-signs").is_dir()
stages = list(STAGES) if here else []
runs = Path("runs") / "notebook"
print(f"stages to train: {stages}, into {runs}")

# %% [markdown]
# ## A config
# One YAML a stage, checked before anything runs; settings are changed by name, and a misspelt name is an error.

# %%
configs = {}
for stage in stages:
    overrides = ("data.limit=1",) if stage == "detect" else ()
    configs[stage] = load(shipped_config(stage).parent / "debug" / f"{stage}.yaml", STAGES[stage], overrides)
    print(stage, configs[stage].model.model_dump(exclude_defaults=True), configs[stage].optim.lr)

# %% [markdown]
# ## Training
# `launch` is what `dubsar train` calls. It returns the dev scores of the weights that it kept.

# %%
scores = {stage: launch(config, runs / stage, overwrite=True) for stage, config in configs.items()}

# %% [markdown]
# ## Curves
# Each run folder has `metrics.jsonl`, TensorBoard events, `curves.png` and `report.html`.

# %%
figure, panels = plt.subplots(1, max(1, len(scores)), figsize=(12, 3), squeeze=False)
for axes, stage in zip(panels[0], scores, strict=False):
    steps, losses = zip(*read_curves(runs / stage / "metrics.jsonl")["train/loss"], strict=True)
    axes.plot(steps, losses, marker="o")
    axes.set(title=f"{stage}: training loss", xlabel="optimizer step")
plt.show()

# %% [markdown]
# ## What became of the efficiency levers
# All off is the reference. What was asked and what really ran stands in `levers.json`.

# %%
for stage, measures in scores.items():
    levers = json.loads((runs / stage / "levers.json").read_text(encoding="utf-8"))
    print(stage, {row["lever"]: row["resolved"] for row in levers[:6]})
    print("   ", {name: round(value, 2) for name, value in measures.items()})
