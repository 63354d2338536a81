"""The multi-view test loop on representations, run from a config by mmengine's Runner."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.evaluation_fakes import (
    ColourVideos,
    TinyEncoder,
    collate,
    data,
    loader,
    runner_of_fakes,
)

from sce_video.evaluation import (
    KNN,
    FeatureStatistics,
    LinearProbe,
    MultiViewValLoop,
    RankMe,
    Retrieval,
    compute_metrics,
    extract_features,
    group_ids,
    load_features,
    loop,
)
from sce_video.evaluation.functional.folds import divide
from sce_video.evaluation.functional.label_free import clip_hits, lidar, rankme
from sce_video.evaluation.loop import different_steps, in_both
from sce_video.evaluation.metrics.base import format_metrics
from sce_video.evaluation.rows import build_eval_dataloader

KNN_3 = {"type": "KNN", "k": 3}
ALL = [{"type": "KNN"}, {"type": "LinearProbe"}, {"type": "Retrieval"}]


def runner(work_dir, queries, load_from=None, evaluator=ALL, **test_cfg):
    test_cfg = {"type": "MultiViewTestLoop", **test_cfg}
    settings = {"test_dataloader": queries, "test_cfg": test_cfg, "test_evaluator": evaluator}
    return runner_of_fakes(work_dir, load_from=load_from, **settings)


def test_a_diverged_network_gives_no_results(tmp_path):
    model = TinyEncoder()
    next(model.parameters()).data.fill_(float("nan"))
    torch.save({"state_dict": model.state_dict(), "meta": {}}, tmp_path / "diverged.pth")
    metrics = [{"type": "FeatureStatistics"}]
    run = runner(tmp_path, data(6), load_from=str(tmp_path / "diverged.pth"), evaluator=metrics)
    with pytest.raises(
        ValueError, match=r"is not finite \(6 of 6 rows\), because the network has diverged"
    ):
        run.test()
    assert not list(tmp_path.glob("**/results.json"))


def test_against_a_gallery_with_a_checkpoint(tmp_path):
    torch.manual_seed(5)
    model = TinyEncoder()
    checkpoint = tmp_path / "trained.pth"
    torch.save({"state_dict": model.state_dict(), "meta": {}}, checkpoint)
    run = runner(
        tmp_path,
        data(12),
        load_from=str(checkpoint),
        gallery_dataloader=data(21, views=3),
        evaluator=[KNN_3, {"type": "Retrieval", "ks": [1, 5]}, {"type": "FeatureStatistics"}],
        out="sub/out.json",
        dump="f.npz",
    )
    metrics = run.test()

    queries = extract_features(model, loader(ColourVideos(12)))
    gallery = extract_features(model, loader(ColourVideos(21, views=3)))
    metrics_of = [KNN(k=3), Retrieval(ks=[1, 5]), FeatureStatistics()]
    expected = compute_metrics(metrics_of, queries, gallery)
    assert metrics == pytest.approx(expected)
    assert metrics["knn_top1"] == 1.0

    written = json.loads((tmp_path / "sub" / "out.json").read_text())
    assert written["metrics"] == pytest.approx(expected)
    protocol = written["protocol"]
    digest = hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    assert protocol["checkpoint"] == {"path": str(checkpoint), "sha256": digest}
    counts = [protocol[k] for k in ("videos", "bank_videos", "failures", "bank_failures")]
    assert counts == [12, 21, 0, 0]
    assert (protocol["test"]["views"], protocol["bank"]["views"]) == (2, 3)
    assert protocol["protocols"]["knn"] == {"k": 3, "temperature": 0.07}
    np.testing.assert_allclose(load_features(tmp_path / "f.npz")[0].features, queries.features)
    np.testing.assert_allclose(load_features(tmp_path / "f_bank.npz")[0].features, gallery.features)


def test_random_initialisation_leaving_groups_out(tmp_path):
    run = runner(
        tmp_path,
        data(18, broken=[4], on_error="skip"),
        group_pattern=r"person(\d+)",
        evaluator=[{"type": "KNN", "k": 2}, {"type": "LinearProbe", "l2_grid": [0.1]}],
    )
    metrics = run.test()
    features = extract_features(run.model, loader(ColourVideos(18, broken={4}, on_error="skip")))
    groups, _ = group_ids(features.paths, r"person(\d+)")
    expected = compute_metrics(
        [KNN(k=2), LinearProbe(l2_grid=[0.1])], replace(features, groups=groups)
    )
    assert metrics == pytest.approx(expected)
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["protocol"]["checkpoint"]["source"] == "random initialisation, seed 3"
    assert written["protocol"]["groups"] == ["0", "1", "2", "3", "4", "5"]
    assert written["protocol"]["videos"] == 17
    assert written["failures"] == [["person1/class1.mp4", "cannot be decoded"]]


@pytest.mark.parametrize("column", ["fold", "group", "group,fold"])
def test_groups_and_folds_of_a_file_equal_a_loop(tmp_path, column, monkeypatch):
    """Folds are used exactly as they are; sample 4 is unreadable, the others keep their cells."""
    count, broken = 18, 4
    folds = [str((i // 3) % 3) for i in range(count)]
    groups = [f"p{(i // 3) % 5}" for i in range(count)]
    cells = {"fold": folds, "group": groups}
    rows = zip(*(cells[name] for name in column.split(",")), strict=True)
    lines = [",".join((f"{i}.mp4", *row)) for i, row in enumerate(rows)]
    (tmp_path / "g.csv").write_text("\n".join([f"path,{column}", *lines, ""]))
    run = runner(
        tmp_path,
        data(count, broken=(broken,), on_error="skip"),
        evaluator=[{"type": "KNN", "k": 1}],
        group_pattern={"group_file": str(tmp_path / "g.csv")},
        dump="f.npz",
    )
    logged = []
    monkeypatch.setattr(run.logger, "info", logged.append)
    metrics = run.test()
    features, protocol = load_features(tmp_path / "f.npz")
    apart = np.array(groups if column == "group" else folds)[features.indices.numpy()]
    x = features.values.double().numpy()
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    labels, hits = features.labels.numpy(), []
    for i in range(len(x)):
        others = np.flatnonzero(apart != apart[i])
        hits.append(labels[others[np.argmax(x[others] @ x[i])]] == labels[i])
    assert len(x) == count - 1 and metrics["knn_top1"] == pytest.approx(np.mean(hits))
    assert protocol["group_pattern"].startswith("columns of the list, sha256 ")
    written = json.loads((tmp_path / "results.json").read_text())
    assert ("given" in written["protocol"]["left_out"]) == ("fold" in column)
    # Folds alone are too few to draw, and do not say which videos belong together.
    drawn = "5 groups" if "group" in column else "17 videos"
    assert written["intervals_over"] == drawn
    assert f"\n  95 % intervals over {drawn}" in "".join(logged)


def test_a_file_of_groups_of_other_samples_is_refused(tmp_path):
    (tmp_path / "g.csv").write_text("path,group\na,1\nb,2\n")
    run = runner(tmp_path, data(12), group_pattern={"group_file": str(tmp_path / "g.csv")})
    with pytest.raises(ValueError, match=r"g\.csv does not have the groups or folds of the 12"):
        run.test()


def test_groups_are_tested_in_folds_which_the_result_and_the_log_name(tmp_path):
    settings = {"group_pattern": {"pattern": r"person(\d+)", "folds": 2}}
    evaluator = [{"type": "KNN", "k": 2}, {"type": "Retrieval", "ks": [1]}]
    run = runner(tmp_path, data(18), evaluator=evaluator, **settings)
    metrics = run.test()
    features = extract_features(run.model, loader(ColourVideos(18)))
    groups, _ = group_ids(features.paths, r"person(\d+)")
    folds = divide(features.labels, groups, folds=2)
    rows = replace(features, groups=groups, folds=folds.numbers)
    assert metrics == pytest.approx(compute_metrics([KNN(k=2), Retrieval(ks=[1])], rows))
    protocol = json.loads((tmp_path / "results.json").read_text())["protocol"]
    assert protocol["folds"] == {
        "count": 2,
        "rule": "2 stratified folds of whole groups, seed 0",
    }
    assert "leaving out one of 2 folds of 6 groups" in format_metrics(metrics, protocol)


@pytest.mark.parametrize(
    ("test_cfg", "message"),
    [
        ({}, "gallery_dataloader"),
        ({"evaluator": [], "group_pattern": "(a)"}, "test_evaluator names no metric"),
        ({"precision": "float8", "group_pattern": "(a)"}, "precision must be one of"),
        ({"gallery_dataloader": data(6), "group_pattern": "(a)"}, "not both"),
        (
            {"group_pattern": {"pattern": "(a)", "fold": 3}},
            "has the unknown field 'fold'. The known fields are pattern, group_file, folds",
        ),
        ({"evaluator": [{"type": "TopKAccuracy"}]}, r"TopKAccuracy .* no classifier \(cls_head\)"),
    ],
)
def test_wrong_settings_are_refused_before_any_work(tmp_path, test_cfg, message):
    with pytest.raises(ValueError, match=message):
        runner(tmp_path, data(6), **test_cfg).test()
    run = runner(tmp_path, data(6), evaluator=[{"type": "FeatureStatistics"}])
    with pytest.raises(ValueError, match=r"KNN, Retrieval of val_evaluator .* OnlineEvaluation"):
        MultiViewValLoop(run, data(6), [KNN_3, {"type": "Retrieval"}])


def test_unreadable_files_are_not_replaced_in_evaluation(tmp_path, repo):
    from helpers.videos import numbered_frames, write_video

    write_video(tmp_path / "a" / "1.mp4", numbered_frames(12))
    (tmp_path / "a" / "2.mp4").write_bytes(b"no video")
    pipeline = [
        {"type": "OpenVideo", "backend": "av"},
        {"type": "UniformClips", "clip_duration": 0.2, "num_frames": 2, "num_clips": 2},
        {"type": "DecodeClips"},
        {"type": "ResizeShortSide", "size": 32},
        {"type": "CenterCropClips", "size": 32},
        {"type": "PackClips"},
    ]
    dataset = {"type": "VideoDataset", "data_root": str(tmp_path), "pipeline": pipeline}
    dataset["timeout"] = None

    def built(**changes):
        given = {**dataset, **changes}
        return build_eval_dataloader({"batch_size": 1, "num_workers": 0, "dataset": given})

    with pytest.raises(RuntimeError, match=r"2\.mp4"):
        extract_features(TinyEncoder(), built())
    with pytest.raises(ValueError, match="on_error='replace' would evaluate another"):
        built(on_error="replace")
    features = extract_features(TinyEncoder(), built(on_error="skip"))
    assert features.paths == [str(tmp_path / "a" / "1.mp4")]
    assert [path for path, _ in features.failures] == [str(tmp_path / "a" / "2.mp4")]


class Listed:
    """A dataset of paths."""

    def __init__(self, *paths):
        self.path = list(paths).__getitem__
        self.count = len(paths)

    def __len__(self):
        return self.count


def test_videos_in_both_sets_are_found_and_warned_about(tmp_path, monkeypatch):
    gallery = Listed("/v/a.mp4", "/v/b.mp4@0-5", "/v/c.mp4")
    queries = Listed("/v/x.mp4", "/v/a.mp4", "/v/b.mp4@7-9", "/other/c.mp4")
    assert in_both(queries, gallery) == ["/v/a.mp4", "/v/b.mp4@7-9"]
    assert in_both(Listed("/v/x.mp4"), gallery) == [] == in_both([1], gallery)
    monkeypatch.setattr(loop, "in_both", lambda *_: ["/v/a.mp4"])
    run = runner(tmp_path, data(6), gallery_dataloader=data(9), evaluator=[KNN_3])
    run.test()
    (log,) = tmp_path.glob("2*/2*.log")
    assert "1 of 6 test videos, or segments of the same recordings, are also" in log.read_text()


def test_steps_in_which_pipelines_differ_are_named():
    def loader(*steps):
        return {"dataset": {"type": "VideoDataset", "pipeline": steps}}

    one, two = {"type": "ResizeShortSide", "size": 72}, {"type": "CenterCrop", "size": 64}
    assert different_steps(loader(one, two), loader(dict(one), two)) == []
    (found,) = different_steps(loader(one, two), loader({**one, "size": 256}, two))
    assert found.startswith("step 0: ") and "72" in found and "256" in found
    assert len(different_steps(loader(one, two), loader(one))) == 1
    assert different_steps(loader(one), object()) == []


def test_measures_without_labels_are_of_the_single_clips(tmp_path):
    """Beside metrics of the means; against the features of each view, one at a time."""
    names = ("KNN", "ClipRetrieval", "LiDAR", "RankMe", "FeatureStatistics", "SenseOfTime")
    run = runner(
        tmp_path,
        data(12, views=3, broken=[5], on_error="skip"),
        evaluator=[{"type": name} for name in names],
        group_pattern=r"person(\d+)",
    )
    metrics = run.test()
    samples = [ColourVideos(12, views=3)[i] for i in range(12) if i != 5]
    model = run.model.eval()
    with torch.no_grad():
        clips = [
            model(**model.data_preprocessor(collate([{**sample, "inputs": [view]}])))[0][0]
            for sample in samples
            for view in sample["inputs"]
        ]
    clips, videos = torch.stack(clips), torch.arange(11).repeat_interleave(3)
    hits = clip_hits(clips, videos).double()
    assert metrics["clip_retrieval_r1"] == pytest.approx(float(hits.mean()))
    assert metrics["rankme"] == pytest.approx(rankme(clips), rel=1e-4)
    assert metrics["lidar"] == pytest.approx(lidar(clips, videos), rel=1e-3)
    low, high = json.loads((tmp_path / "results.json").read_text())["intervals"][
        "clip_retrieval_r1"
    ]
    assert low <= metrics["clip_retrieval_r1"] <= high
    rows = replace(extract_features(model, loader(ColourVideos(6))), source="f.npz")
    with pytest.raises(ValueError, match=r"of single clips, but f\.npz are means"):
        compute_metrics([RankMe()], rows)


@pytest.mark.parametrize("compared", ["groups", "a gallery"])
def test_a_class_that_cannot_be_predicted_is_refused_before_videos_are_read(tmp_path, compared):
    """None of the files is a video, so reading one of them would be another error."""
    names = [f"person{i % 3}_{i}.mp4" for i in range(9)]
    lines = [f"{name} {int(name.startswith('person2'))}" for name in names]
    (tmp_path / "all.txt").write_text("\n".join(lines))
    (tmp_path / "one.txt").write_text("\n".join(line for line in lines if line.endswith("0")))
    for name in names:
        (tmp_path / name).write_bytes(b"no video")
    pipeline = [
        {"type": "OpenVideo", "backend": "av"},
        {"type": "UniformClips", "clip_duration": 0.2, "num_frames": 2},
        {"type": "DecodeClips"},
        {"type": "PackClips"},
    ]

    def listed(name):
        dataset = {"type": "VideoDataset", "ann_file": str(tmp_path / name), "pipeline": pipeline}
        dataset |= {"data_root": str(tmp_path), "timeout": None}
        return {"batch_size": 1, "num_workers": 0, "dataset": dataset}

    given = {"group_pattern": r"person(\d)"}
    message = r"classes \[1\] .* \(as .*person2_2\.mp4\) but in one group only"
    if compared == "a gallery":
        given, message = {"gallery_dataloader": listed("one.txt")}, r"\[1\] .* not in the gallery"
    with pytest.raises(ValueError, match=message):
        runner(tmp_path, listed("all.txt"), evaluator=[KNN_3], **given).test()
