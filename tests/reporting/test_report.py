"""The report: a golden page, the cell of each result, and that the pages are well-formed."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean

import pytest
from helpers.results_files import (
    K400,
    MANY_SHOT,
    linear_on_images,
    recalls,
    results,
    transferred,
    write,
)

from sce_video.evaluation.results import Results
from sce_video.evaluation.transfer import on_dataset
from sce_video.published.paper_results import MEAN_OF_SPLITS, PAPER_RESULTS
from sce_video.reporting.report_content import assign_results
from sce_video.reporting.result_files import Collection, collect_results, parse_result
from sce_video.runs.report import render_html, render_markdown, write_report
from sce_video.utils.metric_names import is_trivial

VOID = {"meta", "br", "link", "img"}


class Page(HTMLParser):
    """Rows of cells of every table; complains about tags that do not nest."""

    def __init__(self, text):
        super().__init__()
        self.open, self.rows, self.classes, self.tags = [], [], [], set()
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag in VOID:
            return
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
            self.classes.append(dict(attrs).get("class"))
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open)
        self.open.pop()

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += f" {data}" if self.rows[-1][-1] else data


def md_tables(text):
    """Every table of a markdown page as rows of cells; bars that are escaped divide nothing."""
    tables, inside = [], False
    for line in text.splitlines():
        if line.startswith("|"):
            cells = line.replace("\\|", "\0").strip("|").split("|")
            if not inside:
                tables.append([])
            tables[-1].append([cell.strip().replace("\0", "|") for cell in cells])
        inside = line.startswith("|")
    for table in tables:
        assert len({len(row) for row in table}) == 1, "rows of different lengths"
        assert set(table.pop(1)) == {"---"}
    return tables


@pytest.fixture
def report(tmp_path, monkeypatch):
    """A function: files by name -> the report of them."""
    monkeypatch.chdir(tmp_path)

    def build(files):
        for name, content in files.items():
            write(tmp_path / "runs" / name, content)
        (tmp_path / "runs").mkdir(exist_ok=True)
        return assign_results(collect_results(["runs"]))

    return build


def filled(report):
    """(protocol, dataset, split, paper's first number) -> measurements, where there are any."""
    return {
        (c.papers[0].protocol, c.papers[0].dataset, c.papers[0].split, c.papers[0].value): (
            c.measurements
        )
        for c in report.videos.cells
        if c.measurements
    }


CLIPS = "test_dataloader.dataset.pipeline.UniformClips.num_clips"


def linear(top1=0.6021, **options):
    return results({"top1": top1, "one_view_top1": 0.5}, "linear", K400, **options)


# -- assigning ------------------------------------------------------------------------------


def test_golden_report(report):
    """Every kind of row: measured, deviating, retrieval, an ablation, images, own videos."""
    pretraining = {"pretraining": "sce_baseline_lambda_0.125"}
    walk = {"data_root": "/data/test", "classes": ["run", "walk"], "num_classes": 2}
    weights = {"path": "a.pth", "epoch": 9, "training": {"config": {"model": {"type": "SCE"}}}}
    own = {"kind": "representation", "benchmark": None, "network": 1, "videos": 36, "test": walk}
    made = report(
        {
            "k400/results.json": linear(),
            "deviating.json": linear(0.5976, tested={CLIPS: 1}),
            "retrieval.json": results(recalls(0.751, 0.853, 0.9), "retrieval", "ucf101", split=1),
            "ablation.json": results(
                *({"top1": 0.651}, "linear", "kinetics200"),
                **{"source": "kinetics200", "benchmark": pretraining},
            ),
            "other.json": linear(changes={"videos": 24}),
            "cifar.json": linear_on_images("cifar10", top1=0.9021),
            "random.json": {
                "metrics": {"knn_top1": 0.25, "linear_top1": 0.5},
                "protocol": {**own, "checkpoint": {"path": None, "source": "random"}},
            },
            "sce.json": {
                "metrics": {"effective_rank": 9.0, "knn_top1": 0.5, "linear_top1": 0.6},
                "protocol": {**own, "checkpoint": weights},
            },
            "a|b.json": "{",
        }
    )
    text = render_markdown(made)
    assert text == (Path(__file__).parent / "golden_report.md").read_text(encoding="utf-8")
    assert len(md_tables(text)) == 6
    page = Page(render_html(made))
    (row,) = [r for r, kind in zip(page.rows, page.classes, strict=True) if kind == "deviates"]
    assert f"{CLIPS}: 1 -> 10" in row[5]
    rows = {row[0]: row[1:] for row in page.rows if row}
    assert rows["0.125"] == ["UCF101 86.9; HMDB51 58.2"]
    assert "a|b.json</code>: is not JSON" in render_html(made)


def test_without_results_every_cell_is_there_and_not_run(report):
    empty = report({})
    assert sum(len(cell.papers) for cell in empty.videos.cells) == len(PAPER_RESULTS)
    assert len(empty.videos.cells) == 101 and empty.videos.counts == {"not run": 101}
    assert "No results were found." in render_markdown(empty)


def three_splits(tops=(0.93, 0.94, 0.98), **options):
    """The files of ``sce-video finetune-splits``."""
    files, listed = {}, {}
    for split, top1 in zip((1, 2, 3), tops, strict=True):
        content = results({"top1": top1}, "finetune", "ucf101", split=split, **options)
        files[f"ucf/split{split}/results.json"] = content
        listed[str(split)] = {"results": f"split{split}/results.json"}
    return {**files, "ucf/splits.json": {"kind": "splits", "splits": listed}}


def test_three_splits_fill_the_mean_and_the_first_the_cell_of_split_1(report):
    found = filled(report(three_splits(network="r3d50")))
    assert list(found) == [
        ("finetune", "ucf101", MEAN_OF_SPLITS, 94.1),
        ("finetune", "ucf101", 1, 94.1),
    ]
    (mean,), (first,) = found.values()
    assert mean.values == (pytest.approx(95.0),) and mean.name == "runs/ucf/splits.json"
    assert "split 1: 93.0" in mean.how and "split 3: 98.0" in mean.how
    assert first.values == (pytest.approx(93.0),) and mean.deviations == first.deviations == ()


def test_a_single_split_in_the_cell_of_a_mean_is_a_deviation(report):
    (first, *_) = three_splits().items()
    ((measurement,),) = filled(report(dict([first]))).values()
    assert measurement.deviations == ("split 1 alone, the paper's is the mean of 3",)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (results({"knn_top1": 0.5}, "linear", K400, changes={"benchmark": None}), "no benchmark"),
        (linear(changes={"videos": 24}), "24 videos, published"),
        (linear(frames=4), "the paper has no number for: Kinetics-400, linear, ResNet3D-18, 4 x"),
        (linear(top1=60.21), "60.21, which is not a fraction"),
        (results({"knn_top1": 0.5}, "retrieval", "ucf101", split=1), "has no retrieval_r1"),
    ],
)
def test_other_results_are_listed_with_the_reason(report, content, reason):
    built = report({"x/results.json": content})
    assert filled(built) == {}
    (other,) = built.others
    assert len(other.reasons) == 1 and reason in other.reasons[0]
    table = md_tables(render_markdown(built))[0]
    assert len(table) == 2 and "<code>runs/x/results.json</code>" in table[1][-1]
    if other.result.benchmark:  # else the recipe does not claim to be comparable
        assert reason.split("_")[0] in table[1][-1] and reason in render_html(built)


