"""The image tables in the report: what is listed for a project on images, on videos, on both."""

from __future__ import annotations

from helpers.results_files import K400, linear_on_images, results

from sce_video.reporting.paper_cells import assign_results
from sce_video.reporting.report_pages import missing_images, render_html, render_markdown
from sce_video.reporting.result_files import Collection, parse_result


def report_of(*contents):
    found = [parse_result(f"r{i}/results.json", c) for i, c in enumerate(contents)]
    return assign_results(Collection(found))


def rows(text):
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in text.splitlines()
        if line.startswith("|")
    ]


def test_a_project_on_images_lists_what_is_missing_and_counts_the_videos():
    report = report_of(linear_on_images("cifar10", top1=0.9021))
    text = render_markdown(report)
    missing = {tuple(row[:2]): row[2] for row in rows(text.partition("## Not run")[2])}
    numbers = missing["SCE and its baselines (tab:baselines)", "CIFAR10"]
    assert numbers == "MoCo v2: 87.6; ReSSL: 90.2"
    numbers = missing["Temperatures on small images (tab:temperature-small)", "CIFAR10"]
    temperatures = numbers.replace("\\", "").split("; ")
    assert len(temperatures) == 15 and temperatures[3] == "tau 0.1, tau_m 0.06: 90.20"
    assert "Of 101 numbers on videos none was measured." in text and "Kinetics" not in text
    counted = sum(row["count"] for row in missing_images(report))
    assert counted + 1 == len(report.images) == 138
    page = render_html(report)
    shown, _, folded = page.partition("Videos: none of 101 numbers was measured")
    assert "Kinetics" not in shown
    assert "Kinetics" in folded and "137 numbers not run" in folded


def test_a_project_on_videos_sees_one_line_on_images():
    report = report_of(results({"top1": 0.6}, "linear", K400))
    text = render_markdown(report)
    assert "Of 138 numbers on images none was measured." in text and "CIFAR10" not in text
    shown, _, folded = render_html(report).partition("Images: none of 138 numbers was measured")
    assert "CIFAR10" not in shown and "CIFAR10" in folded


def test_another_setting_and_own_images_are_own_results():
    report = report_of(linear_on_images("cifar10", pretrained={"model.tau": 0.1}))
    text = render_markdown(report)
    assert "Beside the paper" not in text and "## Own results" in text
    assert "CIFAR10, linear" in text and "model.tau: 0.1 -&gt; 0.2" in text
    assert "model.tau: 0.1 -&gt; 0.2" in render_html(report)
    assert "tau 0.2, tau\\_m 0.1: 90.34" in text.partition("## Not run")[2]
    assert "Of 101 numbers on videos none was measured." in text
    # Own images are no reason to list the tables.
    text = render_markdown(report_of(linear_on_images("cifar10", changes={"benchmark": None})))
    assert "## Own results" in text and "Of 138 numbers on images none was measured." in text
