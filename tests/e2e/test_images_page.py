"""Every command of docs/images.md, in order, on archives of exactly the official layouts.

The archives are unpacked by the commands of the page as they stand. The commands of tools are
changed only to make them small: one process instead of eight, a narrow network, few pixels and
epochs. Those that run whole sweeps are left out: tests/commands/test_sweep.py runs a small one.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from helpers import image_trees
from helpers.page_commands import blocks, run_in_process, small_options, words_of_commands

from sce_video.data_tools.prepare.imagenet import IMAGENET100_CLASSES

pytestmark = pytest.mark.slow

EPOCHS = 1
#: Work folder and what its results are of: data set, network, images tested.
LINEAR = {
    "r18_1xb256-32-100e_cifar10": ("cifar10", "r18_small", 10),
    "r18_1xb256-32-100e_cifar100": ("cifar100", "r18_small", 100),
    "r18_1xb256-96-100e_stl10": ("stl10", "r18_small", 10),
    "r18_1xb256-64-100e_tiny_imagenet": ("tiny_imagenet", "r18_small", 6),
    "r50_8xb64-224-100e_imagenet100": ("imagenet100", "r50_2d", 100),
    "r50_8xb64-224-100e_imagenet": ("imagenet", "r50_2d", 102),
    "r50_8xb128-224-90e_imagenet": ("imagenet", "r50_2d", 102),
    "multicrop_linear_imagenet": ("imagenet", "r50_2d", 102),
    "moco_linear_cifar10": ("cifar10", "r18_small", 10),
    "ressl_linear_cifar10": ("cifar10", "r18_small", 10),
    "last_and_best": ("cifar10", "r18_small", 10),
}


def runs_a_sweep(words: list[str]) -> bool:
    """Whether a command trains the networks of the ablations, and does not only list them."""
    return "sweep" in words and not {"--list", "--report"} & set(words)


def shrunk(words: list[str], repo: Path) -> list[str]:
    """The words of a command that does the same on small data."""
    words = [re.sub(r"epoch_\d+\.pth$", f"epoch_{EPOCHS}.pth", word) for word in words]
    if words[0] == "bash":
        words[words.index("8")] = "1"
    configs = [word for word in words if re.fullmatch(r"configs/(?!sweeps).*\.py", word)]
    if configs:
        if "train" in words[1]:
            words += ["--amp", "float32"]  # fp16 on a CPU would take minutes
        given = "--cfg-options" in words
        options = small_options(repo / configs[0], EPOCHS)
        if given:  # those of the page win
            place = words.index("--cfg-options") + 1
            words[place:place] = options
        else:
            words += ["--cfg-options", *options]
    return words


@pytest.fixture(scope="module")
def folder(repo, tmp_path_factory):
    """A folder with ``tools``, ``configs`` and the archives, as the page describes it."""
    root = tmp_path_factory.mktemp("images")
    for name in ("tools", "configs"):
        (root / name).symlink_to(repo / name)
    make_archives(make_data(tmp_path_factory.mktemp("trees")), root)
    return root


def test_every_command_of_the_page(repo, folder, monkeypatch):
    monkeypatch.chdir(folder)
    # The launchers themselves run in tests/e2e/test_reproduce.py.
    launched = {"tools/dist_train.sh", "tools/dist_test.sh"}
    count = 0
    for block in blocks(repo / "docs/images.md", "bash"):
        if "tools/" not in block and "sce-video" not in block:  # the archives
            done = subprocess.run(
                ["bash", "-eu", "-c", block], cwd=folder, capture_output=True, text=True
            )
            assert done.returncode == 0, block + done.stderr
            continue
        for words in words_of_commands(block):
            if runs_a_sweep(words):
                continue
            run_in_process(shrunk(words, repo), folder, launched)
            count += 1
    assert count > 40
    check_data(folder / "data")
    check_results(folder / "work_dirs")


def check_data(data: Path) -> None:
    lists = {path.name: len(path.read_text().split("\n")) - 1 for path in data.rglob("*_*.txt")}
    assert (lists["imagenet_train.txt"], lists["imagenet_val.txt"]) == (102, 102)
    assert (lists["imagenet100_train.txt"], lists["imagenet100_val.txt"]) == (100, 100)


def check_results(work: Path) -> None:
    results = {
        path.parent.name: json.loads(path.read_text()) for path in work.rglob("results.json")
    }
    for name, (dataset, network, images) in LINEAR.items():
        content = results[name]
        protocol = content["protocol"]
        assert (protocol["dataset"], protocol["benchmark"]["protocol"]) == (dataset, "linear")
        assert (protocol["videos"], protocol["failures"], protocol["views"]) == (images, 0, 1)
        assert protocol["epochs"] == EPOCHS and "chosen_on_test" not in protocol
        assert 0 <= content["metrics"]["top1"] <= 1
        origin = protocol["pretrained"]
        assert origin["epoch"] == EPOCHS and origin["benchmark"]["dataset"] == dataset
        assert origin["benchmark"]["network"] == network
        method = {"moco": "MoCo", "ressl": "ReSSL"}.get(name.partition("_")[0], "SCE")
        assert origin["training"]["config"]["model"]["type"] == method
    best = json.loads((work / "last_and_best/best.json").read_text())
    assert best["protocol"]["chosen_on_test"] is True
    for name in results.keys() - LINEAR.keys():  # the pretrained networks themselves
        assert "knn_top1" in results[name]["metrics"] and name.startswith("sce_r")
    assert len(results.keys() - LINEAR.keys()) == 6
    report = html.unescape((work / "report.md").read_text())
    assert all(f"{name}/results.json" in report for name in results)
    assert "last_and_best/best.json" in report and (work / "report.html").is_file()
    assert (work / "ablations/image_lambda.md").is_file()


#: ImageNet has classes of ImageNet100 and others.
OTHER_WNIDS = ("n01440764", "n01443537")


def make_data(root: Path) -> Path:
    """``cifar10``, ``cifar100``, ``stl10``, ``tiny_imagenet``, ``imagenet`` as they unpack."""
    image_trees.make_cifar10(root / "cifar10", per_class=1)
    image_trees.make_cifar100(root / "cifar100")
    image_trees.make_stl10(root / "stl10")
    image_trees.make_tiny_imagenet(root / "tiny_imagenet")
    wnids = sorted({*IMAGENET100_CLASSES, *OTHER_WNIDS})
    image_trees.make_imagenet(root / "imagenet", wnids, train=1, size=(48, 64))
    return root


def make_archives(data: Path, folder: Path) -> None:
    """The official archives, by their names, of the trees of :func:`make_data`."""
    for name, source in (
        ("cifar-10-python.tar.gz", "cifar10/cifar-10-batches-py"),
        ("cifar-100-python.tar.gz", "cifar100/cifar-100-python"),
        ("stl10_binary.tar.gz", "stl10/stl10_binary"),
        ("ILSVRC2012_devkit_t12.tar.gz", "imagenet/ILSVRC2012_devkit_t12"),
    ):
        with tarfile.open(folder / name, "w:gz") as archive:
            archive.add(data / source, Path(source).name)
    with zipfile.ZipFile(folder / "tiny-imagenet-200.zip", "w") as archive:
        for path in sorted((data / "tiny_imagenet").rglob("*")):
            archive.write(path, path.relative_to(data / "tiny_imagenet"))
    with tarfile.open(folder / "ILSVRC2012_img_val.tar", "w") as archive:  # flat
        for path in sorted((data / "imagenet/val").iterdir()):
            archive.add(path, path.name)
    with tarfile.open(folder / "ILSVRC2012_img_train.tar", "w") as archive:  # a tar of each class
        for of_class in sorted((data / "imagenet/train").iterdir()):
            inner = folder / f"{of_class.name}.tar"
            with tarfile.open(inner, "w") as images:
                for path in sorted(of_class.iterdir()):
                    images.add(path, path.name)
            archive.add(inner, inner.name)
            inner.unlink()