# -- images --------------------------------------------------------------------------------


def report_of(*contents):
    found = [parse_result(f"r{i}/results.json", c) for i, c in enumerate(contents)]
    return assign_results(Collection(found))


def test_a_project_on_images_lists_what_is_missing_and_counts_the_videos():
    built = report_of(linear_on_images("cifar10", top1=0.9021))
    text = render_markdown(built)
    missing = {tuple(row[:2]): row[2] for row in md_tables(text)[-1]}
    numbers = missing["SCE and its baselines (tab:baselines)", r"ReSSL \[\*\]"].split("; ")
    assert len(numbers) == 6 and "CIFAR10 90.2" in numbers
    table = "Temperatures on small images (tab:temperature-small)"
    numbers = missing[table, "tau 0.1, tau\\_m 0.06"].split("; ")
    assert numbers == ["CIFAR10 90.20", "CIFAR100 65.33", "STL10 89.84", "Tiny-ImageNet 51.66"]
    low_shot = missing["Transfer: low-shot SVMs on VOC2007 (tab:low-shot-voc)", "SCE (Ours)"]
    assert "VOC2007 (mAP, 16 images per class) 79.5; " in low_shot
    assert "Of 101 numbers on videos none was measured." in text and "Kinetics" not in text
    assert len(built.images.missing) + 1 == len(built.images.cells) == 138
    shown, _, folded = render_html(built).partition("Videos: none of 101 numbers was measured")
    assert "Kinetics" not in shown
    assert "Kinetics" in folded and "137 numbers not run" in folded


@pytest.mark.parametrize("content", [linear(), linear_on_images(changes={"benchmark": None})])
def test_a_project_on_videos_or_own_images_sees_one_line_on_images(content):
    built = report_of(content)
    text = render_markdown(built)
    assert "Of 138 numbers on images none was measured." in text and "CIFAR10" not in text
    shown, _, folded = render_html(built).partition("Images: none of 138 numbers was measured")
    assert "CIFAR10" not in shown and "CIFAR10" in folded


def measured(report):
    """(data set, metric) -> paper's number and measured values on images, where there are any."""
    found = {}
    for paper, cell in (
        (cell.papers[0], cell) for cell in report.images.cells if cell.measurements
    ):
        values = [round(m.values[0], 6) for m in cell.measurements]
        found[paper.dataset, paper.metric] = paper.value, values
    return found


