"""The service for programs: its description holds for its answers; token, segments, 20 clients."""

import json
import threading
import urllib.request

import numpy as np
import pytest
from helpers.search_page import PORT, TOKEN
from helpers.tiny_encoder import moving_frames
from helpers.videos import write_video

from sce_video.find.columns import ColumnSources, read_columns
from sce_video.find.search_page import create_app
from sce_video.inference.embed import embed_videos
from sce_video.inference.windows import embed_span

V1 = "/api/v1"
ORIGIN = f"http://127.0.0.1:{PORT}"


@pytest.fixture
def program(client):
    """A client with the token in a header, without cookie and Origin."""
    headers = {"authorization": f"Bearer {TOKEN}"}
    return type(client)(client.app, base_url=ORIGIN, headers=headers)


@pytest.fixture
def columns(state, monkeypatch, tmp_path):
    """Columns of the videos of the page: ``site`` is 0, 1, 2 ... by row."""
    lines = "".join(f'"{path}",{row}\n' for row, path in enumerate(state.index.paths))
    (tmp_path / "meta.csv").write_text("path,site\n" + lines)
    found = read_columns(
        state.index.path_array, ColumnSources(state.index.root, tmp_path / "meta.csv")
    )
    monkeypatch.setattr(state, "columns", found)


def image():
    import cv2

    return cv2.imencode(".png", moving_frames(1, seed=77)[0][..., ::-1])[1].tobytes()


def send(client, method, path, **options):
    return client.request(method, V1 + path, **options)


def test_the_description_holds_for_every_answer(client, program, columns, state):
    """Each operation is called; status, content type and JSON are those that are described."""
    jsonschema = pytest.importorskip("jsonschema")
    described = send(program, "GET", "/openapi.json").json()
    assert described["openapi"].startswith("3.1")
    called = set()

    def check(method, path, asked="", status=200, sender=client, **options):
        operation = described["paths"][V1 + path][method.lower()]
        answer = send(sender, method, asked or path, **options)
        assert answer.status_code == status, answer.text
        content = operation["responses"][str(status)]["content"]
        kind = answer.headers["content-type"].partition(";")[0]
        assert kind in content
        if kind == "application/json":
            schema = {**content[kind]["schema"], "components": described["components"]}
            jsonschema.Draft202012Validator(schema).validate(answer.json())
            called.add((method.lower(), V1 + path))
            return answer.json()
        called.add((method.lower(), V1 + path))
        return answer.content

    videos = check("GET", "/videos")
    assert videos["columns"][0]["name"] == "site" and videos["texts"] is False
    check("GET", "/map")
    for path in ("/thumb/{row}", "/clip/{row}", "/video/{row}"):
        assert check("GET", path, path.replace("{row}", "0"))
        check("GET", path, path.replace("{row}", "99"), status=404)
    uploaded = check("POST", "/upload", params={"name": "a.png"}, content=image())
    assert uploaded["kind"] == "image"
    shown = check("GET", "/upload/{upload}", f"/upload/{uploaded['upload']}")
    assert shown[:2] == b"\xff\xd8"
    check("POST", "/upload", status=413, params={"name": "a.mp4"}, content=b"x" * 200_001)
    check("POST", "/missing", json={"rows": [0, 1]})
    assert check("POST", "/rows", json={"where": "site >= 3"})["rows"] == [3, 4]
    assert "no such column" in check("POST", "/rows", status=422, json={"where": "x=1"})["error"]
    like = [{"row": 0}, {"upload": uploaded["upload"]}]
    query = {"like": like, "unlike": [{"path": videos["names"][1]}]}
    found = check("POST", "/search", json={**query, "where": "site != 4", "k": 9})
    assert set(found["rows"]) == {2, 3} and len(found["names"]) == 2
    for wrong in ({"like": [{"row": 0, "path": "x"}]}, {"like": [{"row": 0, "start": 1}]}, {}):
        check("POST", "/search", status=422, json=wrong)
    check("POST", "/search", status=404, json={"like": [{"path": "../../etc/passwd"}]})
    check("POST", "/label", json={"rows": [0, 1, 2, 3], "label": "x"})
    check("POST", "/label", json={"rows": [0], "label": "y"})
    assert check("POST", "/search", json={"more_like": "x"})["rows"] == [4]
    body = {"start": 0.1, "end": 0.4, "label": "jump"}
    assert check("POST", "/segments/{row}", "/segments/4", json=body)["total"] == 1
    check("POST", "/segments/{row}", "/segments/4", status=422, json={**body, "end": 0.05})
    check("POST", "/segments/{row}", "/segments/4", status=403, json=body, sender=program)
    removed = {"number": 0, "label": "jump"}
    check("POST", "/segments/{row}/remove", "/segments/4/remove", json=removed)
    check("POST", "/segments/{row}/undo", "/segments/4/undo")
    assert check("GET", "/segments/{row}", "/segments/4")["segments"] == [[0.1, 0.4, "jump"]]
    assert check("GET", "/cut/{row}", "/cut/4", params={"start": 0.2, "end": 0.5})
    check("POST", "/split")
    check("POST", "/undo")
    check("POST", "/undo", status=403, sender=program)
    documented = {(m, p) for p, methods in described["paths"].items() for m in methods}
    assert called == documented, "an operation is documented and not tried, or tried alone"


