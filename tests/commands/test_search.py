"""The commands index and search: output, files, updates, errors and the page."""

import json
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.tiny_encoder import moving_frames, save_tiny, tiny_backbone, write_lossless
from packaging.version import Version

from sce_video.commands.main import main
from sce_video.datasets import open_video
from sce_video.dependencies import installed_version
from sce_video.find.index import read_index
from sce_video.inference.embed import ViewOptions, embed_videos
from sce_video.inference.model import load_model


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Make videos, a checkpoint and an index with 2 clips, which tests must not change."""
    folder = tmp_path_factory.mktemp("made")
    for i, name in enumerate(["a.mp4", "b.mp4", "sub/c.mp4", "sub/d.mp4"]):
        write_lossless(folder / "videos" / name, moving_frames(20, seed=i))
    write_lossless(folder / "query.mp4", moving_frames(20, seed=9))
    (folder / "videos" / "broken.mp4").write_bytes(b"no video")
    save_tiny(folder / "tiny.pth")
    assert main(index_arguments(folder)) == 0
    return folder


def index_arguments(folder, *more):
    return [
        *("index", str(folder / "videos"), "--checkpoint", str(folder / "tiny.pth")),
        *("--out", str(folder / "index"), "--clips", "2", "--workers", "0", *more),
    ]


def query_arguments(folder, video, *more):
    return ["search", str(video), "--index", str(folder / "index"), *more]


def table(output):
    """Return the rows of the printed table: rank, similarity, distance and path."""
    lines = output.splitlines()
    head = next(i for i, line in enumerate(lines) if line.split()[:1] == ["rank"])
    rows = []
    for line in lines[head + 1 :]:
        words = line.split(maxsplit=3)
        if not words[0].isdecimal():
            break
        rows.append((int(words[0]), float(words[1]), float(words[2]), words[3]))
    return rows


@pytest.mark.parametrize(
    ("video", "not_imported"),
    [
        ("videos/a.mp4", "torch mmengine transformers cv2 av"),
        (
            "query.mp4",
            "mmengine.runner torch._dynamo sce_video.find.index sce_video.evaluation.loop",
        ),
    ],
)
def test_a_search_imports_what_it_runs(made, repo, video, not_imported):
    code = (
        "import sys; from sce_video.commands.main import main; status = main(sys.argv[1:]); "
        "print(*sys.modules); sys.exit(status)"
    )
    words = query_arguments(made, made / video, "--no-html")
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=repo, check=True, capture_output=True, text=True
    )
    table, _, modules = done.stdout.rstrip().rpartition("\n")
    assert "sub/c.mp4" in table
    if installed_version("torch") < Version("2.9"):  # whose models import it themselves
        not_imported = not_imported.replace("torch._dynamo", "")
    assert not set(not_imported.split()) & set(modules.split())


def test_a_query_that_is_not_indexed(made, capsys, tmp_path):
    written = ["--html", str(tmp_path / "g.html"), "--json", str(tmp_path / "r.json")]
    assert main(query_arguments(made, made / "query.mp4", "-k", "3", *written)) == 0
    rows = table(capsys.readouterr().out)
    model = load_model(made / "tiny.pth")
    names = ["a.mp4", "b.mp4", "sub/c.mp4", "sub/d.mp4"]
    gallery = embed_videos(
        model, [made / "videos" / name for name in names], ViewOptions(num_clips=2)
    )
    query = embed_videos(model, made / "query.mp4", ViewOptions(num_clips=2))[0]
    cosines = gallery @ query / np.linalg.norm(gallery, axis=1) / np.linalg.norm(query)
    best = np.argsort(-cosines)[:3]
    assert [(row[0], row[3]) for row in rows] == [(n + 1, names[i]) for n, i in enumerate(best)]
    np.testing.assert_allclose([row[1] for row in rows], cosines[best], atol=1e-4)
    np.testing.assert_allclose([row[2] for row in rows], 1 - cosines[best], atol=1e-4)

    written = json.loads((tmp_path / "r.json").read_text())
    assert [r["path"] for r in written["results"]] == [row[3] for row in rows]
    np.testing.assert_allclose(
        [r["distance"] for r in written["results"]], 1 - cosines[best], atol=1e-5
    )
    assert (written["clips"], written["videos"], written["centred"]) == (2, 4, False)
    assert written["whitened"] is False  # whole videos
    page = (tmp_path / "g.html").read_text()
    assert page.count("<img") == 16 and page.index(names[best[0]]) < page.index(names[best[1]])


def test_the_default_gallery_is_a_new_file_in_the_index_folder(made, capsys):
    pages = [made / "index" / "queries" / f"query{end}.html" for end in ("", "-2")]
    texts = []
    for k, page in enumerate(pages, start=1):
        assert main(query_arguments(made, made / "query.mp4", "-k", str(k))) == 0
        assert str(page) in capsys.readouterr().out
        texts.append(page.read_text())
        for link in ("./../../query.mp4", "./../../videos/"):
            assert f'href="{link}' in texts[-1]
    assert pages[0].read_text() == texts[0]
    assert [text.count("<video") for text in texts] == [2, 3]
    shutil.rmtree(pages[0].parent)


@pytest.fixture
def copied(made, tmp_path):
    """Copy ``made`` with its own index, which a test may change."""
    shutil.copytree(made, tmp_path / "made")
    shutil.rmtree(tmp_path / "made" / "index")
    assert main(index_arguments(tmp_path / "made")) == 0
    return tmp_path / "made"


def test_a_second_run_reports_what_it_did(copied, capsys):
    capsys.readouterr()
    shutil.copy(copied / "query.mp4", copied / "videos" / "new.mp4")
    (copied / "videos" / "a.mp4").unlink()
    assert main(index_arguments(copied)) == 0
    printed = capsys.readouterr()
    assert "4 videos in the index, 1 unreadable" in printed.out
    assert "1 new, 0 changed, 4 kept, 1 dropped" in printed.out
    assert "broken.mp4: cannot be opened" in printed.out
    assert "embedding 1/1 (100%)" in printed.err
    assert read_index(copied / "index").paths == ["b.mp4", "new.mp4", "sub/c.mp4", "sub/d.mp4"]

    # An update uses the network and the views of the index.
    update = ["index", str(copied / "videos"), "--out", str(copied / "index"), "--workers", "0"]
    assert main(update) == 0
    assert "0 new, 0 changed, 5 kept" in capsys.readouterr().out
    assert read_index(copied / "index").options == ViewOptions(num_clips=2)
    message = fails(capsys, [*update, "--clips", "3"])
    assert "num_clips is 2 in the index, now 3" in message and "--rebuild" in message
    assert "give --checkpoint" in fails(capsys, [*update, "--rebuild"])
    update[3] = str(copied / "other")
    assert "give --checkpoint" in fails(capsys, update)


def test_clips_of_the_moments_found(made, tmp_path, capsys):
    windows = ("--windows", "0.4s", "--out", str(tmp_path / "index"))
    assert main(index_arguments(made, *windows)) == 0
    query = ["search", str(made / "query.mp4"), "--index", str(tmp_path / "index"), "-k", "3"]
    query += ["--no-html", "--json", str(tmp_path / "r.json"), "--clips", str(tmp_path / "clips")]
    assert main(query) == 0
    assert f"clips: 3 in {tmp_path / 'clips'}" in capsys.readouterr().out
    found = json.loads((tmp_path / "r.json").read_text())["results"]
    for match, clip in zip(found, sorted((tmp_path / "clips").iterdir()), strict=True):
        assert clip.name.startswith(f"{match['rank']:04d}_{match['path'].split('/')[-1][0]}_")
        with open_video(str(clip)) as cut, open_video(f"{made}/videos/{match['path']}") as whole:
            times = whole.timestamps + 1e-6
            assert len(cut.timestamps) == ((times >= match["start"]) & (times < match["end"])).sum()
    whole_videos = query_arguments(made, made / "query.mp4", "--clips", str(tmp_path / "no"))
    assert "contains whole videos" in fails(capsys, whole_videos)
    assert "--fast has an effect only on --clips" in fails(
        capsys, query_arguments(made, "x.mp4", "--fast")
    )


def fails(capsys, arguments):
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.err.splitlines()[-1].startswith(f"sce-video {arguments[0]}: error: ")
    assert "Traceback" not in printed.err
    return printed.err


def test_a_checkpoint_that_moved_or_changed(copied, capsys):
    shutil.move(copied / "tiny.pth", copied / "moved.pth")
    query = query_arguments(copied, copied / "query.mp4", "--no-html")
    assert "--checkpoint" in fails(capsys, query)
    assert main([*query, "--checkpoint", str(copied / "moved.pth")]) == 0
    save_tiny(copied / "tiny.pth", tiny_backbone(seed=1))
    assert "is not the checkpoint" in fails(capsys, query)
    indexed = query_arguments(copied, copied / "videos" / "a.mp4", "--no-html")
    assert main(indexed) == 0  # its feature is in the index
    capsys.readouterr()
    wrong = [*indexed, "--checkpoint", str(copied / "tiny.pth")]
    assert "is not the checkpoint" in fails(capsys, wrong)


def test_the_options_of_the_page(monkeypatch, tmp_path):
    seen = []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "INDEX").mkdir()
    for name in ("INDEX/features.npz", "c.pth"):
        (tmp_path / name).touch()
    monkeypatch.setattr("sce_video.find.search_page.serve", lambda *given: seen.append(given))
    more = "--port 9000 --no-open --labels list.txt --checkpoint c.pth".split()
    for options in (["--serve", "INDEX"], ["--serve", "--index", "INDEX"]):
        assert main(["search", *options, *more]) == 0
    assert {given.folder for (given,) in seen} == {"INDEX"} and len(seen) == 2
    assert {(g.checkpoint, g.labels, g.port, g.no_open) for (g,) in seen} == {
        ("c.pth", "list.txt", 9000, True)
    }


def test_the_token_is_no_argument_of_the_browser(made, monkeypatch, capsys):
    """All users see the arguments of processes, but only the owner can read the file."""
    opened, seen = [], []

    def serving(*_, **__):
        (address,) = opened
        file = Path(address.removeprefix("file://"))
        seen.extend((file, stat.S_IMODE(file.stat().st_mode), file.read_text()))

    monkeypatch.setattr("sce_video.find.search_page.webbrowser.open", opened.append)
    monkeypatch.setattr("sce_video.find.search_page._Server.run", serving)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    assert main(["search", "--serve", str(made / "index")]) == 0
    link = next(w for w in capsys.readouterr().out.split() if w.startswith("http://"))
    token = link.partition("token=")[2]
    file, mode, content = seen
    assert token and token not in opened[0] and mode == 0o600
    assert f'content="0; url={link}"' in content
    assert not file.exists(), "it is removed when the page ends"


def test_a_page_that_cannot_be_served(made, tmp_path, capsys):
    (tmp_path / "labels.txt").write_text("a.mp4\n")
    save_tiny(tmp_path / "other.pth", tiny_backbone(seed=4))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for options, message in (
            (["--serve", str(tmp_path)], "there is no index in"),
            (["--checkpoint", str(tmp_path / "no.pth")], "no checkpoint at"),
            (["--checkpoint", str(tmp_path / "other.pth")], "is not the checkpoint that the index"),
            (["--labels", str(tmp_path / "labels.txt")], "lists videos without labels"),
            (["--port", str(port)], f"port {port} of 127.0.0.1 cannot be used"),
            (["--port", "99999"], "--port must be at least 0 and at most 65,535"),
        ):
            index = [] if "--serve" in options else ["--serve", str(made / "index")]
            assert main(["search", *index, "--no-open", *options]) == 2
            assert message in capsys.readouterr().err
