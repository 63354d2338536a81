"""The digits inside scikit-learn: files, parts, counts."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.run_tool import prepare
from PIL import Image

from sce_video.data_tools import generated as digits

sklearn_datasets = pytest.importorskip("sklearn.datasets")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("digits") / "digits"
    with pytest.MonkeyPatch.context() as patched:  # without waiting for the disk 1,797 times
        patched.setattr(digits, "write_bytes", Path.write_bytes)
        assert prepare("digits", str(root)) == 0
    return root


def test_every_image_is_in_one_part_with_its_pixels_and_its_class(written: Path) -> None:
    """Against scikit-learn's own arrays, read back by PIL."""
    found = sklearn_datasets.load_digits()
    files = {int(path.stem): path for path in written.rglob("*.png")}
    assert len(list(written.rglob("*.*"))) == len(files) == 1797
    for number, path in files.items():
        assert path.parent.name == str(found.target[number])
        image = np.asarray(Image.open(path))
        assert image.dtype == np.uint8 and image.shape == (8, 8)
        assert np.abs(image / 255 * 16 - found.images[number]).max() <= 16 / 255 / 2
    assert found.images.min() == 0 and found.images.max() == 16


def test_parts_are_three_one_and_one_fifths_of_every_class_in_order(written: Path) -> None:
    for label in range(10):
        numbers = [
            sorted(int(path.stem) for path in (written / part / str(label)).glob("*.png"))
            for part in ("train", "val", "test")
        ]
        assert sum(numbers, []) == sorted(sum(numbers, []))
        total = sum(map(len, numbers))
        for found, fifths in zip(numbers, (3, 1, 1), strict=True):
            assert abs(len(found) - fifths * total / 5) < 1


def test_again_is_the_same_and_other_images_are_refused(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again: dict[Path, bytes] = {}
    monkeypatch.setattr(digits, "write_bytes", again.__setitem__)
    assert sum(digits.write_digits(written).values()) == 1797
    assert again == {path: path.read_bytes() for path in written.rglob("*.png")}
    other = tmp_path / "train" / "cat" / "0000.png"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"")
    with pytest.raises(ValueError, match="cat/0000.png is not a file of the digits"):
        digits.write_digits(tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [other]


def test_no_scikit_learn_is_refused(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert prepare("digits", str(tmp_path)) == 2
    err = capsys.readouterr().err
    assert err.startswith("prepare.py: error: ") and "[transfer]" in err
