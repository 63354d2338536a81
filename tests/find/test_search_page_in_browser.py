"""The search page in headless Chromium."""

import cv2
import pytest
from helpers.browser import browser_page, low_contrast
from helpers.search_page import EVIL, NAMES
from helpers.tiny_encoder import moving_frames

from sce_video.datasets import VideoDataset
from sce_video.datasets.segments import read_segments
from sce_video.find import search_page
from sce_video.find.columns import ColumnSources, read_columns
from sce_video.find.label_list import LabelList

ROWS = sorted(NAMES)


@pytest.fixture
def page(served):
    with browser_page(served.origin) as found:
        found.set_default_timeout(90_000)  # of a busy machine
        found.goto(served.link)
        found.locator(".card").nth(len(NAMES) - 1).wait_for()
        yield found
        assert found.evaluate("document.querySelectorAll('img[src=x]').length") == 0


def names(page):
    return page.locator(".card").evaluate_all("cards => cards.map(c => c.ariaLabel)")


def wait_for_results(page, count):
    page.locator(".similarity").nth(count - 1).wait_for()


def test_grid_search_hover_player_and_map(page, state):
    assert names(page) == ROWS
    assert page.url.endswith("/"), "the token is not left in the address"
    page.wait_for_function("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert page.locator(".card").nth(2).text_content().count(EVIL) == 1

    page.locator(".card .picture").nth(2).click()
    wait_for_results(page, 4)
    assert page.locator("#query-name").text_content() == f"run/{EVIL}"
    shown = [float(t) for t in page.locator(".similarity").all_text_contents()]
    assert shown == sorted(shown, reverse=True) and names(page)[0] != ROWS[2]

    page.locator(".card .picture").first.hover()
    playing = "() => document.querySelector('.card .picture video')?.currentTime > 0.2"
    page.wait_for_function(playing)
    page.locator("#count").hover()
    page.wait_for_function("() => !document.querySelector('.card .picture video')")

    page.locator(".card").first.hover()
    page.locator(".card .play").first.click()
    page.wait_for_function("() => document.querySelector('#player video')?.duration > 0.7")
    assert page.locator("#player-name").text_content() == names(page)[0]
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.locator("#query").wait_for(state="hidden")
    assert names(page) == ROWS

    page.locator('#map[data-drawn="true"]').wait_for()
    assert "WebGL" not in page.locator("#map").inner_text(), "the policy lets WebGL draw"
    page.locator("#map .map-frame").focus()
    page.keyboard.press("ArrowRight")
    page.locator("#map .map-card video").wait_for()
    page.keyboard.press("Enter")
    wait_for_results(page, 4)
    assert page.locator("#map .map-ring").is_visible()


def test_back_forward_and_reload_keep_the_query(page, served):
    def shown():
        return page.locator("#query-name").text_content() if page.is_visible("#query") else None

    def wait_for_query(row):
        page.wait_for_function(
            f"() => document.querySelector('#query-name').textContent === {row!r}"
        )
        wait_for_results(page, 1)

    page.locator(".card .picture").nth(1).click()
    wait_for_query(ROWS[1])
    page.check("#centred")
    page.select_option("#group", label="run")
    page.wait_for_function("() => document.querySelectorAll('.card').length === 2")
    first = names(page)
    page.locator(f'.card[aria-label="{ROWS[3]}"] .picture').click()
    wait_for_query(ROWS[3])
    assert "token" not in page.url and page.url.startswith(f"{served.origin}/#video=")

    page.go_back()
    wait_for_query(ROWS[1])
    page.wait_for_function("() => document.querySelectorAll('.card').length === 2")
    assert names(page) == first
    page.reload()
    wait_for_query(ROWS[1])
    page.wait_for_function("() => document.querySelectorAll('.card').length === 2")
    assert names(page) == first and page.is_checked("#centred")
    assert "mean feature" in page.locator("#query-note").text_content()
    page.go_forward()
    wait_for_query(ROWS[3])


def test_labels_reach_the_list_that_finetuning_reads(page, state, searched):
    def label_of(row):
        return page.locator(".card").nth(row).locator(".chip")

    for row in (0, 1):
        page.locator(".card").nth(row).hover()
        page.locator(".card input").nth(row).click()
    page.fill("#label", "jump up")
    page.keyboard.press("Enter")
    label_of(1).wait_for()
    page.locator(".card").nth(2).focus()
    page.keyboard.press("l")
    page.keyboard.type("<i>run</i>")
    page.keyboard.press("Enter")
    label_of(2).wait_for()
    assert label_of(2).text_content() == "<i>run</i>"
    page.locator(".card").nth(2).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("x")
    page.keyboard.press("2")
    label_of(3).wait_for()

    files = str(state.labels.file), str(state.labels.class_file)
    data = VideoDataset(str(searched.folder / "videos"), files[0], class_file=files[1])
    assert data.metainfo["classes"] == ("jump up", "<i>run</i>")
    found = {data.videos.path(i): label for i, label in enumerate(data.labels.tolist())}
    assert found == {ROWS[0]: 0, ROWS[1]: 0, ROWS[2]: 1, ROWS[3]: 1}

    page.keyboard.press("u")
    label_of(3).wait_for(state="detached")
    assert len(LabelList(state.labels.file).labels) == 3
    page.select_option("#group", label="jump up")
    page.wait_for_function("() => document.querySelectorAll('.card').length === 2")
    page.click("#finetune")
    page.locator("#commands pre").first.wait_for()
    assert page.locator("#commands pre").first.text_content().startswith("sce-video finetune ")


def test_a_query_of_several_parts_is_in_the_address(page, served, state, tmp_path, monkeypatch):
    """Examples from cards, a pasted image, weights and a condition; in a second window, too."""
    frame = cv2.imencode(".png", moving_frames(1, seed=3)[0])[1].tobytes()
    rows = "".join(f'"{path}",{"north" if i % 2 else "south"}\n' for i, path in enumerate(ROWS))
    (tmp_path / "meta.csv").write_text(f"path,camera\n{rows}")
    columns = read_columns(
        state.index.path_array, ColumnSources(state.index.root, tmp_path / "meta.csv")
    )
    monkeypatch.setattr(state, "columns", columns)
    page.reload()
    page.locator(".card").nth(4).wait_for()

    page.locator(".card").nth(0).focus()
    page.keyboard.press("-")  # there is nothing yet that it could be subtracted from
    assert "First choose" in page.locator("#message").text_content()
    page.keyboard.press("+")
    wait_for_results(page, 4)
    before = page.locator(".similarity").all_text_contents()
    page.evaluate(
        """bytes => {
          const data = new DataTransfer();
          data.items.add(new File([new Uint8Array(bytes)], "image.png", { type: "image/png" }));
          const area = document.querySelector("#query");
          area.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true }));
        }""",
        list(frame),
    )
    page.wait_for_function("() => document.querySelectorAll('.example.like').length === 2")
    page.wait_for_function(  # a card that is drawn again would lose the focus
        "before => [...document.querySelectorAll('.similarity')].some((e, i) => "
        "e.textContent !== before[i])",
        arg=before,
    )
    page.locator(f'.card[aria-label="{ROWS[3]}"]').focus()
    page.keyboard.press("-")
    page.locator(".example.unlike").wait_for()
    page.fill("#weight-unlike", "0.5")
    page.keyboard.press("Enter")
    page.wait_for_function("() => location.hash.includes('weights=0.75%2C0.5%2C1')")
    page.locator("#conditions summary").click()
    page.fill("#value", "north")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelectorAll('.card').length === 1")
    assert names(page) == [ROWS[1]], "of the two of the north the other is an example"
    assert page.locator("#where").input_value() == "camera = 'north'"
    heading = page.locator("#query-name").text_content()
    assert heading == f"like 2 examples, not like {ROWS[3]}"

    with page.expect_popup() as popup:
        page.evaluate("void open(location.href)")
    second = popup.value
    second.locator(".similarity").wait_for()
    assert names(second) == [ROWS[1]]
    assert second.locator("#query-name").text_content() == heading
    assert second.locator("#weight-unlike").input_value() == "0.5"
    second.close()
    page.locator("#where-clear").click()
    wait_for_results(page, 3)
    page.locator(".example.unlike button[title=Remove]").click()
    wait_for_results(page, 4)
    page.go_back()
    page.locator(".example.unlike").wait_for()

    page.evaluate(
        """bytes => {
          const data = new DataTransfer();
          data.items.add(new File([new Uint8Array(bytes)], "image.png", { type: "image/png" }));
          dispatchEvent(new ClipboardEvent("paste", { clipboardData: data }));
        }""",
        list(frame),
    )
    page.wait_for_function(
        "() => document.querySelector('#query-name').textContent === 'image.png'"
    )
    wait_for_results(page, 5)


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_of_the_page_can_be_read(served, state, dark):
    """On a phone: the grid, a message, a query of several parts, the panels, the player."""
    state.set_label([0, 1], "good")
    with browser_page(served.origin, 390, 844, dark, touch=True) as page:
        page.goto(served.link)
        page.locator(".card").nth(4).wait_for()
        assert low_contrast(page) == [] and len(low_contrast(page, 22)) > 9, "text is looked at"
        page.locator(".card").nth(0).focus()
        page.keyboard.press("-")
        page.locator("#message.bad").wait_for()
        assert low_contrast(page) == []
        page.keyboard.press("+")
        wait_for_results(page, 4)
        page.locator(f'.card[aria-label="{ROWS[3]}"]').focus()
        page.keyboard.press("-")
        page.locator(".example.unlike").wait_for()
        page.locator(".card").nth(0).focus()
        page.keyboard.press("x")
        for name in ("labels", "map"):
            page.locator(f"#{name}-button").click()
        page.locator('#map[data-drawn="true"]').wait_for()
        page.evaluate("document.querySelectorAll('details').forEach(each => (each.open = true))")
        assert low_contrast(page) == []
        page.locator(".card").nth(0).focus()
        page.keyboard.press("p")
        page.wait_for_function("() => document.querySelector('#player video')?.duration > 0.7")
        page.locator("#segments").wait_for()
        page.keyboard.press("i")
        assert low_contrast(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_more_like_a_label(page, state):
    state.set_label([0, 1], "good")
    state.set_label([2], "bad")
    page.reload()
    page.locator(".more-like").nth(1).wait_for()
    page.locator(".more-like").first.click()
    wait_for_results(page, 2)
    assert set(names(page)) == {ROWS[3], ROWS[4]}
    assert page.locator("#query-name").text_content().startswith("more like the label good")
    assert page.url.endswith("#more=good") and page.is_visible("#weight-unlike")
    page.reload()
    wait_for_results(page, 2)


def test_a_bad_condition_leaves_no_results_of_an_earlier_one(served, state, tmp_path, monkeypatch):
    rows = "".join(f'"{path}",{i}\n' for i, path in enumerate(ROWS))
    (tmp_path / "meta.csv").write_text(f"path,site\n{rows}")
    sources = ColumnSources(state.index.root, tmp_path / "meta.csv")
    monkeypatch.setattr(state, "columns", read_columns(state.index.path_array, sources))

    def condition(page, text, shown):
        page.fill("#where", text)
        page.keyboard.press("Enter")
        page.wait_for_function(
            f"() => document.querySelector('#count').textContent.startsWith({shown!r})"
        )

    with browser_page(served.origin, refused=422) as page:
        page.goto(served.link)
        page.locator(".card").nth(4).wait_for()
        page.locator("#conditions summary").click()
        for query in (False, True):
            condition(page, "site >= 3", "2 videos")
            if query:
                page.locator(".card .picture").first.click()
                page.locator(".similarity").first.wait_for()
            condition(page, "syte >= 3", "No video is shown, because the condition")
            assert names(page) == [] and page.locator("#query-note").text_content() == ""
            assert "no such column: syte" in page.locator("#message").text_content()
            assert page.locator("#where").get_attribute("aria-invalid") == "true"
            condition(page, "site >= 3", "1 video" if query else "2 videos")
            assert page.locator("#where").get_attribute("aria-invalid") is None
            assert not page.is_visible("#message")

        def fail(search):
            raise ValueError("no")

        monkeypatch.setattr(state, "search", fail)
        page.locator(".card .picture").first.click()
        page.wait_for_function(
            "() => document.querySelector('#count').textContent.endsWith('this search failed')"
        )
        assert names(page) == []


def test_the_page_without_its_token_is_a_sentence(served):
    with browser_page(served.origin, refused=403) as page:
        page.goto(served.origin)
        text = page.locator("p").text_content()
        assert text.startswith("This page needs the token of its link. Open the link that")
        assert low_contrast(page) == []


def test_the_page_is_opened_and_reloaded_by_a_file_that_redirects(served, monkeypatch):
    """Cookies for this site alone are sent after a file has led to it, too."""
    opened = []
    monkeypatch.setattr(search_page.webbrowser, "open", opened.append)
    with search_page._opened_in_browser(served.link), browser_page(served.origin) as page:
        page.goto(opened[0])
        page.locator(".card").nth(4).wait_for()
        page.reload()
        page.locator(".card").nth(4).wait_for()
        assert page.url == f"{served.origin}/"


def test_the_paused_moment_is_searched_for_and_in_the_address(page):
    def play(card, second):
        page.locator(".card").nth(card).focus()
        page.keyboard.press("p")
        page.wait_for_function("() => document.querySelector('#player video')?.duration > 0.7")
        page.evaluate(f"""() => {{
          const video = document.querySelector('#player video');
          video.pause();
          video.currentTime = {second};
        }}""")
        page.wait_for_function("() => !document.querySelector('#player video').seeking")
        page.locator("#time-line").focus()

    play(4, 0.3)
    duration = page.evaluate("document.querySelector('#player video').duration")
    page.keyboard.press("s")
    wait_for_results(page, 4)
    heading = page.locator("#query-name").text_content()
    name, _, span = heading.rpartition("@")
    assert name == ROWS[4] and not page.locator("#player").is_visible()
    # The videos are shorter than the two seconds around it.
    assert [float(time) for time in span.split("-")] == [0, pytest.approx(duration, abs=0.011)]
    first = names(page)
    play(0, 0.2)
    page.keyboard.press("i")
    page.evaluate("document.querySelector('#player video').currentTime = 0.5")
    page.wait_for_function("() => !document.querySelector('#player video').seeking")
    page.keyboard.press("o")
    page.locator("#search-moment").click()
    page.wait_for_function(
        "() => document.querySelector('#query-name').textContent.includes('@0.2-0.5')"
    )
    page.go_back()
    page.wait_for_function(
        f"() => document.querySelector('#query-name').textContent === {heading!r}"
    )
    cards = "[...document.querySelectorAll('.card')].map(card => card.ariaLabel)"
    page.wait_for_function(f"first => {cards}.join('|') === first.join('|')", arg=first)
    with page.expect_popup() as popup:
        page.evaluate("void open(location.href)")
    wait_for_results(popup.value, 4)
    assert popup.value.locator("#query-name").text_content() == heading
    popup.value.close()


def test_segments_are_labelled_on_the_time_line(page, state):
    def at(key, second):
        page.evaluate(f"document.querySelector('#player video').currentTime = {second}")
        page.wait_for_function("() => !document.querySelector('#player video').seeking")
        page.keyboard.press(key)

    def saved(count):
        page.wait_for_function(
            f"() => document.querySelectorAll('#segment-list li').length === {count}"
        )
        segments = read_segments(str(state.segments.file))
        return [(s.path, s.start, s.end, s.label) for s in segments]

    page.locator(".card").nth(4).hover()
    page.locator(".card .play").nth(4).click()
    page.wait_for_function("() => document.querySelector('#player video')?.duration > 0.7")
    page.evaluate("document.querySelector('#player video').pause()")
    page.locator("#time-line").focus()
    page.keyboard.press("l")
    page.keyboard.type("jump high")
    page.keyboard.press("Enter")
    page.get_by_text("Mark a start (i) and an end (o) first").wait_for()
    page.locator("#time-line").focus()
    at("i", 0.1)
    at("o", 0.5)
    page.keyboard.press("l")
    page.keyboard.press("Enter")
    assert saved(1) == [("top.mp4", 0.1, 0.5, "jump high")]
    at("i", 0.3)
    at("o", 0.6)
    assert page.locator("#marked").text_content() == "0:00.3 to 0:00.6"
    link = page.locator("#save-clip").get_attribute("href")
    page.keyboard.press("1")  # of the label above; the two overlap
    assert saved(2)[1] == ("top.mp4", 0.3, 0.6, "jump high")
    tops = page.locator(".time-mark").evaluate_all("marks => marks.map(m => m.style.top)")
    assert len(set(tops)) == 2
    clip = page.evaluate(f"fetch('{link}').then(a => a.arrayBuffer()).then(b => b.byteLength)")
    assert clip > 500
    page.keyboard.press("u")
    saved(1)
    page.get_by_label("Remove jump high").click()
    assert saved(0) == []
    page.locator("#time-line").focus()
    at("i", 0.3)
    at("o", 0.3)
    page.get_by_text("Start and end are both at 0:00.3, but a segment needs a length").wait_for()
    assert page.locator("#marked").text_content() == "0:00.3 to …", "the start stays"
    page.locator("#time-line").focus()
    at("o", 0.4)
    assert page.locator("#marked").text_content() == "0:00.3 to 0:00.4"
