"""No command runs what a file that it is given names, and none makes a request for it.

Every command with every kind of thing of others that it takes. In each is a canary: code that
writes a file, a module that does so when it is imported, a pickle, an address of this machine at
which a server listens, the name of an attention kernel on the hub.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.hf_models import save_model
from helpers.tables import write_table
from helpers.tiny_encoder import CONFIG, as_json, moving_frames, save_tiny, write_lossless

from sce_video.commands.main import COMMANDS, main
from sce_video.engine.checkpoint import load_checkpoint_file, save_checkpoint_file
from sce_video.models.backbones.hf_encoder import architecture_of

#: A folder has the network of a checkpoint; of a run its config and its logs are read, too.
KINDS = ("run", "folder", "checkpoint", "bundle", "model", "index", "table", "list")
NETWORKS = KINDS[1:5]
#: Options of the two recipes; of the pretraining X may be the list.
_SMALL = ("train_cfg.max_epochs=1", "run_page=None", "model.backbone.base_channels=4")
_PIPELINE = "train_dataloader.dataset.pipeline"
_OF_RECIPE = {
    "r3d18_folder": (
        *(f"{_PIPELINE}.RandomClips.num_frames=2", f"{_PIPELINE}.RandomResizedCropClips.size=32"),
        *("val_dataloader=None", "val_cfg=None", "val_evaluator=None"),
        "test_dataloader.dataset.pipeline.UniformClips.num_clips=1",
    ),
    "sce_r3d18_folder_small": ("train_dataloader.sampler.min_samples=0",),
}
_PARTS = {"r3d18_folder": ("train", "test"), "sce_r3d18_folder_small": ("train",)}
#: Command lines of every command, by the kinds of what stands for X; V are two classes of videos,
#: F is one of them, N a network of our own, O a new folder.
LINES: dict[str, list[tuple[tuple[str, ...], str]]] = {
    "demo": [],  # reads nothing but what it makes
    "doctor": [(("table",), "--videos X --out O")],
    "pretrain": [(("run",), "--out X --resume"), (("table",), "X --out O --plan --epochs 1")],
    "finetune": [
        (("run",), "--out X --resume"),
        (NETWORKS, "X --train V --test V --out O/r --epochs 1 --batch 2 --workers 0 --clips 1"),
        (("table",), "N --train X --test X --out O/r --plan --epochs 1 --workers 0"),
        (("list",), "N --train X --out O/r --plan --epochs 1 --workers 0"),
    ],
    "evaluate": [
        (NETWORKS, "X --test V --gallery V --out O/r.json"),
        (("table",), "N --test X --gallery X --out O/r.json"),
    ],
    "choose": [
        (NETWORKS, "V --among X --out O/c --budget 9s"),
        (("table",), "X --among N --out O/c --budget 9s"),
    ],
    "encoder": [(("model",), "X --out O")],
    "embed": [
        (NETWORKS, "V --checkpoint X --out O/f.npz --workers 0"),
        (NETWORKS, "V --checkpoint X --out O/f.npz --windows 1s --clips 1"),
        (("table",), "X --checkpoint N --out O/f.npz --workers 0"),
    ],
    "index": [
        (NETWORKS, "V --checkpoint X --out O/index --workers 0"),
        (("index",), "V --checkpoint N --out X --workers 0"),
        (("table",), "X --checkpoint N --out O/index --workers 0"),
    ],
    "search": [
        (("index", "table"), "F --index X --html O/q.html"),
        (NETWORKS, "F --index I --checkpoint X --no-html"),
        (("index",), "--text words --index X"),
    ],
    "curate": [
        (("index", "table"), "X --out O --workers 0"),
        (NETWORKS, "V --checkpoint X --out O --workers 0 --no-page --duplicates none"),
        (("list",), "I --labels X --out O --workers 0 --no-page"),
    ],
    "look": [(NETWORKS, "X --query F --key F --out O/l.png")],
    "export": [
        (NETWORKS, "X --to pretrained --out O/n"),
        (("index",), "X --to projector --out O/p --workers 0"),
        (("list",), "I --labels X --to projector --out O/p --workers 0"),
    ],
    "predict": [(NETWORKS, "X F --workers 0")],
    "prepare": [],  # takes official downloads; tests/fuzz has their mutated files
    "repack": [(("list",), "X O/repacked --workers 1")],
    "import": [(("list",), "X O/t.lance --workers 1")],
    "verify": [(("list",), "X --workers 1 --out O/t.tsv")],
    "sweep": [],  # takes sweeps, which are programs that are named
    "finetune-splits": [],  # takes the same weights as train
    # They read arrays; tests/fuzz has mutated feature and score files.
    "probe": [],
    "retrieve": [],
    "transfer": [],
    "fuse-scores": [],
    "report": [(("run",), "X")],
    "compare": [(("run",), "X R --out O/c.html")],
    "train": [
        (NETWORKS[1:], "r3d18_folder --pretrained X"),
        (("checkpoint",), "sce_r3d18_folder_small --resume X"),
        (("list",), "sce_r3d18_folder_small LIST=X"),
    ],
    "test": [
        (NETWORKS[:3], "r3d18_folder X --out O/r.json"),
        (("bundle",), "X/config.json X --out O/r.json"),
    ],
}
CASES = [
    pytest.param(command, kind, line, id=f"{command}-{kind}-{number}")
    for command, lines in LINES.items()
    for number, (kinds, line) in enumerate(lines)
    for kind in kinds
]


def test_every_command_is_here():
    assert set(LINES) == set(COMMANDS)
    assert {kind for lines in LINES.values() for kinds, _ in lines for kind in kinds} == {*KINDS}


class Canary:
    """Notices code that runs and requests that are made."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "canary"
        self.module = folder / "canary_module.py"
        self.module.write_text(
            f"{self.code}\nclass Evil:\n    def __init__(self, **_): {self.code}"
        )
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.setblocking(False)
        self.url = f"http://127.0.0.1:{self.server.getsockname()[1]}/x.pth"
        self.kernels: list[str] = []

    @property
    def code(self) -> str:
        return f"open({str(self.file)!r}, 'a').write('run')"

    def __reduce__(self):
        return Path.touch, (self.file,)

    def assert_alive(self) -> None:
        assert not self.file.exists()
        assert "canary_module" not in sys.modules
        assert self.kernels == []
        with pytest.raises(BlockingIOError):
            self.server.accept()


