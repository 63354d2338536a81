"""What the requests of the page answer; access control is in test_search_connections.py."""

import os
import shutil

import numpy as np
import pytest
from helpers.search_page import EVIL, NAMES
from helpers.tiny_encoder import moving_frames, save_tiny, tiny_backbone, write_lossless

from sce_video.datasets import open_video
from sce_video.find.index_network import IndexNetwork
from sce_video.find.search_state import NoRowError
from sce_video.inference.embed import ViewOptions, embed_videos


def error_of(answer, status):
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    return answer.json()["error"]


@pytest.fixture
def changed(searched, monkeypatch, tmp_path):
    """A function that lets the state see a copy of the videos."""
    copy = tmp_path / "copy"
    shutil.copytree(searched.folder / "videos", copy)
    monkeypatch.setattr(searched.state.index, "root", str(copy))
    return copy


def like(row, **more):
    return {"like": [{"row": row}], **more}


def upload(client, content, name="query.mp4"):
    return client.post("/api/v1/upload", params={"name": name}, content=content)


def test_the_list_of_videos(client, searched):
    found = client.get("/api/v1/videos").json()
    assert found["names"] == sorted(NAMES)
    assert [found["folders"][i] if i >= 0 else "" for i in found["folder"]] == [
        name.split("/")[0] if "/" in name else "" for name in sorted(NAMES)
    ]
    assert (found["failures"], found["problem"]) == (1, "")
    assert found["root"] == str(searched.folder / "videos")


def test_the_page_escapes_the_name_of_its_folder(client, searched, monkeypatch):
    monkeypatch.setattr(searched.state.index, "root", f"/videos/{EVIL}")
    page = client.get("/").text
    assert "<img" not in page and "&lt;img src=x" in page


def test_search_by_row_is_that_of_the_features(client, state):
    features = np.array(state.index.features)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    for centred in (False, True):
        found = client.post("/api/v1/search", json=like(2, centred=centred)).json()
        if not centred:
            cosines = features @ features[2]
            order = [row for row in np.argsort(-cosines) if row != 2]
            assert found["rows"] == order
            np.testing.assert_allclose(found["similarity"], cosines[order], atol=1e-4)
        assert len(found["rows"]) == 4 and 2 not in found["rows"]
    assert len(client.post("/api/v1/search", json=like(2, k=1)).json()["rows"]) == 1


def test_filters_of_a_search(client, state):
    names = state.names
    state.set_label([names.index("top.mp4"), names.index("run/e.mp4")], "good")

    def found(**filters):
        rows = client.post("/api/v1/search", json=like(0, **filters)).json()["rows"]
        return {names[row] for row in rows}

    everything = set(names) - {names[0]}
    assert found() == everything
    assert found(path="RUN/") == {f"run/{EVIL}", "run/e.mp4"}
    assert found(folder="run") == {f"run/{EVIL}", "run/e.mp4"}
    assert found(label=0) == {"top.mp4", "run/e.mp4"}
    assert found(label=-1) == everything - {"top.mp4", "run/e.mp4"}
    assert found(label=0, folder="run") == {"run/e.mp4"}
    assert found(path="no longer exists") == set()


def test_an_uploaded_video_is_embedded_by_the_network_of_the_index(client, state, model, tmp_path):
    video = write_lossless(tmp_path / "new.mp4", moving_frames(20, seed=77))
    answer = upload(client, video.read_bytes()).json()
    assert (
        answer["shown"] and client.get(f"/api/v1/upload/{answer['upload']}").content[4:8] == b"ftyp"
    )
    expected = embed_videos(model, video, ViewOptions(num_clips=2))[0]
    np.testing.assert_allclose(state.upload(answer["upload"]).feature, expected, rtol=1e-5)
    found = client.post(
        "/api/v1/search", json={"like": [{"upload": answer["upload"]}], "k": 9}
    ).json()
    assert len(found["rows"]) == 5
    copy = state.index.file(state.index.path(1))
    again = upload(client, open(copy, "rb").read()).json()["upload"]
    found = client.post("/api/v1/search", json={"like": [{"upload": again}]}).json()
    assert found["rows"][0] == 1 and found["similarity"][0] == pytest.approx(1, abs=1e-4)


def test_no_uploaded_file_is_left(client, monkeypatch, tmp_path, originals):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for content in ((originals / "a.mp4").read_bytes(), b"no video", b""):
        upload(client, content)
    assert os.listdir(tmp_path) == []


