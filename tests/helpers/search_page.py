"""Names, port and token of the search page that its tests open."""

EVIL = "<img src=x onerror=alert(1)>.mp4"
#: Videos of the index, and the videos of the fixture ``originals`` that they are copies of.
NAMES = {
    "jump/b.mp4": "b.mp4",
    "jump/c d.mp4": "c/d.mp4",
    f"run/{EVIL}": "a.mp4",
    "run/e.mp4": "c/e e.mp4",
    "top.mp4": "f.mp4",
}
PORT, TOKEN = 8123, "the-token"