def test_a_program_reads_with_the_token_and_writes_only_if_allowed(client, program, state):
    assert send(program, "POST", "/search", json={"like": [{"row": 0}]}).status_code == 200
    for path, body in (("/label", {"rows": [0], "label": "x"}), ("/undo", {}), ("/split", {})):
        answer = send(program, "POST", path, json=body)
        assert answer.status_code == 403 and "--writable" in answer.json()["error"]
    assert not state.labels.labels
    writable = type(client)(
        create_app(state, TOKEN, PORT, writable=True), base_url=ORIGIN, headers=program.headers
    )
    assert send(writable, "POST", "/label", json={"rows": [0], "label": "x"}).status_code == 200
    refused = [
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {TOKEN}"},
        {"host": "evil.example"},
        {"origin": "http://evil.example"},
        {"sec-fetch-site": "cross-site"},
    ]
    for headers in refused:
        for sender in (program, writable):
            answer = send(sender, "POST", "/search", json={"like": [{"row": 0}]}, headers=headers)
            assert answer.status_code == 403, headers
    del client.headers["origin"]  # the cookie alone is that of a browser
    assert send(client, "POST", "/search", json={"like": [{"row": 0}]}).status_code == 403


def test_a_segment_and_an_image_are_embedded_by_the_network_of_the_index(program, state, model):
    options = state.index.options
    file = state.index.file(state.names[1])
    segment = embed_span(model, file, 0.2, 0.6, options)
    still = embed_videos(model, np.repeat(moving_frames(1, seed=77), 9, axis=0))[0]
    answer = send(program, "POST", "/upload", params={"name": "A.PNG"}, content=image()).json()
    features = np.array(state.index.features)
    for example, feature in (
        ({"path": state.names[1], "start": 0.2, "end": 0.6}, segment),
        ({"row": 1, "start": 0.2, "end": 0.6}, segment),
        ({"upload": answer["upload"]}, still),
    ):
        found = send(program, "POST", "/search", json={"like": [example]}).json()
        cosines = features @ feature / np.linalg.norm(features, axis=1) / np.linalg.norm(feature)
        out = {1} if feature is segment else set()
        assert set(found["rows"]) == set(range(5)) - out
        np.testing.assert_allclose(found["similarity"], cosines[found["rows"]], atol=2e-5)
    late = {"row": 1, "start": 90, "end": 91}
    answer = send(program, "POST", "/search", json={"like": [late]})
    assert answer.status_code == 422 and "before the moment" in answer.json()["error"]


def test_images_that_are_refused(client, monkeypatch):
    def refused(content, name="a.png"):
        answer = send(client, "POST", "/upload", params={"name": name}, content=content)
        return answer.status_code, answer.json()["error"]

    assert refused(b"no image") == (
        422,
        "the image cannot be decoded: is not an image that can be decoded",
    )
    status, error = refused(b"P5 200000 200000 255\n" + b"x" * 99)  # 40 gigapixels, by its header
    assert status == 422 and ("too large" in error or "more than the" in error)
    monkeypatch.setattr("sce_video.find.search_page.IMAGE_LIMIT", 1000)
    status, error = refused(b"x" * 1001)
    assert status == 413 and error.startswith("the image is larger than")


def test_twenty_clients_at_a_time(served, state, tmp_path):
    """Searches, conditions and pictures of 20 threads are answered as those of one."""
    write_video(tmp_path / "new.mp4", moving_frames(20, seed=5))
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}

    def ask(path, body=None):
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(served.origin + V1 + path, data, headers)
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.read()

    video = (tmp_path / "new.mp4").read_bytes()
    upload = json.loads(ask("/upload?name=new.mp4", video))["upload"]
    requests = [
        ("/search", {"like": [{"row": 1}, {"row": 3}], "unlike": [{"row": 0}]}),
        ("/search", {"like": [{"upload": upload}], "centred": True}),
        ("/search", {"like": [{"row": 2, "start": 0.1, "end": 0.5}], "where": "path LIKE 'run/%'"}),
        ("/rows", {"where": "path LIKE '%.mp4' AND length(path) > 7"}),
        ("/thumb/1", None),
        ("/clip/2", None),
        ("/videos", None),
    ]
    alone = [ask(*request) for request in requests]
    results = [[] for _ in range(20)]

    def client(number):
        for i in range(len(requests)):
            place = (number + i) % len(requests)
            results[number].append((place, ask(*requests[place])))
        if number % 5 == 0:
            results[number].append((None, ask("/upload?name=new.mp4", video)))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, found in enumerate(results):
        assert len(found) == len(requests) + (number % 5 == 0)
        assert all(answer == alone[place] for place, answer in found if place is not None)
