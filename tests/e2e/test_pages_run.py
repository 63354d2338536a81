"""Every command of the pages runs, on small folders with the names that the pages have.

They are changed only to be small: tiny networks, an epoch. What is not run here says where it is.
docs/reproduce.md and docs/images.md have tests of their own.
"""

from __future__ import annotations

import re
import shlex
import shutil
from glob import glob
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers.hf_models import save_model
from helpers.page_commands import blocks, small_options, words_of_commands
from helpers.run_tool import run_tool
from helpers.training import make_videos
from helpers.videos import write_video

pytestmark = pytest.mark.slow

REPO = Path(__file__).resolve().parents[2]
OWN_TESTS = ("reproduce.md", "images.md")
PAGES = [REPO / "README.md", *sorted((REPO / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if page.name not in OWN_TESTS and blocks(page, "bash")]
#: Commands that are not run here: what their words contain, and where they run or why they do not.
ELSEWHERE = {
    r"^(?!sce-video)": "other programs; tools and launchers in tests/tools, benchmarks by hand",
    "--serve": "a server: tests/find/test_search_page_in_browser.py",
    "s3://": "a store: tests/runs/test_tables.py, tests/engine/hooks",
    "^sce-video demo": "minutes: tools/dev/check_wheel.sh runs it from the wheel",
    r"hf:(facebook|microsoft|timm)/|hf:/models|encoder \S+/": "a hub: tests/inference/encoders",
    "train RUN/": "recipes that encoder writes: tests/inference/encoders",
    r"prepare (?!digits|toy)": "layouts of official data sets: tests/tools/test_prepare.py",
    r" data/(finegym|epic|transfer)": "likewise: tests/e2e/test_transfer.py, test_prepare.py",
    r"^sce-video transfer linear": "features of official data sets: tests/e2e/test_transfer.py",
    r"sweep ": "trainings of a table: tests/commands/test_sweep.py",
    r"my_simsiam|my_test": "files of the page: tests/e2e/test_docs.py runs them",
    r"--import my_": "files of the page: tests/e2e/test_own_parts.py runs them",
    r"--pairs ssv2": "class names of Something-Something: test_sense_of_time.py",
}
TINY = "--width 4 --frames 4 --size 32 --hidden 16 --batch 4 --workers 0 --epochs 1"
#: Pages whose network also has texts; and what earlier pages have left in work_dirs.
WITH_TEXT = ("encoders.md", "search.md")
LEFT_BY_OTHERS = {
    "evaluate.md": {"sce_r3d18_folder": "RUN", "r3d18_folder": "CLASSIFIER"},
}
CONTINUED = "--batch 4 --workers 0 --epochs 1"
#: Words of the pages and what stands there instead.
INSTEAD = {
    "/path/to/videos": "VIDEOS", "/path/to/labelled": "TEST", "/path/to/other/labelled": "TRAIN",
    "/path/to/train": "TRAIN", "/labelled/train": "TRAIN", "/path/to/test": "TEST",
    "/labelled/test": "TEST", "/path/to/select": "TEST", "/path/to/new_videos": "NEW_VIDEOS",
    "match.mp4@12:30-12:35": "match.mp4@1-3", "epoch_100.pth": "epoch_1.pth",
    r"person(\d+)": r"v\d(\d)", "a dog catches a ball": "a dog",
    "'abseiling' and duration > 5": "'red_jump' and duration > 0.5", "weizmann4": "TEST",
    "wave": "red_jump", "jhmdb": "VIDEOS", "240": "24", "RUN/seed*": "NEW_RUN/seed*", "2,4": "0,0",
    "RECIPE": "configs/sce/sce_r3d18_folder_small.py", "MODEL_FOLDER": "xclip",
    "efficientnet_b0_rwightman-7f5810bc.pth": "RUN",
}  # fmt: skip
RUNS = ("SOURCE", "RUN1", "RUN2", "RUN3")
CLASSES = ("red_jump", "red_serve", "blue_jump", "blue_serve")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Videos, labelled ones, tables, a run, a classifier, an index, one of a video-text model."""
    root = tmp_path_factory.mktemp("pages")
    for name, count in (("VIDEOS", 12), ("TRAIN", 16), ("TEST", 8)):
        videos = make_videos(root / name, count)
        if name != "VIDEOS":
            for video in sorted(videos.rglob("*.mp4")):
                number = int(video.stem[1:])
                target = root / name / CLASSES[number % 4] / video.name
                target.parent.mkdir(exist_ok=True)
                video.rename(target)
            for empty in ("class0", "class1"):
                (root / name / empty).rmdir()
    rng = np.random.default_rng(0)
    long = rng.integers(0, 255, (40, 32, 40, 3)).astype(np.uint8)
    for name in ("a", "b", "c", "d", "some", "some_video", "match", "VIDEO", "OTHER", "A", "B"):
        write_video(root / f"{name}.mp4", np.roll(long, len(name), axis=0), fps=2)
        shutil.copy(root / f"{name}.mp4", root / "VIDEOS" / f"{name}.mp4")
    for name in ("a.jpg", "photo.jpg"):
        cv2.imwrite(str(root / name), long[0])
    (root / "NEW_VIDEOS").symlink_to(root / "VIDEOS")
    (root / "segments.csv").write_text("path,start,end,output\na.mp4,1,3,x/a.mp4\n")
    rows = "path,start,end,label\na.mp4,1,3,jump\nb.mp4,2,5,serve\n"
    (root / "labels_segments.csv").write_text(rows)
    listed = sorted((root / "TEST").rglob("*.mp4"))
    rows = [f"{v},{v.parent.name},{','.join([str(n % 2)] * 4)}" for n, v in enumerate(listed)]
    (root / "clips.csv").write_text(
        "\n".join(["path,label,person,scene,source,fold", *rows]) + "\n"
    )
    (root / "labels.csv").write_text(f"path,start,end,label\nmatch.mp4,1,4,{CLASSES[0]}\n")
    save_model("xclip", root / "xclip")
    for words in (
        f"pretrain VIDEOS --out RUN --method sce {TINY} --embedding 8 --epoch-samples 8",
        f"finetune RUN --train TRAIN --test TEST --out CLASSIFIER {CONTINUED}",
        "index VIDEOS --checkpoint RUN --out INDEX",
        "encoder xclip --out TEXT",
        "repack TRAIN --to k400.lance",
        "repack VIDEOS --to videos.lance",
        "index videos.lance --checkpoint RUN --out of_table --column NAME",
        "index VIDEOS --checkpoint TEXT --out TEXT_INDEX",
        "index k400.lance --checkpoint TEXT --out index_of_k400",
        "embed VIDEOS --checkpoint RUN --out features.npz",
    ):
        run(words.split(), root)
    for name in RUNS:
        shutil.copytree(root / "RUN", root / name)
    return root


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page_run(page, made, tmp_path, monkeypatch):
    for path in made.iterdir():
        (tmp_path / path.name).symlink_to(path)
    if page.name in WITH_TEXT:
        for name, instead in (("RUN", "TEXT"), ("INDEX", "TEXT_INDEX")):
            (tmp_path / name).unlink()
            (tmp_path / name).symlink_to(made / instead)
    (tmp_path / "work_dirs").mkdir()
    if page.name == "search.md":
        index = tmp_path / "my_index"
        index.mkdir()
        (index / "labels.txt").write_text("a.mp4 0\nb.mp4 1\n")
        (index / "labels_classes.txt").write_text("jump\nother\n")
        (index / "columns.csv").write_text("path,camera,date\nb.mp4,north,2026-01-31\n")
    for name, instead in LEFT_BY_OTHERS.get(page.name, {}).items():
        (tmp_path / "work_dirs" / name).symlink_to(made / instead)
    (tmp_path / "configs").symlink_to(REPO / "configs")
    monkeypatch.chdir(tmp_path)
    for words in run_here(page):
        run(small(words)[1:], tmp_path)


def run(words: list[str], folder: Path) -> None:
    """Run a command in a process of its own: what it imports stays out of the other tests."""
    done = run_tool(*words, cwd=folder)
    assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def run_here(page: Path) -> list[list[str]]:
    """The words of the commands of a page that are run here."""
    found = [words for block in blocks(page, "bash") for words in words_of_commands(block)]
    return [w for w in found if not any(re.search(why, shlex.join(w)) for why in ELSEWHERE)]


def test_most_commands_run_and_every_reason_is_needed():
    pages = [
        [shlex.join(w) for b in blocks(p, "bash") for w in words_of_commands(b)] for p in PAGES
    ]
    commands = [command for page in pages for command in page]
    for pattern in ELSEWHERE:
        assert any(re.search(pattern, command) for command in commands), pattern
    own = sum(command.startswith("sce-video") for command in commands)
    assert sum(len(run_here(page)) for page in PAGES) > 0.6 * own


def small(words: list[str]) -> list[str]:
    """The words of a command that does the same with a tiny network on small folders."""
    for word, instead in INSTEAD.items():
        words = [given.replace(word, instead) for given in words]
    most = None if words[1] == "compare" else 1  # in a loop, one of them
    found = [sorted(glob(word))[:most] if "*" in word else [word] for word in words]
    words = [word for some in found for word in some]
    if words[1] == "pretrain":
        words[words.index("--out") + 1] = "NEW_RUN"
        words += ["--overwrite", *(CONTINUED if "--from" in words else TINY).split()]
    elif words[1] == "finetune":
        out = words.index("--out") + 1
        words[out] = f"NEW_{words[out]}"
        words += CONTINUED.split()
    elif words[1] == "encoder":  # RUN is a link to what every page reads
        words[words.index("--out") + 1] = "NEW_ENCODER"
    elif words[1] == "index" and "--column" in words:
        words[words.index("--out") + 1] = "column_index"
    configs = [word for word in words if re.fullmatch(r"configs/.*\.py", word)]
    if configs and words[1] in ("train", "test"):
        gallery = "test_cfg.gallery_dataloader"
        none = f"{gallery}=None" in words
        options = small_options(REPO / configs[0], 1)
        options = [o for o in options if not (none and o.startswith(gallery))]
        if "--cfg-options" in words:
            words += options
        else:
            words += ["--cfg-options", *options]
    return words