def test_bad_uploads(client):
    assert "cannot be decoded" in error_of(upload(client, b"no video at all"), 422)
    assert "empty" in error_of(upload(client, b""), 422)
    assert "'notes.txt' is not the name of a video" in error_of(
        upload(client, b"x", "notes.txt"), 422
    )
    assert error_of(upload(client, b"x" * 200_001), 413).startswith("the video is larger than")
    parts = (b"x" * 50_000 for _ in range(5))  # without a length in the header
    assert "larger than" in error_of(upload(client, parts), 413)
    path = error_of(upload(client, b"no video", "../../../etc/passwd.mp4"), 422)
    assert "/" not in path.replace("video/", "")
    assert "Drop it" in error_of(
        client.post("/api/v1/search", json={"like": [{"upload": "0" * 16}]}), 422
    )


def test_ranges_of_a_file(client, state):
    content = open(state.file(0), "rb").read()
    answer = client.get("/api/v1/video/0", headers={"range": "bytes=10-19"})
    assert (answer.status_code, answer.content) == (206, content[10:20])


def test_only_rows_are_served(client, searched):
    for path in (
        "/api/v1/video/5",
        "/api/v1/video/-1",
        "/api/v1/video/99999999999999999999",
        "/api/v1/thumb/5",
        "/api/v1/clip/5",
    ):
        assert client.get(path).status_code in (404, 422)
    for path in (
        "/api/v1/video/top.mp4",
        "/api/v1/video/..%2f..%2fetc%2fpasswd",
        "/api/v1/video/%2fetc%2fpasswd",
        "/static/..%2fsearch_page.html",
        "/static/gallery.html",
        "/docs",
        "/openapi.json",
    ):
        assert client.get(path).status_code in (404, 422), path
    assert client.post("/api/v1/search", json=like(-1)).status_code == 404
    assert client.post("/api/v1/label", json={"rows": [5], "label": "x"}).status_code == 404


@pytest.mark.parametrize("path", ["../secret.mp4", "{folder}/secret.mp4", "run/notes.txt"])
def test_an_index_by_a_stranger_serves_nothing_outside_its_folder(
    client, searched, monkeypatch, path
):
    (searched.folder / "secret.mp4").write_bytes(b"secret")
    stranger = [path.format(folder=searched.folder)] * 5
    monkeypatch.setattr(searched.state, "_videos", stranger)
    error = error_of(client.get("/api/v1/video/0"), 404)
    assert "is not a video in the indexed folder" in error


def test_a_file_of_another_name_is_served_if_it_holds_a_video(searched, state, monkeypatch):
    """As --all-files lists it; an index by somebody else may name any file of the folder."""
    folder = searched.folder / "videos"
    shutil.copy(folder / state._videos[0], folder / "camera.rec")
    (folder / "secret.rec").write_text("secret")
    monkeypatch.setattr(state, "_videos", ["camera.rec", "secret.rec"])
    assert state.file(0) == str(folder / "camera.rec")
    with pytest.raises(NoRowError, match="is not a video in the indexed folder"):
        state.file(1)


def test_a_video_that_has_gone(client, state, changed):
    (changed / "top.mp4").unlink()
    os.mkfifo(changed / "top.mp4")  # reading it would wait for ever
    row = state.names.index("top.mp4")
    for path in ("thumb", "clip", "video"):
        message = error_of(client.get(f"/api/v1/{path}/{row}"), 410)
        assert message.startswith("top.mp4 no longer exists. Update the index: sce-video index ")
    rows = client.post("/api/v1/missing", json={"rows": [0, row]}).json()["rows"]
    assert rows == [row]
    assert client.post("/api/v1/search", json=like(row)).status_code == 200


def test_the_network_is_missing_or_another(client, state, monkeypatch, tmp_path, originals):
    content = (originals / "a.mp4").read_bytes()
    monkeypatch.setattr(state, "_network", IndexNetwork(str(tmp_path / "moved.pth")))
    assert "no checkpoint at" in client.get("/api/v1/videos").json()["problem"]
    assert "moved.pth" in error_of(upload(client, content), 422)
    assert client.post("/api/v1/search", json=like(0)).status_code == 200
    other = save_tiny(tmp_path / "other.pth", tiny_backbone(seed=5))
    monkeypatch.setattr(state, "_network", IndexNetwork(str(other)))
    assert "is not the checkpoint that the index" in error_of(upload(client, content), 422)


def test_the_map(client, state):
    found = client.get("/api/v1/map").json()
    assert found["rows"] == [0, 1, 2, 3, 4]
    (plane,) = found["methods"]
    assert plane["name"] == "PCA" and len(plane["x"]) == len(plane["y"]) == 5
    assert np.ptp(plane["x"]) > np.ptp(plane["y"]) > 0, "the first component varies most"


