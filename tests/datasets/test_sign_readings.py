"""From a reading back to the sign."""

from pathlib import Path

import pytest

from dubsar.datasets.formats.catf import read_catf
from dubsar.datasets.inventory import read_inventory
from dubsar.datasets.sign_readings import LOST, read_readings, text_signs


@pytest.mark.data
def test_readings_index_numbers_and_names_lead_to_their_sign(data_root: Path) -> None:
    inventory = read_inventory(data_root)
    readings = read_readings(data_root, inventory)

    def glyphs(text: str) -> list[str]:
        return ["|".join(inventory[c].glyph for c in s.classes) or s.reading for s in text_signs(text, readings)]

    assert glyphs("a-na LUGAL") == ["𒀀", "𒈾", "𒈗"]
    assert glyphs("{1}ŠUM.MA") == ["𒁹", "𒋳", "𒈠"]
    assert glyphs("u₂ u šu-nu … x") == ["𒌑", "𒌋", "𒋗", "𒉡", LOST, "x"]


@pytest.mark.data
def test_nearly_all_readings_of_the_tablets_texts_are_one_sign(data_root: Path) -> None:
    readings = read_readings(data_root, read_inventory(data_root))
    texts = (data_root / "tablet-signs" / "text").glob("*.atf")
    signs = [s for text in texts for line in read_catf(text) for s in text_signs(line.text, readings) if not s.lost]
    assert len(signs) > 9000
    assert sum(len(s.classes) == 1 for s in signs) / len(signs) > 0.9
