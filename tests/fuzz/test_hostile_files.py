"""A hostile file makes a reader raise a ValueError that names it, in bounded time and memory.

Nothing else: no other error, no crash, no file written, no command run.

A longer run: ``SCE_VIDEO_FUZZ_CASES=20000 SCE_VIDEO_FUZZ_SEED=7 pytest -n 0 tests/fuzz``. What a
run has found is mended where it is read, and gets a test of its own beside that code.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import sqlite3
import zipfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from unittest import mock

import cv2
import numpy as np
import pytest
import torch
from helpers.fuzzing import Target, run_fuzz
from helpers.results_files import K400, linear_on_images, recalls, results, transferred
from helpers.tiny_encoder import CONFIG, as_json, save_tiny, tiny_backbone
from mmengine.logging import HistoryBuffer
from PIL import Image

from sce_video.data_tools.prepare import action_sets, ava_files, kinetics
from sce_video.data_tools.prepare.official import read_matches
from sce_video.datasets import VideoDecodeError, read_annotation_list, read_key_frames
from sce_video.datasets.ava import read_actions
from sce_video.datasets.loading.failures import BadFileReport
from sce_video.datasets.readers.base import DecodeLimits
from sce_video.datasets.readers.images import EncodedImage, open_jpeg
from sce_video.engine.checkpoint import describe_checkpoint_file, load_checkpoint_file
from sce_video.engine.config.snapshot import parse_config_text
from sce_video.evaluation.feature_files import load_features, save_features
from sce_video.evaluation.metrics.base import Outcomes, load_outcomes, save_outcomes
from sce_video.evaluation.rows import Rows
from sce_video.evaluation.scores import load_scores, save_scores, weighted_mean
from sce_video.find import column_process
from sce_video.find import columns as columns_module
from sce_video.find.index import read_index
from sce_video.find.query import query_index
from sce_video.find.store import FileRecord, FileStore, IndexHeader
from sce_video.inference.embed import ViewOptions
from sce_video.inference.encoders.timm_files import timm_config, timm_network
from sce_video.inference.model import load_model
from sce_video.inference.network_input import ModelSettings, settings_from_config
from sce_video.jobs import Record, RecordStore
from sce_video.models.backbones.resnet2d import ResNet2d
from sce_video.models.backbones.timm_package import timm
from sce_video.pages.run_record import (
    read_alarms,
    read_history,
    read_online_evaluations,
    read_scalars,
)
from sce_video.reporting import comparability
from sce_video.reporting.report_content import assign_results
from sce_video.reporting.result_files import collect_results
from sce_video.runs.report import render_html, render_markdown
from sce_video.utils.errors import MissingPackageError

ACTIONS = {1: "bend", 2: "sit", 80: "walk"}
BOX = b"film,0902,0.077,0.151,0.283,0.811,80,1\nfilm,0903,,,,,\n-a,1798,0.1,0.2,0.3,0.4,1,0\n"
DETECTION = b"film,0902,0.077,0.151,0.283,0.811,,0.995\nfilm,0903,0.1,0.2,0.3,0.4,80,0.5\n"


# -- archives: a member is mutated and packed with the right checksum --------------------------


def members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def repack(archive: bytes, name: str, compression: int = zipfile.ZIP_STORED):
    """A ``write`` of a target: the archive with another content of one member."""

    def write(path: Path, data: bytes) -> None:
        with zipfile.ZipFile(path, "w", compression) as target:
            for member, own in members(archive).items():
                target.writestr(member, data if member == name else own)

    return write


def saved(folder: Path, name: str, save) -> bytes:
    save(folder / name)
    return (folder / name).read_bytes()


# -- pickles and checkpoints ---------------------------------------------------------------------


def read_proposals(path: Path) -> None:
    ava_files.Detections().add_file(path, {"film": 1, "-a": 2}, 0.5)


def pickle_targets(folder: Path) -> list[Target]:
    content = {
        "film,0902": np.array([[0.036, 0.098, 0.55, 0.979, 0.99], [0, 0, 1, 1, 0.2]]),
        "-a,1798": [[0.25, 0.5, 0.75, 1, 0.95]],
    }
    samples = [pickle.dumps(content, protocol) for protocol in (0, 2, 4, 5)]
    memo = b"\x80\x02]r" + (2**28).to_bytes(4, "little") + b"."  # 9 bytes that took 4 GB
    opcodes = [bytes([code]) for code in range(0x20, 0xA0)]
    words = [memo[3:8], *opcodes, b"(" * 2000, b"K\x01\x85" * 1000, b"\x8e" + b"\xff" * 7 + b"\x00"]
    return [
        Target(
            "AVA proposals", samples, read_proposals, "p.pkl", cases=300, words=words, known=[memo]
        )
    ]


def read_checkpoint(path: Path) -> None:
    content = load_checkpoint_file(path)
    meta = content.get("meta")
    if isinstance(meta, dict):
        describe_checkpoint_file(path, content)


def checkpoint_targets(folder: Path) -> list[Target]:
    backbone = tiny_backbone(base_channels=1)
    text = CONFIG.replace("base_channels=4", "base_channels=1")
    tiny = saved(folder, "t.pth", lambda path: save_tiny(path, backbone, text))
    history = HistoryBuffer([1.0, 2.0], [1, 1])
    small = {
        "meta": {"epoch": 1, "config": '{"a": 1}'},
        "state_dict": {"a": torch.arange(6.0)[::2]},
    }
    mmengine = {**small, "message_hub": {"log_scalars": {"train/loss": history}}}
    packed = saved(folder, "m.pth", lambda path: torch.save(mmengine, path))
    program = "m/data.pkl"
    for number, content in enumerate((small, mmengine)):
        torch.save(content, folder / f"{number}.pth", _use_new_zipfile_serialization=False)
    legacy = [(folder / f"{number}.pth").read_bytes() for number in (0, 1)]

    def with_text(path: Path, data: bytes) -> None:
        save_tiny(path, backbone, data.decode("latin1"))

    weights = ResNet2d(depth=18, base_channels=1).state_dict()
    with suppress(MissingPackageError):
        timm()  # once, in the process whose children read

    def beside_weights(path: Path, data: bytes) -> None:
        path.write_bytes(data)
        torch.save(weights, path.with_name("pytorch_model.bin"))

    names = ["LFBInferHead", "Conv3d", "ResNet3d", "mmaction.MViT", "os.system", "Encoder"]
    values = ["2000000000", "(1, ) * 9", "[" * 50, "dict(type='BN3d')", "inf", "-1", "None"]
    words = [*(repr(name).encode() for name in names), *(value.encode() for value in values)]
    return [
        Target("checkpoint pickle", [members(packed)[program]], read_checkpoint, "a.pth",
               write=repack(packed, program), cases=150),
        Target("checkpoint file", [packed, *legacy], read_checkpoint, "a.pth", cases=60),
        Target("config in a checkpoint", [as_json(text).encode()], load_on_cpu, "a.pth",
               write=with_text, cases=15, words=words),
        Target("tiny checkpoint", [tiny], load_on_cpu, "a.pth", cases=6),
        Target("config text", [text.encode()], read_config, "a.py", cases=120, words=words),
        Target("config of timm", [json.dumps(TIMM).encode()], read_timm_folder, "config.json",
               write=beside_weights, cases=120),
    ]  # fmt: skip


TIMM = dict(mean=[0.5, 0.4, 0.3], std=[0.2, 0.2, 0.2], input_size=[3, 224, 224], crop_pct=0.95)
TIMM = dict(architecture="resnet18", model_args=dict(in_chans=3), pretrained_cfg=TIMM)


def read_timm_folder(path: Path) -> None:
    stored = timm_config(path.parent)
    if stored is None:
        return
    try:
        found = timm_network(path.parent, stored).settings
    except MissingPackageError:  # every name but that of a ResNet is looked up in timm
        return
    names = ("mean", "std", "short_side", "crop_size")
    stated = {name: getattr(found, name) for name in names}
    ModelSettings({}, num_frames=1, clip_duration=1.0, **stated)


def load_on_cpu(path: Path) -> None:
    load_model(path, device="cpu")


def read_config(path: Path) -> None:
    cfg = parse_config_text(path.read_text(encoding="utf-8", errors="surrogateescape"), str(path))
    try:
        settings_from_config(cfg)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


# -- arrays --------------------------------------------------------------------------------------


def rows(count: int = 3) -> Rows:
    values = torch.softmax(torch.arange(count * 4.0).reshape(count, 4), dim=1)
    paths = [f"ü {i}.mp4" for i in range(count)]
    return Rows(values, torch.arange(count), torch.arange(count), paths, [("x.mp4", "why")])


def read_features(path: Path) -> None:
    features, provenance = load_features(path)
    features.subset(torch.arange(min(1, len(features))))
    json.dumps(provenance)


def read_scores(path: Path) -> None:
    scores, _ = load_scores(path)
    weighted_mean([scores, scores])


def read_outcomes(path: Path) -> None:
    found = load_outcomes(path)
    with np.errstate(all="ignore"):
        json.dumps(found.intervals())


def outcomes() -> Outcomes:
    paths, values = ["a.mp4", "ü.mp4", "a.mp4"], np.eye(3, 2, dtype=np.float32)
    by_class, groups = np.array([False, True]), np.array([4, 4, 0])
    return Outcomes(paths, np.arange(3), ["top1", "mean"], values, by_class, groups)


def array_targets(folder: Path) -> list[Target]:
    features = saved(folder, "f.npz", lambda path: save_features(path, rows(), {"a": [1]}))
    scores = saved(folder, "s.npz", lambda path: save_scores(path, rows()))
    kept = saved(folder, "o.npz", lambda path: save_outcomes(path, outcomes()))
    packed = io.BytesIO()
    np.savez_compressed(packed, features=np.zeros((3, 4)), paths=np.array(["a", "b", "c"]))
    numbers = [b"1000000000000", b"<U1000000000", b"(3, 0)", b"|S0", b"'<c16'", b"-3", b"(" * 50]
    targets = [
        Target("feature file", [features, packed.getvalue()], read_features, "a.npz", cases=80),
        Target("score file", [scores], read_scores, "a.npz", cases=80),
        Target("outcomes file", [kept], read_outcomes, "a.npz", cases=80),
    ]
    for archive, read, names in (
        (features, read_features, ("features", "labels", "paths", "protocol")),
        (scores, read_scores, ("scores", "paths")),
        (kept, read_outcomes, ("outcomes", "paths", "names", "by_class", "groups")),
    ):
        for name in (f"{name}.npy" for name in names):
            sample, write = members(archive)[name], repack(archive, name)
            title = f"{name} in a file of {read.__name__}"
            targets.append(Target(title, [sample], read, "a.npz", write, 30, numbers))
    return targets


def read_whole_index(path: Path) -> None:
    index = read_index(path.parent)
    assert isinstance(index.options, ViewOptions)
    try:
        ModelSettings.from_dict(index.header.model)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if len(index):
        query_index(index, index.features[0], 2)
    assert all(isinstance(text, str) for pair in index.failures for text in pair)


class DatabaseHere:
    """A database of columns read in this process, because the guard refuses to start others."""

    def __init__(self, source: Path, rows: int) -> None:
        base = sqlite3.connect(f"{source.as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            self._inner = column_process.Database(base, column_process.LONGEST_FACTS)
            self.facts = self._inner.facts()
        except sqlite3.Error as error:
            raise ValueError(str(error)) from error

    def passing(self, count: int, where: str) -> Iterator[bytes]:
        try:
            yield from self._inner.passing(count, where)
        except sqlite3.Error as error:
            raise ValueError(str(error)) from error


def read_kept_columns(path: Path) -> None:
    with mock.patch.object(columns_module, "_Database", DatabaseHere):
        columns = columns_module._open_database(path, "state", 4)
    if columns is None:
        raise ValueError(f"{path} is made again")
    try:
        assert columns.matching("camera = 'north' or speed > 1").shape == (4,)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    assert all(isinstance(column.number, bool) for column in columns.described)


def write_columns(path: Path) -> None:
    (path.parent / "c.csv").write_text("path,camera,speed\na.mp4,north,1\nb.mp4,south,2.5\n")
    given = columns_module.ColumnSources("/videos", path.parent / "c.csv")
    with closing(sqlite3.connect(path)) as base:
        paths = np.array(["a.mp4", "a.mp4", "b.mp4", "c.mp4"])
        columns_module._fill(base, paths, given, "state")


def index_targets(folder: Path) -> list[Target]:
    cfg = parse_config_text(CONFIG, "a")
    model = settings_from_config(cfg).to_dict()
    own = {"dataset": "Mine", "imports": ("my_parts",)}
    header = IndexHeader("/videos", "/a.pth", "0" * 64, model, num_clips=2, num_crops=1, **own)
    records = {f"{i}.mp4": FileRecord(10, 5, np.arange(4, dtype=np.float32)) for i in range(3)}
    records["bad.mp4"] = FileRecord(0, 1, None, "no video")
    archive = saved(folder, "i.npz", lambda path: FileStore(path).write(header, records))
    stated = json.loads(str(np.load(folder / "i.npz")["protocol"]))

    def write(path: Path, data: bytes) -> None:
        text = io.BytesIO()
        np.save(text, np.array(data.decode("utf-8", "replace")))
        repack(archive, "protocol.npy")(path, text.getvalue())

    sample = json.dumps(stated).encode()
    database = saved(folder, "c.sqlite", write_columns)
    return [
        Target("index", [sample], read_whole_index, "features.npz", write, cases=120),
        Target("index file", [archive], read_whole_index, "features.npz", cases=80),
        Target("columns", [database], read_kept_columns, "columns.sqlite", cases=80),
    ]


# -- results and logs ----------------------------------------------------------------------------


def read_results(path: Path) -> None:
    # The shipped recipes are no part of the file, and mmengine makes a folder to read one.
    with mock.patch.object(comparability, "_recipe", return_value={}):
        report = assign_results(collect_results([path]))
    for text in (render_markdown(report), render_html(report)):
        text.encode("utf-8")
        assert "\x1b" not in text


def result_targets(folder: Path) -> list[Target]:
    linear = results({"top1": 0.5, "top5": 0.8, "effective_rank": 31.2}, "linear", K400)
    retrieval = results(recalls(0.4, 0.5, 0.6), "retrieval", "ucf101", split=1)
    entries = {str(i): {"metrics": {"top1": 0.5}, "results": "x", "videos": 9} for i in (1, 2, 3)}
    benchmark = results({}, "finetune", "ucf101")["protocol"]
    splits = {"kind": "splits", "splits": entries, "protocol": benchmark}
    image = linear_on_images("cifar10")
    transfer = transferred("many_shot", "dtd", {"many_shot_top1": 0.5})
    contents = (linear, retrieval, splits, image, transfer)
    samples = [json.dumps(content).encode() for content in contents]
    known = [samples[0].replace(b"0.5", b"9" * 400), samples[0].replace(b"av 18", b"\\ud800")]
    words = [b"9" * 4200, b"[[]]", b'{"a": 1}', b'"\\u001b[31m"', b'"<script>"']
    return [
        Target("results", samples, read_results, "results.json", cases=20, words=words, known=known)
    ]


def read_scalars_of(path: Path) -> None:
    sorted(row["loss"] for row in read_scalars(path.parents[2]) if "loss" in row)


def write_scalars(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def read_records_of(path: Path) -> None:
    with RecordStore(None, "repack") as store:
        store.absorb(path)
        [store.get("a.mp4"), *store]


def log_targets(folder: Path) -> list[Target]:
    with RecordStore(folder / "j.sqlite", "repack") as store:
        store.put(Record("a.mp4", True, {"size": 3}, {"crf": 20}, {"frames": 4}, output="a.mp4"))
        store.put(Record("b.mp4", False, None, {}, kind="bad", reason="ü"))
    entry = {"path": "a.mp4", "count": 2, "error": "no video"}
    scalar = b'{"loss": 1.5, "iter": 10, "epoch": 1}\n{"loss": 1.25, "iter": 20}\n'
    return [
        Target("records", [(folder / "j.sqlite").read_bytes()], read_records_of, "a.sqlite"),
        Target("bad files", [json.dumps(entry).encode() + b"\n"],
               lambda path: BadFileReport(path, num_files=9), "a.jsonl"),
        Target("scalars", [scalar], read_scalars_of, "run/vis_data/scalars.json", write_scalars),
        Target("metrics", [b'{"kind": "train", ' + scalar[1:]],
               lambda path: read_scalars(path.parent), "metrics.jsonl"),
        Target("alarms", [b'{"alarm": "collapse", "iter": 4, "value": 0.1}\n'],
               lambda path: read_alarms(path.parent), "alarms.jsonl"),
        Target("history", [b'{"event": "start", "data": {"samples": 4}}\n{"event": "end"}\n'],
               lambda path: read_history(path.parent), "history.jsonl"),
        Target("online evaluation", [b'{"iter": 4, "epoch": 1, "knn_top1": 0.5}\n'],
               lambda path: read_online_evaluations(path.parent), "online_evaluation.jsonl"),
    ]  # fmt: skip


# -- lists and official files --------------------------------------------------------------------


def read_list(path: Path) -> None:
    videos = read_annotation_list(str(path))
    for i in range(len(videos)):
        os.fsencode(videos.path(i))


def list_targets(folder: Path) -> list[Target]:
    frame = {"video": "aa", "timestamp": 902, "boxes": [[0.1, 0.1, 0.5, 0.9]], "labels": [[12]],
             "detections": [[0.1, 0.1, 0.5, 0.91, 0.99]]}  # fmt: skip
    action = [{"id": 1, "name": "bend", "scored": True}, {"id": 2, "name": "sit", "scored": False}]
    templates = [{"id": "7", "template": "Holding [something]"}, {"id": "8", "template": "Push"}]
    action_list = (
        b'item {\n name: "bend"\n id: 1\n}\nlabel {\n name: "sit \\"down\\""\n label_id: 2\n}\n'
    )
    clips = b"label,youtube_id,time_start,time_end,split,is_cc\nzumba,-3_xY6zAbcd,0,10,train,0\n"
    digits = [b"9" * 20, b"9" * 5000, "²".encode(), "٣".encode(), b"1_0", b"+1", b"nan", b"inf"]
    readers = [
        ("video list", b"a b.mp4 3\nclass/c.mp4\t12\n", read_list),
        ("AVA annotations", BOX, lambda path: ava_files.read_annotations(path, ACTIONS)),
        ("AVA detections", DETECTION, read_proposals),
        ("AVA exclusions", b"film,0902\nother,1000\n", ava_files.read_excluded),
        ("AVA action list", action_list, ava_files.read_action_list),
        ("AVA key frames", json.dumps(frame).encode(),
         lambda path: list(read_key_frames(str(path)))),
        ("AVA actions", json.dumps(action).encode(), read_actions),
        ("SSv2 labels", b'{"Holding something": "0", "Push": "1"}', action_sets.read_templates),
        ("SSv2 entries", json.dumps(templates).encode(),
         lambda path: action_sets.read_template_entries(path, ("Holding something", "Push"))),
        ("HMDB51 split", b"a #1_(x).avi 1\nb.avi 2\nc.avi 0\n",
         lambda path: list(read_matches(path, r"([^/]*[^/\s])\s* ([012])", "marks are 0 to 2"))),
        ("UCF101 classes", b"1 ApplyEyeMakeup\n2 YoYo\n", action_sets.read_class_index),
        ("UCF101 split", b"YoYo/v_YoYo_g01_c01.avi 2\n",
         lambda path: action_sets.read_split_list(path, ("ApplyEyeMakeup", "YoYo"), True)),
        ("Kinetics csv", clips, lambda path: list(kinetics._listed_clips(path, "train"))),
    ]  # fmt: skip
    return [
        Target(name, [sample], read, "list.csv", cases=60, words=digits)
        for name, sample, read in readers
    ]


# -- images --------------------------------------------------------------------------------------


def read_image_file(path: Path) -> None:
    try:
        image = open_jpeg(str(path), DecodeLimits(2**20))
        if isinstance(image, EncodedImage):
            assert image[0].shape == (*image.size, 3), "the header says another size"
    except VideoDecodeError as error:
        raise ValueError(str(error)) from error


def image_targets(folder: Path) -> list[Target]:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 40, 3), dtype=np.uint8))
    exif = image.getexif()
    exif[0x0112] = 6
    options = [
        {"format": "JPEG"},
        {"format": "JPEG", "progressive": True, "comment": b"a comment"},
        {"format": "JPEG", "exif": exif},
        {"format": "PNG"},
    ]
    samples = []
    for option in options:
        image.save(folder / "image", **option)
        samples.append((folder / "image").read_bytes())
    segments = [bytes((0xFF, marker)) for marker in range(0xC0, 0x100)]
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    return [Target("image", samples, read_image_file, "a.jpg", cases=300, words=segments)]


GROUPS = {
    "images": image_targets,
    "pickles": pickle_targets,
    "checkpoints": checkpoint_targets,
    "arrays": array_targets,
    "indexes": index_targets,
    "results": result_targets,
    "logs": log_targets,
    "lists": list_targets,
}


@pytest.mark.parametrize("group", GROUPS)
def test_readers(tmp_path, group):
    (tmp_path / "samples").mkdir()
    failures = []
    for number, target in enumerate(GROUPS[group](tmp_path / "samples")):
        folder = tmp_path / str(number)
        folder.mkdir()
        failures.append(run_fuzz(target, folder))
    assert not any(failures), "\n".join(filter(None, failures))


# -- the harness itself finds faults -------------------------------------------------------------


def _allocate(path: Path) -> None:
    np.ones(2**28)


def _write(path: Path) -> None:
    path.with_suffix(".out").write_text("x")


@pytest.mark.parametrize(
    ("read", "found"),
    [
        (_allocate, "MemoryError|ArrayMemoryError"),
        (_write, "does more than reading: open"),
        (lambda path: os.abort(), "ended with status -6"),
        (lambda path: 1 / (path.read_bytes() == b"good"), "raises ZeroDivisionError"),
    ],
)
def test_the_harness_finds(tmp_path, read, found):
    failure = run_fuzz(
        Target("faulty", [b"good"], read, "a.bin", cases=60), tmp_path, seed=0, cases=60
    )
    assert any(words in failure for words in found.split("|")), failure
    assert "seed 0, case " in failure
