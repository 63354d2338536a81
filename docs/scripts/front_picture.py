r"""Draw docs/images/front.webp: a folder of videos, the page of a run, a search in a browser.

    sce-video demo --minutes 20 --out DEMO       (or any folder, run and index)
    python docs/scripts/front_picture.py DEMO/videos/train DEMO/run/run.html DEMO/index \
        docs/images/front.webp

The pages are real ones in headless Chromium. Above each page is the command that made it.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import av
from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import Page, sync_playwright

SIZE, BAR, RATE = (1120, 700), 44, 5  # pixels, pixels, frames a second
FONT = "/usr/share/fonts/truetype/dejavu/DejaVuSansMono.ttf"


def framed(image: Image.Image, command: str) -> Image.Image:
    """Return an image below the command that is shown."""
    whole = Image.new("RGB", (SIZE[0], SIZE[1] + BAR), "#16181d")
    text = f"$ {command}"
    ImageDraw.Draw(whole).text((16, 10), text, "#e8e8e8", ImageFont.truetype(FONT, 20))
    whole.paste(image, (0, BAR))
    return whole


def folder(videos: Path, seconds: int) -> Iterator[Image.Image]:
    """Return frames of the first videos of all sub-folders, which play in a grid of 7 x 4."""
    files = sorted(videos.glob("*/*.mp4"), key=lambda path: (path.stem[-2:], path))[:28]
    clips = []
    for file in files:
        with av.open(str(file)) as container:
            clips.append([frame.to_image() for frame in container.decode(video=0)])
    for number in range(seconds * RATE):
        sheet = Image.new("RGB", SIZE, "white")
        for place, clip in enumerate(clips):
            frame = clip[number * 3 % len(clip)].resize((152, 152))
            sheet.paste(frame, (11 + place % 7 * 158, 24 + place // 7 * 166))
        yield sheet


def shot(page: Page) -> Image.Image:
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def training(page: Page, address: str) -> Iterator[Image.Image]:
    """Return frames of the run's page: its top, then its parts."""
    page.goto(address)
    page.wait_for_timeout(2000)
    for title in (None, "What the network sees", "Nearest neighbours", "Map of the features"):
        if title is not None:
            page.get_by_role("link", name=title).first.click()
            page.wait_for_timeout(1500)
        yield from [shot(page)] * (2 * RATE)


def search(page: Page, address: str) -> Iterator[Image.Image]:
    """Return frames of the index page: a click on a video, similar videos, playing."""
    page.goto(address)
    page.get_by_text("Computing the map").wait_for(state="hidden")
    page.wait_for_timeout(3000)
    yield from [shot(page)] * RATE
    page.locator("main img").nth(4).click()
    page.wait_for_timeout(2500)
    for _ in range(3 * RATE):
        yield shot(page)
        page.wait_for_timeout(1000 // RATE)


def main() -> int:
    videos, run, index, out = map(Path, sys.argv[1:5])
    serve = [sys.executable, "-m", "sce_video", "search", "--serve", str(index), "--no-open"]
    frames = [framed(image, "ls VIDEOS") for image in folder(videos, 3)]
    with (
        subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server,
        sync_playwright() as playwright,
    ):
        lines = iter(server.stdout or ())
        address = next(found[0] for line in lines if (found := re.search(r"http://\S+", line)))
        browser = playwright.chromium.launch(
            args=["--no-sandbox"], executable_path="/usr/bin/chromium"
        )
        page = browser.new_page(viewport=dict(width=SIZE[0], height=SIZE[1]))
        for image in training(page, run.resolve().as_uri()):
            frames.append(framed(image, "sce-video pretrain VIDEOS --out RUN"))
        for image in search(page, address):
            frames.append(framed(image, "sce-video search --serve INDEX"))
        browser.close()
        server.terminate()
    small = [frame.resize((840, round(840 * frame.height / frame.width))) for frame in frames]
    options = dict(save_all=True, append_images=small[1:], duration=1000 // RATE, loop=0)
    small[0].save(out, quality=60, method=4, **options)
    print(f"{out}: {len(small)} frames, {out.stat().st_size / 2**20:.2f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
