"""Help and dispatch of commands, and output and errors of some of them."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from helpers.results_files import K400, results, write
from helpers.small_index import OPTIONS
from helpers.tiny_encoder import moving_frames, save_tiny, write_lossless

from sce_video.commands import export, pretrain, report
from sce_video.commands.main import COMMANDS, GROUPS, main
from sce_video.find.index import build_index
from sce_video.inference.model import load_model
from sce_video.options.command_line import parse
from sce_video.options.training import TrainOptions
from sce_video.runs import page as run_page
from sce_video.runs import plan_pretraining, planned_config, planned_training
from sce_video.runs.train import train
from sce_video.version import __version__


@pytest.fixture(autouse=True)
def _own_argv(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["sce-video"])


def test_one_page_of_help_names_every_command(capsys):
    assert main([]) == 0
    page = capsys.readouterr().out
    assert all(f"  {name} " in page for name in COMMANDS)
    assert all(f"\n{group}:\n" in page for group in GROUPS) and len(page.splitlines()) <= 45


def test_every_command_has_help_under_its_own_name(capsys):
    for name in COMMANDS:
        with pytest.raises(SystemExit) as stopped:
            main([name, "--help"])
        assert stopped.value.code == 0
        page = capsys.readouterr().out
        assert f"usage: sce-video {name} " in page
        assert "\n  --import MODULE" in page


def test_unknown_commands_are_refused(capsys):
    assert main(["pretrian", "x"]) == 2
    assert "Did you mean pretrain?" in capsys.readouterr().err
    assert main(["--index", "I", "search"]) == 2
    assert "Options must follow the name of a command" in capsys.readouterr().err


def test_version(capsys):
    assert main(["--version"]) == 0 and capsys.readouterr().out.strip() == __version__


def test_errors_name_the_command(capsys, tmp_path):
    assert main(["index", str(tmp_path / "none"), "--checkpoint", "x", "--out", "y"]) == 2
    assert capsys.readouterr().err.startswith("sce-video index: error: ")
    assert sys.argv == ["sce-video"]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    for i, name in enumerate(("run/a.mp4", "run/b.mp4", "sit/c.mp4")):
        write_lossless(folder / "videos" / name, moving_frames(20, seed=i))
    model = load_model(save_tiny(folder / "tiny.pth"), device="cpu")
    build_index(model, folder / "videos", folder / "index", OPTIONS)
    (folder / "videos" / "run" / "b.mp4").unlink()
    return folder / "index"


def test_labels_and_what_is_missing(index, tmp_path, capsys):
    (tmp_path / "labels.txt").write_text("run/a.mp4 0\nsit/c.mp4 1\n")
    (tmp_path / "labels_classes.txt").write_text("first\nsecond\n")
    words = [str(index), "--to", "projector", "--out", str(tmp_path / "my p"), "--workers", "0"]
    assert export.main([*words, "--labels", str(tmp_path / "labels.txt")]) == 1
    captured = capsys.readouterr()
    assert "3 videos, 2 with a label, map by PCA, 1 without a thumbnail" in captured.out
    assert "  run/b.mp4: the file is missing" in captured.out
    assert f"next: tensorboard --logdir '{tmp_path / 'my p'}'" in captured.out
    assert "reading thumbnails 3/3 (100%)" in captured.err
    metadata = (tmp_path / "my p" / "metadata.tsv").read_text()
    assert metadata == "path\tlabel\nrun/a.mp4\tfirst\nrun/b.mp4\tno label\nsit/c.mp4\tsecond\n"


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "runs/k400/results.json", results({"top1": 0.602}, "linear", K400))
    toy = results({"top1": 0.99}, "linear", K400, changes={"videos": 24})
    write(tmp_path / "runs/toy/results.json", toy)
    write(tmp_path / "runs/toy/broken.json", "{")
    return tmp_path / "runs"


def test_it_writes_both_pages_and_lists_what_is_not_compared(runs, capsys):
    assert report.main(["runs"]) == 0
    out = capsys.readouterr().out
    text = (runs / "report.md").read_text()
    assert "| **60.2** | +0.4 | measured |" in text
    assert "<strong>60.2</strong>" in (runs / "report.html").read_text()
    assert "measured: 1, not run: 100" in out
    assert "not compared: runs/toy/results.json: 24 videos, published" in out
    assert "skipped: runs/toy/broken.json: is not JSON" in out
    assert "written: runs/report.md runs/report.html" in out
    assert report.main(["runs"]) == 0  # the second time, its own pages are replaced and not read
    assert (runs / "report.md").read_text() == text


def test_where_the_pages_go(runs, capsys):
    for given, written in (
        (["runs", "--out", "there"], {"there/report.html", "there/report.md"}),
        (["runs", "--out", "b.md", "--html", "c/d.html"], {"b.md", "c/d.html"}),
        (["runs/k400/results.json"], {"runs/k400/report.md", "runs/k400/report.html"}),
    ):
        before = {path for path in runs.parent.rglob("*") if path.is_file()}
        assert report.main(given) == 0
        new = {path for path in runs.parent.rglob("*") if path.is_file()} - before
        assert {path.relative_to(runs.parent).as_posix() for path in new} == written
    out = capsys.readouterr().out.splitlines()[-2:]
    assert "measured: 1" in out[0] and "skipped" not in out[0]


@pytest.fixture
def configured(repo, monkeypatch):
    def configure(*arguments):
        recipe = str(repo / "configs/sce/sce_r3d18_folder.py")
        given = []

        def stop(cfg, overwrite):
            given.append(cfg)
            return SimpleNamespace(work_dir=cfg.work_dir, train_loop=None)

        with monkeypatch.context() as patch:
            patch.setattr(run_page, "train_with_page", stop)
            assert train(parse(TrainOptions, [recipe, *arguments])).status == 0
        return given[0]

    return configure


def test_switches_of_mmaction2(configured):
    """The learning rate is scaled once, by the ScheduleHook or else by mmengine."""
    assert configured("--deterministic").randomness.deterministic is True
    plain = configured()
    assert "deterministic" not in plain.get("randomness", {})
    scaled = ("--auto-scale-lr", "--cfg-options", "custom_hooks.ScheduleHook.base_batch_size=256")
    assert not (configured(*scaled).get("auto_scale_lr") or {}).get("enable")
    with pytest.raises(ValueError, match=r"Give --cfg-options auto_scale_lr.base_batch_size=N"):
        configured("--auto-scale-lr")  # AdamW, whose learning rate stays the same
    given = ("--cfg-options", "auto_scale_lr.base_batch_size=64")
    assert configured("--auto-scale-lr", *given).auto_scale_lr.enable is True


def test_arguments(configured):
    cfg = configured()
    assert cfg.work_dir == "work_dirs/sce_r3d18_folder" and cfg.load_from is None
    assert cfg.launcher == "none" and not cfg.resume and cfg.optim_wrapper.type == "OptimWrapper"
    cfg = configured(
        *("--work-dir", "here", "--amp", "--seed", "3", "--launcher", "pytorch"),
        *("--cfg-options", "model.tau_m=0.07", "train_dataloader.dataset.pipeline.3.size=112"),
    )
    assert (cfg.work_dir, cfg.launcher, cfg.randomness.seed) == ("here", "pytorch", 3)
    assert cfg.optim_wrapper.type == "MixedPrecisionOptimWrapper"
    assert cfg.optim_wrapper.dtype == "bfloat16" and cfg.model.tau_m == 0.07
    assert cfg.train_dataloader.dataset.pipeline[3].size == 112


def test_resume_with_and_without_a_path(configured, tmp_path):
    latest = configured("--resume", "--work-dir", str(tmp_path))
    assert latest.resume is True and latest.load_from is None
    path = str(tmp_path / "epoch_3.pth")
    torch.save({"state_dict": {}}, path)
    chosen = configured("--resume", path)
    assert chosen.resume is True and chosen.load_from == path
    assert "adopted" not in chosen
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*epoch_4"):
        configured("--resume", str(tmp_path / "epoch_4.pth"))


@pytest.mark.parametrize("known", [True, False], ids=["restart", "another training"])
def test_a_restart_is_not_planned_again(monkeypatch, tmp_path, known):
    """A plan measures speeds, so a second plan could choose different settings."""
    (tmp_path / "config.py").touch()
    given = {}

    def planned(*args, **kwargs):
        raise ValueError("planned")

    def config(path, **options):
        given.update(options, path=path)
        return {}

    monkeypatch.setattr(planned_training, "is_restart", lambda folder: known)
    monkeypatch.setattr(plan_pretraining, "plan_pretraining", planned)
    monkeypatch.setattr(planned_config, "planned_config", lambda path, *_: {"planned": path})
    monkeypatch.setattr(planned_config, "check_unedited", lambda path: None)
    monkeypatch.setattr(planned_config, "training_config", config)
    monkeypatch.setattr(planned_training, "count_seconds", lambda cfg, begun: cfg)
    runner = SimpleNamespace(train_loop=None)
    monkeypatch.setattr(run_page, "train_with_page", lambda cfg, overwrite: runner)
    (tmp_path / "a.mp4").touch()
    status = pretrain.main([str(tmp_path), "--out", str(tmp_path)])
    if known:
        assert status == 0 and given["path"]["planned"] == given["work_dir"] == tmp_path
        assert given["resume"] == "auto"
    else:
        assert status == 2 and not given


@pytest.mark.parametrize(
    "name", "curate embed encoder evaluate export finetune index look pretrain".split()
)
def test_an_output_that_cannot_be_written_is_refused_before_any_work(
    name, tmp_path, monkeypatch, capsys
):
    (tmp_path / "file").touch()
    required = {
        "curate": "I",
        "embed": "V --checkpoint R",
        "encoder": "M",
        "evaluate": "R --test V --protocols rankme",
        "export": "R --to pretrained",
        "finetune": "none --train V",
        "index": "V --checkpoint R",
        "look": "R a.mp4",
        "pretrain": "V",
    }
    # No module that needs torch is imported.
    monkeypatch.setitem(sys.modules, "sce_video.runs.launch", None)
    monkeypatch.setattr(sys, "argv", ["sce-video"])

    def refused(out, reason):
        assert main([name, *required.get(name, "").split(), "--out", str(out)]) == 2
        text = f"error: --out must be a path that can be written, got {out}: {reason}\n"
        assert capsys.readouterr().err == f"sce-video {name}: {text}"

    refused(tmp_path / "file/run/x.html", f"{tmp_path}/file is not a folder")
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)  # also for root
    refused(tmp_path / "new/x.html", f"no rights to write in {tmp_path}")