def test_the_mean_of_many_shot_is_that_of_all_eleven_sets_of_one_checkpoint():
    values = {name: 0.5 + 0.01 * i for i, name in enumerate(MANY_SHOT)}
    contents = [
        transferred("many_shot", name, {f"many_shot_{MANY_SHOT[name][2]}": value})
        for name, value in values.items()
    ]
    found = measured(report_of(*contents))
    assert len(found) == 12 and found["dtd", "many_shot_top1"] == (77.1, [57.0])
    mean = round(100 * fmean(values.values()), 6)
    assert found["many_shot_mean", "many_shot_mean"] == (80.4, [mean])
    assert len(measured(report_of(*contents[1:]))) == 10, "ten sets have no mean"
    contents[0]["protocol"]["checkpoint"] |= {"sha256": "ef" * 32}
    assert len(measured(report_of(*contents))) == 11, "of two checkpoints"


def test_low_shot_fills_a_cell_for_each_number_of_images():
    metrics = {"low_shot_map_16": 0.79, "low_shot_map_full": 0.88, "low_shot_map_1": 0.5}
    assert measured(report_of(transferred("low_shot_svm", "voc2007", metrics))) == {
        ("voc2007", "low_shot_map_16"): (79.5, [79.0]),
        ("voc2007", "low_shot_map_full"): (88.2, [88.0]),
    }


def test_the_set_completes_the_benchmark_of_the_features():
    for stated, dataset, expected in (
        ({"size": 224}, "dtd", {"size": 224, "protocol": "many_shot", "dataset": "dtd"}),
        ({"size": 224}, None, None),  # a set of one's own
        (None, "dtd", None),
    ):
        results = Results({}, {"protocol_name": "many_shot", "benchmark": stated})
        assert on_dataset(results, dataset).protocol["benchmark"] == expected


# -- pages ---------------------------------------------------------------------------------


def test_hostile_file_contents_are_escaped(report):
    nasty = '<script>alert(1)</script> | ` " & \n*x*'
    content = linear(changes={"decoder_version": nasty})
    content["protocol"]["checkpoint"] |= {"path": nasty, "sha256": None}
    other = linear(changes={"benchmark": {"protocol": nasty, "dataset": ["x"]}, "dataset": nasty})
    built = report({"<b>|`x_y/results.json": content, "other.json": other})
    page = render_html(built)
    assert "<script" not in page and "&lt;script&gt;" in page
    assert Page(page).tags <= {
        "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "div", "table", "thead",
        "tbody", "tr", "th", "td", "span", "strong", "code", "ul", "li", "h3", "h4", "i", "b",
        "details", "summary",
    }  # fmt: skip
    text = render_markdown(built)
    assert "<script" not in text and "<b>" not in text
    assert [len(table) for table in md_tables(text)] == [2, 2, 37]


def test_the_page_is_self_contained_and_shows_every_cell(report):
    built = report({"results.json": linear(), **three_splits(), "x.json": "{"})
    text = render_html(built)
    page = Page(text)
    assert "http" not in text and "<link" not in text and "<script" not in text
    assert text.startswith("<!DOCTYPE html>") and '<meta charset="utf-8">' in text
    kinds = [kind for kind in page.classes if kind is not None]
    assert kinds.count("measured") == 2 and kinds.count("not-run") == 101
    measured = [r for r, kind in zip(page.rows, page.classes, strict=True) if kind == "measured"]
    cells = measured[0]
    assert "60.2" in cells[2] and cells[4] == "+0.4" and "0123456789ab" in cells[5]
    headings = {row[0] for row in page.rows if len(row) == 1}
    row = "tab:video-sota-generalization"
    assert len(headings) == 21 and f"Generalization · {row}" in headings


def test_writing(tmp_path):
    built = assign_results(Collection())
    for name, render in (("r.md", render_markdown), ("r.html", render_html)):
        for _ in range(2):  # a report replaces a report
            write_report(tmp_path / "new" / name, render(built))
        assert (tmp_path / "new" / name).read_text() == render(built)
    (tmp_path / "notes.md").write_text("mine\n")
    with pytest.raises(ValueError, match=r"notes\.md exists and is not a report"):
        write_report(tmp_path / "notes.md", render_markdown(built))
    assert (tmp_path / "notes.md").read_text() == "mine\n"
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["r.html", "r.md"]


@pytest.mark.parametrize(
    ("name", "num_classes", "expected"),
    [
        ("top5", 2, True),
        ("knn_top5", 9, True),
        ("knn_top5", 10, False),
        ("top1", 1, False),
        ("top5", None, False),
        ("top5_error", 2, False),
    ],
)
def test_top_k_of_fewer_than_2k_classes(name, num_classes, expected):
    assert is_trivial(name, num_classes) is expected


def test_contradictions_of_own_results_are_shown(tmp_path):
    content = {"metrics": {"top1": 0.9}, "intervals": {"top1": [0.1, 0.5]}, "protocol": {}}
    write(tmp_path / "results.json", content)
    report = assign_results(collect_results([tmp_path / "results.json"]))
    for text in (render_markdown(report), render_html(report)):
        assert "its numbers contradict each other: top1 is 0.9, outside its interval" in text