@pytest.fixture(scope="module")
def canary(tmp_path_factory):
    found = Canary(tmp_path_factory.mktemp("canary"))
    yield found
    found.server.close()


@pytest.fixture(autouse=True)
def _watched(canary, monkeypatch, tmp_path_factory):
    """Its module can be imported, and transformers asks it for kernels."""
    canary.file.unlink(missing_ok=True)
    canary.kernels.clear()
    sys.modules.pop("canary_module", None)
    hub_kernels = pytest.importorskip("transformers.integrations.hub_kernels")
    monkeypatch.syspath_prepend(str(canary.module.parent))
    monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda *_: True)
    monkeypatch.setattr(
        hub_kernels, "get_kernel_hub", lambda name, **_: canary.kernels.append(name), raising=False
    )
    monkeypatch.setenv("SCE_VIDEO_CACHE", str(tmp_path_factory.getbasetemp() / "canary_cache"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", canary.url.removesuffix("/x.pth"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setattr(sys, "argv", ["sce-video"])


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    for number in range(4):
        write_lossless(folder / "ab"[number % 2] / f"{number}.mp4", moving_frames(14, seed=number))
    return folder


@pytest.fixture(scope="module")
def good(videos, tmp_path_factory):
    """A checkpoint, an index and a run of our own."""
    folder = tmp_path_factory.mktemp("good")
    run = save_run(folder / "run", CONFIG, CONFIG)
    words = ["--workers", "0", "--clips", "1"]
    index = folder / "index"
    assert main(["index", str(videos), "--checkpoint", str(run), "--out", str(index), *words]) == 0
    return {"N": run / "epoch_1.pth", "I": index, "R": run}


def save_run(folder: Path, text: str, file_text: str) -> Path:
    folder.mkdir(parents=True)
    save_tiny(folder / "epoch_1.pth", text=text)
    (folder / "config.py").write_text(file_text)
    row = {"kind": "train", "iter": 1, "epoch": 1, "loss": 1.0}
    (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    return folder


def evil_texts(canary: Canary, videos: Path) -> dict[str, str]:
    """Config texts that are plain data and name the canary; ``unread`` where no test reads it."""
    model, data = "type='ResNet3dSlowPath'", f"data_root={str(videos)!r}, type='VideoDataset'"
    text = CONFIG.replace("type='VideoDataset'", data).replace("num_clips=10", "num_clips=2")
    loader = re.search(r"test_dataloader = (dict\(.*\))\ntrain_dataloader", text, re.DOTALL)[1]
    text += f"test_cfg = dict(type='MultiViewTestLoop', gallery_dataloader={loader})\n"
    metrics = "test_evaluator = [dict(type='KNN', k=1)]\n"
    evil = "type='canary_module.Evil'"
    assert model in text and text.count(data) == 3
    texts = {
        "network": text.replace(model, evil),
        "data": text.replace(data, evil),
        "step": text.replace("dict(type='OpenVideo')", f"dict(type='OpenVideo'), dict({evil})"),
        "preprocessor": text.replace("type='VideoDataPreprocessor'", evil),
        "store": text.replace(repr(str(videos)), "'s3://evil/v.lance'"),
        "unread": text.replace("'nowhere.pth'", repr(canary.url)).replace(
            "train_dataloader = dict(",
            f"train_dataloader = dict(collate_fn=dict({evil}), sampler=dict({evil}),",
        )
        + f"custom_imports = dict(imports=['canary_module'])\n_base_ = [{str(canary.module)!r}]\n"
        f"default_scope = 'canary_module'\nrunner_type = 'canary_module.Evil'\n"
        f"custom_hooks = [dict({evil})]\nload_from = {canary.url!r}\npretrained = {canary.url!r}\n",
    }
    texts = {name: text + metrics for name, text in texts.items()}
    path = str(canary.file)
    metrics = f"test_evaluator = [dict({evil}), dict(type='AVAMeanAP', csv={path!r})]\n"
    return {**texts, "metric": text + metrics}


@pytest.fixture(scope="module")
def things(canary, videos, good, tmp_path_factory):
    """Things of others by kind: paths."""
    root = tmp_path_factory.mktemp("evil")
    texts = evil_texts(canary, videos)
    plan = "plan = ['  recipe  sce_r3d18_folder_small  x']\n"
    found: dict[str, list[Path]] = {kind: [] for kind in KINDS}
    found["run"] = [
        save_run(root / "run_code", CONFIG, f"{plan}_base_ = [{canary.code}]\n{CONFIG}"),
        *(save_run(root / f"run_{n}", t, plan + t) for n, t in texts.items()),
    ]
    found["checkpoint"] = [run / "epoch_1.pth" for run in found["run"][1:]]
    found["folder"] = found["run"][:2]
    kernel, pickle = root / "kernel.pth", root / "pickle.pth"
    save_model("videomae", root / "model")
    found["checkpoint"] += [kernel, pickle]
    model = save_model("clip", root / "clip")
    architecture = architecture_of(model.config)
    architecture["vision_config"]["attn_implementation"] = "evil/kernel"
    backbone = f"type='HFEncoder', architecture={architecture!r}"
    save_checkpoint_file({"meta": {"config": as_json(CONFIG.replace(
        "type='ResNet3dSlowPath', depth=18, base_channels=4, zero_init_residual=False", backbone
    ))}, "state_dict": load_checkpoint_file(good["N"])["state_dict"]}, kernel)  # fmt: skip
    torch.save({"state_dict": {"a": canary}}, pickle)
    found["bundle"] = bundles(root, good, canary)
    found["model"] = models(root, canary)
    found["index"] = indexes(root, good, canary)
    found["list"] = [root / "labels.txt"]
    (root / "evil.mp4").write_text(f"#EXTM3U\n#EXTINF:1,\n{canary.url}\n")
    names = [canary.url, f"concat:{canary.url}", "evil.mp4", f"$(touch {canary.file}).mp4",
             f"|touch {canary.file}", "s3://evil/a.mp4"]  # fmt: skip
    (root / "labels.txt").write_text("".join(f"{name} {i % 2}\n" for i, name in enumerate(names)))
    if pytest.importorskip("lance"):
        folder = root / "folder"
        (folder / "a").mkdir(parents=True)
        (folder / "b").mkdir()
        shutil.copy(videos / "a/0.mp4", folder / "a/0.mp4")
        shutil.copy(videos / "b/1.mp4", folder / "b" / "$(touch canary).mp4")
        found["table"] = [Path(write_table(folder, root / "v.lance"))]
    return found


def bundles(root, good, canary):
    out = root / "bundle"
    assert main(["export", str(good["N"]), "--to", "pretrained", "--out", str(out)]) == 0
    found = []
    for name, backbone in {
        "class": {"type": "canary_module.Evil"},
        "layer": {"type": "ResNet3dSlowPath", "norm_cfg": {"type": "canary_module.Evil"}},
        "weights": {"type": "mmaction.ResNet3d", "depth": 18, "pretrained": canary.url},
    }.items():
        folder = Path(shutil.copytree(out, root / f"bundle_{name}"))
        config = json.loads((folder / "config.json").read_text())
        config["model"]["backbone"] = backbone
        config["provenance"]["checkpoint"] = canary.url
        (folder / "config.json").write_text(json.dumps(config))
        found.append(folder)
    return found


def models(root, canary):
    found = []
    for name, change in {
        "kernel": {"attn_implementation": "evil/kernel"},
        "code": {"auto_map": {"AutoModel": "canary_module.Evil"}},
        "files": {},
    }.items():
        folder = Path(shutil.copytree(root / "model", root / f"model_{name}"))
        config = {**json.loads((folder / "config.json").read_text()), **change}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "canary_module.py").write_text(canary.module.read_text())
        adapter = {"base_model_name_or_path": "evil/model", "auto_map": {"AutoModel": canary.url}}
        (folder / "adapter_config.json").write_text(json.dumps(adapter))
        tokenizer = {"auto_map": {"AutoTokenizer": ["canary_module.Evil", None]}}
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
        found.append(folder)
    torch.save({"a": canary}, found[-1] / "pytorch_model.bin")
    (found[-1] / "model.safetensors").unlink()
    return [Path(f"hf:{folder}") for folder in found]


def indexes(root, good, canary):
    found = []
    for name in ("class", "address", "store", "pickle"):
        folder = Path(shutil.copytree(good["I"], root / f"index_{name}"))
        content = json.loads((folder / "index.json").read_text())
        if name == "class":
            content["settings"]["model"]["backbone"]["type"] = "canary_module.Evil"
        elif name == "pickle":
            np.savez(folder / "features.npz", features=np.array([canary], dtype=object))
        else:
            address = canary.url if name == "address" else "s3://evil/x.pth"
            content["checkpoint"]["path"] = address
            for file in content["files"]:
                file["path"] = canary.url
        (folder / "index.json").write_text(json.dumps(content))
        found.append(folder)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("command", "kind", "line"), CASES)
def test_no_canary_sings(command, kind, line, canary, things, videos, good, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, thing in enumerate(things[kind]):
        out = tmp_path / str(number)
        out.mkdir()
        if command == "encoder":
            thing = str(thing).removeprefix("hf:")
        own = {"X": thing, "V": videos, "F": videos / "a/0.mp4", "O": out, **good}
        words = [
            re.sub(r"(?<![\w-])[XVFONIR](?![\w-])", lambda found, own=own: str(own[found[0]]), word)
            for word in line.split()
        ]
        if command in ("train", "test"):
            words += ["--work-dir", str(out / "work"), "--cfg-options", *_SMALL]
            words += _OF_RECIPE.get(words[0], ())
            for part in _PARTS.get(words[0], ()):
                words += [f"{part}_dataloader.dataset.data_root={videos}"]
                words += [f"{part}_dataloader.{key}" for key in ("num_workers=0", "batch_size=2")]
            if kind == "list":
                words.remove(f"LIST={thing}")
                words += ["model.queue_size=16", f"train_dataloader.dataset.ann_file={thing}"]
        status = main([command, *words])
        canary.assert_alive()
        assert status in (0, 1, 2)
