"""The progress of a training on a pseudo-terminal, and without one."""

from __future__ import annotations

import os
import pty
import re
import sys
import threading
from contextlib import contextmanager

from helpers.training import Recorder, small_config, train
from rich.console import Console

from sce_video.engine.logs import describe_numbers

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"  # the cursor


@contextmanager
def terminal(monkeypatch):
    """sys.stdout is a pseudo-terminal; yields the list of what it has received."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    main, other = pty.openpty()
    received: list[bytes] = []

    def read():
        while True:
            try:
                received.append(os.read(main, 65536))
            except OSError:  # closed
                return

    thread = threading.Thread(target=read)
    thread.start()
    try:
        with open(other, "w") as stream, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            yield received
            assert sys.stdout is stream  # restored
    finally:
        thread.join(10)
        os.close(main)


class Warner(Recorder):
    """Warns in an iteration, and may interrupt."""

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter == 3:
            runner.logger.warning("a file [bold]is damaged[/bold]")
            print("printed by a transform", file=sys.stderr)
        super().after_train_iter(runner, batch_idx, data_batch, outputs)


def visible(text: str) -> str:
    """Text without the sequences that move the cursor and colour."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "")


def test_a_terminal_has_the_bar_and_whole_warnings(videos, tmp_path, monkeypatch):
    stop_after = 5
    with terminal(monkeypatch) as received:
        cfg = small_config(videos, tmp_path)
        runner, _ = train(cfg, stop_after, Warner(stop_after))
        runner.logger.info("afterwards")
    shown = b"".join(received).decode()
    assert shown.count(HIDE) == 1 and shown.index(HIDE) < shown.index(SHOW)
    assert shown.rindex(SHOW) < shown.index("afterwards") < len(shown)
    text = visible(shown)
    assert re.search(r"epoch 1/3 \S+ 1/9, 0:00:\d\d left|epoch 1/3 \S+ 0/9", text)
    assert f"{stop_after - 1}/9" in text
    assert re.search(r"^loss \d+\.\d{3}, \d+ videos/s, data wait \d+ %, rank of h \d", text, re.M)
    assert re.search(r"WARNING - a file \[bold\]is damaged\[/bold\]\n", text)
    assert "\nprinted by a transform\n" in text or "printed by a transform\n" in text
    assert "Epoch(train)" not in text and "Saving checkpoint" in text
    (log,) = tmp_path.glob("*/*.log")
    assert log.read_text().count("Epoch(train)") == stop_after


def test_without_a_terminal_there_are_plain_lines(videos, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    assert Console().is_terminal
    train(small_config(videos, tmp_path, train_cfg__max_epochs=1))
    shown = capsys.readouterr().out
    assert shown.count("Epoch(train)") == 3
    assert HIDE not in shown


def test_numbers_in_a_line():
    numbers = {"loss": 3.4567, "knn_top1": 0.452, "data_wait": 0.1, "lr": 1.0}
    assert describe_numbers(numbers) == "loss 3.457, kNN 45.2 %, data wait 10 %"
    assert describe_numbers({}) == ""