def test_labels(client, state):
    given = client.post("/api/v1/label", json={"rows": [0, 2], "label": " good  run "}).json()
    assert (given["classes"], given["label"]) == (["good run"], [0, -1, 0, -1, -1])
    assert state.labels.file.read_text() == f"jump/b.mp4 0\nrun/{EVIL} 0\n"
    assert client.post("/api/v1/undo").json()["label"] == [-1] * 5
    for label in ("", "x" * 101, "a\x00b"):
        message = error_of(client.post("/api/v1/label", json={"rows": [0], "label": label}), 422)
        assert "printable" in message
    state.labels.file.write_text("top.mp4 0\n")
    answer = client.post("/api/v1/label", json={"rows": [0], "label": "x"})
    assert "another program has changed" in error_of(answer, 422)
    assert state.labels.file.read_text() == "top.mp4 0\n"


def test_a_malformed_request_is_one_sentence(client):
    for body in ({"like": "x"}, {"k": 0}, {"k": 10**9}, {"wheer": ""}):
        message = error_of(client.post("/api/v1/search", json=body), 422)
        assert "\n" not in message and next(iter(body)) in message
    error_of(client.post("/api/v1/search", content=b"{"), 422)
    error_of(client.get("/nothing"), 404)
    error_of(client.put("/api/v1/label"), 405)


def test_an_error_of_the_program_is_json(client, state, monkeypatch):
    def fail(filters):
        raise KeyError("x")

    monkeypatch.setattr(state, "matching", fail)
    assert error_of(client.post("/api/v1/rows", json={}), 500) == (
        "the server failed (KeyError: 'x'). Details are in its terminal"
    )


def test_segments_of_a_row(client, state, tmp_path):
    assert client.get("/api/v1/segments/4").json()["segments"] == []
    body = {"start": 0.1, "end": 0.5, "label": "jump"}
    state.set_label([0], "run")
    found = client.post("/api/v1/segments/4", json=body).json()
    assert found["segments"] == [[0.1, 0.5, "jump"]]
    assert (found["classes"], found["undo"], found["total"]) == (["run", "jump"], 1, 1)
    assert (tmp_path / "labels_segments.csv").read_text().endswith("\ntop.mp4,0.1,0.5,jump\n")
    assert client.get("/api/v1/segments/3").json()["segments"] == []
    late = error_of(client.post("/api/v1/segments/4", json={**body, "end": 9.0}), 422)
    assert late.startswith("the segment ends at 9.00 s, but the video ends at 0.")
    early = error_of(client.post("/api/v1/segments/4", json={**body, "end": 0.05}), 422)
    assert "before its start" in early
    equal = error_of(client.post("/api/v1/segments/4", json={**body, "end": 0.1}), 422)
    assert equal == "the segment has no length: it starts and ends at 0.1 s. Give a later end"
    error_of(client.post("/api/v1/segments/99", json=body), 404)
    error_of(client.post("/api/v1/segments/4", json={**body, "label": None}), 422)
    removal = {"number": 0, "label": "other"}
    assert "no longer exists" in error_of(
        client.post("/api/v1/segments/4/remove", json=removal), 422
    )
    removed = client.post("/api/v1/segments/4/remove", json={**removal, "label": "jump"}).json()
    assert removed["segments"] == []
    back = client.post("/api/v1/segments/4/undo", json={}).json()
    assert back["segments"] == [[0.1, 0.5, "jump"]]
    foreign = {"origin": "http://127.0.0.1:1"}
    assert client.post("/api/v1/segments/4", json=body, headers=foreign).status_code == 403


def test_a_clip_of_a_row(client, state, tmp_path):
    clip = client.get("/api/v1/cut/4", params={"start": 0.2, "end": 0.6})
    assert clip.headers["content-type"] == "video/mp4"
    assert "0004_top_0.2-0.6.mp4" in clip.headers["content-disposition"]
    (tmp_path / "clip.mp4").write_bytes(clip.content)
    with open_video(state.file(4)) as source, open_video(str(tmp_path / "clip.mp4")) as cut:
        times = source.timestamps
        assert len(cut.timestamps) == ((times >= 0.2 - 1e-6) & (times < 0.6 - 1e-6)).sum()
    long = error_of(client.get("/api/v1/cut/4", params={"start": 0, "end": 5000}), 422)
    assert "at most 600 s" in long
    none = error_of(client.get("/api/v1/cut/4", params={"start": 0.3, "end": 0.3}), 422)
    assert none.startswith("the clip has no length: it starts and ends at 0.3 s")
    error_of(client.get("/api/v1/cut/4", params={"start": "nan", "end": 1}), 422)
