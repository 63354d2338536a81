"""Shared parts of benchmarks/gpu.sh: options, a results file that grows, and remaining time."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.logging import MMLogger
from mmengine.registry import init_default_scope

import sce_video.engine  # noqa: F401  registers optimisers and hooks
from sce_video.utils.files import write_json

_RUNNING = "the process ended in it"


class Part:
    """One part, whose measurements are written to its file by name after each of them.

    If a measurement ends the process, the part can be started again. Finished measurements are not
    repeated, and the one that ended the process counts as failed.

    Args:
        name: Name of the part.
        argv: Command line: ``--device``, ``--seconds``, ``--folder``, ``--results``, ``--smoke``,
            ``--videos``.
    """

    def __init__(self, name: str, argv: Sequence[str] | None = None) -> None:
        parser = argparse.ArgumentParser(description=f"{name}, a part of benchmarks/gpu.sh")
        parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
        parser.add_argument("--seconds", type=float, required=True, help="time for the part")
        parser.add_argument("--folder", type=Path, required=True, help="for its files")
        parser.add_argument("--results", type=Path, required=True, help="JSON of this part")
        parser.add_argument("--others", type=Path, help="JSON of the parts before")
        parser.add_argument("--smoke", action="store_true")
        parser.add_argument("--videos", type=Path, help="folder of real videos")
        args = parser.parse_args(argv)
        self.device, self.smoke = args.device, args.smoke
        self.folder, self.videos = args.folder, args.videos
        self.budget = args.seconds
        self.end = time.monotonic() + args.seconds
        self._path = args.results
        self._others = args.others
        self.found: dict[str, Any] = (
            json.loads(self._path.read_text()) if self._path.exists() else {}
        )
        MMLogger.get_instance("gpu", log_level=logging.WARNING)  # no log line per weight
        init_default_scope("sce_video")

    @property
    def left(self) -> float:
        """Return the remaining seconds."""
        return self.end - time.monotonic()

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    def others(self) -> dict[str, Any]:
        """Return the results of the parts before this one, by part."""
        if self._others is None or not self._others.exists():
            return {}
        return json.loads(self._others.read_text()).get("parts", {})

    def run(self, name: str, measure: Callable[[], Any], needs: float = 0.0) -> Any:
        """Measure, keep the result, and return it, or None if there is none.

        Args:
            name: Name of the result.
            measure: Function that returns plain data. If it raises an error, the error is the
                result.
            needs: Minimum number of seconds. If fewer are left, the measurement is left out.
        """
        if name in self.found:
            if self.found[name] == {"error": None}:
                self.found[name] = {"error": _RUNNING}
                self._write()
            return None if "error" in self.found[name] else self.found[name]
        if self.left < needs:
            self.found[name] = {"left_out": f"{self.left:.0f} s left"}
            self._write()
            return None
        self.found[name] = {"error": None}
        self._write()
        start = time.monotonic()
        try:
            result = measure()
        except Exception as error:
            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {(str(error) or '-').splitlines()[0]}"}
            failed = True
        else:
            failed = False
        self.found[name] = {**result, "took_s": round(time.monotonic() - start, 2)}
        self._write()
        self._free()
        print(f"  {name}: {'failed' if failed else 'done'}, {self.found[name]['took_s']} s")
        return None if failed else self.found[name]

    def leave_out(self, name: str, why: str) -> None:
        """Record why something is not measured."""
        self.found.setdefault(name, {"left_out": why})
        self._write()

    def synchronize(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def _write(self) -> None:
        write_json(self._path, self.found)

    def _free(self) -> None:
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
