"""The report: the cell of each result, what is shown, and that the pages are well-formed."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from helpers.results_files import K400, recalls, results, write

from sce_video.published.paper_results import MEAN_OF_SPLITS, PAPER_RESULTS
from sce_video.reporting.paper_cells import assign_results
from sce_video.reporting.report_pages import TITLE, render_html, render_markdown, write_report
from sce_video.reporting.result_files import Collection, collect_results

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
        for c in report.cells
        if c.measurements
    }


CLIPS = "test_dataloader.dataset.pipeline.UniformClips.num_clips"
LINEAR = ("linear", K400, "val", 59.8)


def linear(top1=0.6021, **options):
    return results({"top1": top1, "one_view_top1": 0.5}, "linear", K400, **options)


# -- assigning ------------------------------------------------------------------------------


def test_without_results_every_cell_is_there_and_not_run(report):
    empty = report({})
    assert sum(len(cell.papers) for cell in empty.cells) == len(PAPER_RESULTS)
    assert len(empty.cells) == 101 and empty.status_counts() == {"not run": 101}
    text = render_markdown(empty)
    table, ablations = md_tables(text)
    assert len(table) == 30 and all("not run" in row for row in table[1:])
    values = [cell for row in ablations[1:] for cell in row[1:4] if cell]
    assert len(values) == 101 - 29 and len(ablations) == 26
    assert "No results were found." in text and "No results were found." in render_html(empty)


def test_a_result_is_shown_next_to_its_number(report):
    built = report({"k400/results.json": linear()})
    ((measurement,),) = filled(built).values()
    assert list(filled(built)) == [LINEAR]
    assert measurement.name == "runs/k400/results.json" and measurement.deviations == ()
    assert measurement.values == (pytest.approx(60.21),)
    assert built.others == () and built.skipped == ()
    rows = [row for row in md_tables(render_markdown(built))[0] if row[4]]
    _, row = rows
    assert row[:7] == [
        "Kinetics-400, linear, top-1",
        "ResNet3D-18, 8 x 224²",
        "Kinetics-400, SCE",
        "59.8",
        "**60.2**",
        "+0.4",
        "measured",
    ]
    assert row[7] == "tab:video-sota-action, row: SCE (Ours), ResNet3D-18, 8 x 224², K400"
    words = "10 x 3 views", "19,881 videos", "0 failed", "av 18.1.0", "(0123456789ab)", "50.0"
    assert all(word in row[8] for word in words)


@pytest.mark.parametrize(
    ("share", "shown", "difference"), [(0.5984, "59.8", "0.0"), (0.5974, "59.7", "-0.1")]
)
def test_differences_add_up_as_shown(report, share, shown, difference):
    text = render_markdown(report({"results.json": linear(share)}))
    (row,) = [row for row in md_tables(text)[0][1:] if row[4]]
    assert (row[4], row[5]) == (f"**{shown}**", difference)


def test_two_results_of_one_cell_are_both_shown_by_name(report):
    built = report({"a/results.json": linear(0.61), "b/results.json": linear(0.59)})
    assert [m.name for m in filled(built)[LINEAR]] == ["runs/a/results.json", "runs/b/results.json"]
    rows = [row for row in md_tables(render_markdown(built))[0][1:] if row[4]]
    assert [(row[4], row[5]) for row in rows] == [("**61.0**", "+1.2"), ("**59.0**", "-0.8")]
    assert built.status_counts()["measured"] == 1


def test_deviations_are_listed_with_the_number(report):
    built = report({"results.json": linear(tested={CLIPS: 1})})
    assert built.status_counts() == {"not run": 100, "measured, deviates": 1}
    (row,) = [row for row in md_tables(render_markdown(built))[0][1:] if row[4]]
    assert row[6] == "measured, deviates: test: " + CLIPS.replace("_", "\\_") + ": 1 -&gt; 10"
    page = Page(render_html(built))
    (row,) = [r for r, kind in zip(page.rows, page.classes, strict=True) if kind == "deviates"]
    assert f"{CLIPS}: 1 -> 10" in row[5]


def test_the_ablations_are_one_row_for_each_pretraining(report):
    """What is measured leaves the rows of what is not, number by number."""
    pretraining = {"pretraining": "sce_baseline_lambda_0.125"}
    measured = results(
        {"top1": 0.651}, "linear", "kinetics200", source="kinetics200", benchmark=pretraining
    )
    built = report({"results.json": measured})
    assert filled(built)["linear", "kinetics200", "val", 64.8][0].values == pytest.approx((65.1,))
    wanted = {
        "SCE baseline, lambda 0.125": ("", "86.9", "58.2", "0.125"),
        "SCE baseline, lambda 0.875": ("62.1", "85.7", "55.3", "0.875"),
        "SCE, lambda 0.125, tau_m 0.07": ("64.7", "88.2", "60.6", "0.125, 0.07, 0.2, 1.0"),
    }
    rows = {row[0].replace("\\", ""): row[1:] for row in md_tables(render_markdown(built))[-1]}
    page = {row[0]: row[1:] for row in Page(render_html(built)).rows if row}
    for name, (*values, row) in wanted.items():
        assert rows[name][:3] == values and rows[name][3].endswith(f"row: {row}")
        assert page[name] == [row, *values]


def test_retrieval_has_its_recalls_in_one_row_and_plain_below(report):
    content = results(recalls(0.751, 0.853, 0.9), "retrieval", "ucf101", split=1)
    built = report({"r.json": content})
    (row,) = [row for row in md_tables(render_markdown(built))[0][1:] if row[4]]
    assert row[0] == "UCF101, retrieval, split 1, R@1/5/10"
    assert row[3] == "74.4 / 85.6 / 90.0"
    assert row[4] == "**75.1 / 85.3 / 90.0**<br>plain 74.1 / 84.3 / 89.0"
    assert row[5] == "+0.7 / -0.3 / 0.0"
    plainless = results(recalls(0.7, 0.8, 0.9, plain=False), "retrieval", "ucf101", split=1)
    (measured,) = filled(report({"r.json": plainless}))["retrieval", "ucf101", 1, 74.4]
    assert measured.plain == ()


def three_splits(tops=(0.93, 0.94, 0.98), **options):
    return {
        f"ucf/split{split}/results.json": results(
            {"top1": top1}, "finetune", "ucf101", split=split, **options
        )
        for split, top1 in zip((1, 2, 3), tops, strict=True)
    }


def test_three_splits_fill_the_mean_and_the_first_the_cell_of_split_1(report):
    found = filled(report(three_splits(network="r3d50")))
    assert list(found) == [
        ("finetune", "ucf101", MEAN_OF_SPLITS, 94.1),
        ("finetune", "ucf101", 1, 94.1),
    ]
    (mean,), (first,) = found.values()
    assert mean.values == (pytest.approx(95.0),) and mean.name == "runs/ucf"
    assert "split 1: 93.0" in mean.how and "split 3: 98.0" in mean.how
    assert first.values == (pytest.approx(93.0),) and mean.deviations == first.deviations == ()


def test_a_single_split_in_the_cell_of_a_mean_is_a_deviation(report):
    (first, *_) = three_splits().items()
    ((measurement,),) = filled(report(dict([first]))).values()
    assert measurement.deviations == ("split 1 alone, the paper's is the mean of 3",)


def test_k200_has_a_number_for_split_1_only(report):
    built = report(three_splits(source="kinetics200"))
    assert list(filled(built)) == [("finetune", "ucf101", 1, 88.4)]
    (other,) = built.others
    assert other.result.name == "runs/ucf"
    assert other.reasons == ("of mean of 3 splits, the paper's is of split 1 alone",)


def test_a_bad_split_excludes_the_mean_but_not_the_other_splits(report):
    files = three_splits(network="r3d50")
    name = "ucf/split2/results.json"
    files[name]["protocol"]["videos"] = 10
    built = report(files)
    assert list(filled(built)) == [("finetune", "ucf101", 1, 94.1)]
    (other,) = built.others
    assert other.reasons == ("split 2: 10 videos, published 3,734",)


def test_supervised_ssv2_and_detection(report):
    built = report(
        {
            "a.json": results({"top1": 0.72}, "supervised", "kinetics200", source=None),
            "b.json": results({"top1": 0.54}, "finetune", "ssv2", network="r3d50"),
            "c.json": results({"mAP/overall": 0.2}, "detection", "ava", network="r3d50"),
        }
    )
    assert {key[-1] for key in filled(built)} == {72.0, 53.9, 20.3}
    assert built.others == ()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (results({"knn_top1": 0.5}, "linear", K400, changes={"benchmark": None}), "no benchmark"),
        (linear(changes={"videos": 24}), "24 videos, published"),
        (linear(frames=4), "the paper has no number for: Kinetics-400, linear, ResNet3D-18, 4 x"),
        (results({"top5": 0.5}, "linear", K400), "has no top1"),
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


def test_skipped_files_are_listed(report):
    built = report({"a|b.json": "{", "results.json": linear()})
    assert built.skipped == (("runs/a|b.json", "is not JSON"),)
    assert "a&#124;b.json</code>: is not JSON" in render_markdown(built)
    assert "a|b.json</code>: is not JSON" in render_html(built)
    assert "JSON files without results, listed at the end: 1." in render_markdown(built)


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
    assert [len(table) for table in md_tables(text)] == [2, 2, 29, 26]


def test_the_page_is_self_contained_and_shows_every_cell(report):
    built = report({"results.json": linear(), **three_splits(), "x.json": "{"})
    text = render_html(built)
    page = Page(text)
    assert "http" not in text and "<link" not in text and "<script" not in text
    assert text.startswith("<!DOCTYPE html>") and '<meta charset="utf-8">' in text
    kinds = [kind for kind in page.classes if kind is not None]
    assert kinds.count("measured") == 2 and kinds.count("not-run") == 52
    measured = [r for r, kind in zip(page.rows, page.classes, strict=True) if kind == "measured"]
    assert (
        "60.2" in measured[0][2] and measured[0][4] == "+0.4" and "0123456789ab" in measured[0][5]
    )
    headings = [row[0] for row in page.rows if len(row) == 1]
    assert len(set(headings)) == 18
    assert (
        "Generalization · tab:video-sota-generalization, row: SCE (Ours), 2 views, T = 8"
        in headings
    )


def test_the_same_files_give_the_same_bytes_in_any_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b", "a", "c"):
        write(tmp_path / name / "results.json", linear())
        write(tmp_path / name / "y.json", "{")
    pages = [
        assign_results(collect_results(order)) for order in (["a", "b", "c"], ["c", "b", "a", "a"])
    ]
    assert render_markdown(pages[0]) == render_markdown(pages[1])
    assert render_html(pages[0]) == render_html(pages[1])


def test_writing(tmp_path):
    built = assign_results(Collection())
    for name, render in (("r.md", render_markdown), ("r.html", render_html)):
        path = tmp_path / "new" / name
        write_report(path, render(built))
        write_report(path, render(built))  # a report replaces a report
        assert path.read_text() == render(built) and TITLE in path.read_text()[:500]
    (tmp_path / "notes.md").write_text("mine\n")
    with pytest.raises(ValueError, match=r"notes\.md exists and is not a report"):
        write_report(tmp_path / "notes.md", render_markdown(built))
    assert (tmp_path / "notes.md").read_text() == "mine\n"
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["r.html", "r.md"]
