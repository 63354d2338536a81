"""Count the files of the package that a reader of a command must follow.

    python tools/dev/visited_files.py pretrain VIDEOS --out RUN --plan
    python tools/dev/visited_files.py --step configs/sce/sce_r3d18_folder_small.py VIDEOS

A file counts if the command calls one of its functions. Code that runs while a module is imported
does not count, including comprehensions and decorators. The command runs in this process and its
threads, and worker processes are not followed. ``--step`` trains two steps, and counts the files of
the second one.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from inspect import CO_OPTIMIZED
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import sce_video
from sce_video.commands.main import main

_HOOK = "custom_hooks = [dict(type='VisitsHook', priority='VERY_LOW')]\n"
PACKAGE = str(Path(sce_video.__file__).parent)


class Visits:
    """Number of calls by file, counted after :meth:`start`."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._thread = threading.local()  # how many modules the thread is importing

    def start(self) -> None:
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def stop(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(PACKAGE):
            return
        importing = getattr(self._thread, "modules", 0)
        if code.co_name == "<module>":
            self._thread.modules = importing + (1 if event == "call" else -1)
        elif event == "call" and not importing and code.co_flags & CO_OPTIMIZED:  # no class body
            self.calls[code.co_filename[len(PACKAGE) + 1 :]] += 1

    def __str__(self) -> str:
        lines = [f"{calls:8d}  {name}" for name, calls in sorted(self.calls.items())]
        return "\n".join([*lines, f"{len(self.calls)} files"])


def _follow_second_step(visits: Visits) -> None:
    """Make the training loop count the files of its second step, and end after it."""
    from mmengine.hooks import Hook

    from sce_video.registry import HOOKS

    @HOOKS.register_module()
    class VisitsHook(Hook):  # type: ignore[misc]
        """Hook that starts counting before the second step and ends the process after it."""

        def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
            if runner.iter == 1:
                visits.start()

        def after_train_iter(
            self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
        ) -> None:
            if runner.iter == 1:
                visits.stop()
                raise SystemExit(0)


if __name__ == "__main__":
    visits = Visits()
    arguments = sys.argv[1:]
    try:
        if arguments[0] == "--step":
            _follow_second_step(visits)
            recipe, videos = (Path(name).resolve() for name in arguments[1:3])
            with TemporaryDirectory() as folder:
                config = Path(folder, "two_steps.py")
                config.write_text(f"_base_ = {str(recipe)!r}\n{_HOOK}")
                root = f"train_dataloader.dataset.data_root={videos}"
                main(["train", str(config), "--work-dir", folder, "--cfg-options", root])
        else:
            visits.start()
            main(arguments)
    finally:
        visits.stop()
        print(visits, file=sys.stderr)
