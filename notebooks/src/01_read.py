# %% [markdown]
# # Read a tablet
# From a photograph to a transliteration, with the weights that ship. `photo` may be any picture of yours.

# %%
from pathlib import Path

import dubsar.datasets
from dubsar.pipelines.reading.export import to_text
from dubsar.pipelines.reading.read import read_tablet

photo = Path(next(iter(dubsar.datasets.__path__))) / "sample" / "tablet.jpg"
tablet = read_tablet(photo)
print(to_text(tablet))

# %% [markdown]
# Every sign keeps its candidates, with probabilities, and its box in the photograph's own pixels.

# %%
for sign in list(tablet.signs())[:10]:
    print(sign.box, [(c.glyph, c.name, round(c.probability, 2)) for c in sign.candidates[:3]], sign.reading)
