# %% [markdown]
# # Read a tablet
# From a photograph to a transliteration, with the weights that ship.

# %%
from pathlib import Path

from dubsar.pipelines.reading.export import to_text
from dubsar.pipelines.reading.read import read_tablet

photo = Path("../datasets/sample/tablet.jpg")
if not photo.exists():
    photo = Path("datasets/sample/tablet.jpg")
tablet = read_tablet(photo)
print(to_text(tablet))

# %% [markdown]
# Every sign keeps its candidates, with probabilities, and its box in the photograph's own pixels.

# %%
for sign in list(tablet.signs())[:10]:
    print(sign.box, [(c.glyph, c.name, round(c.probability, 2)) for c in sign.candidates[:3]], sign.reading)
