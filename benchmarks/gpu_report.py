"""Measure everything that needs a GPU in one command, which benchmarks/gpu.sh calls.

    bash benchmarks/gpu.sh [--minutes 11] [--json OUT] [--device cuda|cpu] [--out FOLDER]
        [--videos FOLDER] [--parts PART ...] [--smoke]

These are the parts, the most important first, each in its own process with a share of the time:

    tests       the tests marked ``gpu``, which skip without one (where pytest is installed)
    parity      twenty steps of a small SCE on the device and in fp32 on the CPU, in every
                precision and layout; queue and target; resuming; SyncBN in a group of one process
    step        the training step: speed by setting, share of the measured matrix peak, memory,
                largest batch, time by part, copies and waits of the host; the augmentation
    ranks       two ranks on two GPUs: SyncBN, waits of the host, the step next to one GPU's
    input       samples per second of a core, workers that feed the step
    evaluation  the 30-view test, exact neighbours among a million features, RoIAlign
    real        the quickstart's recipe, and ``sce-video pretrain`` on --videos

A part that exceeds its share is stopped, and its results so far are kept. Time that a part does not
need goes to the parts after it. OUT is written after every new result. The exit status is 1 if a
test or a bound of the parity fails, or a part ends with an error.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from gpu_parts.table import table

from sce_video.utils.files import write_json

REPO = Path(__file__).resolve().parents[1]
#: The parts in order, with their shares of the time.
SHARES = {
    "tests": 0.10,
    "parity": 0.20,
    "step": 0.34,
    "ranks": 0.08,
    "input": 0.06,
    "evaluation": 0.08,
    "real": 0.14,
}
MODULES = {
    "parity": "gpu_parts.parity",
    "step": "gpu_parts.training_step",
    "ranks": "gpu_parts.two_ranks",
    "input": "gpu_parts.input_side",
    "evaluation": "gpu_parts.evaluation",
    "real": "gpu_parts.real_runs",
}
#: If a part's process ends by itself, it is started again and continues with the next measurement.
_STARTS = 3


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpu.sh", description="All that a GPU can tell, in one command."
    )
    parser.add_argument("--minutes", type=float, default=11.0, help="for everything (default: 11)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="default: FOLDER/gpu.json")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", default=REPO / "work_dirs/gpu", help="for all files"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--videos", type=Path, metavar="FOLDER", help="real videos for a last run")
    parser.add_argument("--parts", nargs="+", choices=list(SHARES), default=list(SHARES))
    parser.add_argument("--smoke", action="store_true", help="everything once, very small")
    args = parser.parse_args(argv)
    if not args.minutes > 0:
        parser.error(f"--minutes must be above 0, got {args.minutes}")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU; --device cpu --smoke tries the script without one")
    if args.device == "cpu" and not args.smoke:
        parser.error("on a CPU only --smoke: the sizes are those of a GPU")
    if args.videos is not None and not args.videos.is_dir():
        parser.error(f"--videos {args.videos}: no such folder")
    args.json = args.json or args.out / "gpu.json"
    args.parts.sort(key=list(SHARES).index)  # later parts use the results of earlier ones
    return args


def environment(folder: Path, device: str) -> dict[str, str]:
    """Return the environment of the parts, which cache only in the folder and use no network."""
    caches = ("XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH",
              "MPLCONFIGDIR", "TMPDIR")  # fmt: skip
    found = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1"}
    found.setdefault("OMP_NUM_THREADS", "1")
    for name in caches:
        path = folder / "cache" / name.lower()
        path.mkdir(parents=True, exist_ok=True)
        found[name] = str(path)
    if device == "cpu":
        found["CUDA_VISIBLE_DEVICES"] = ""
    return found


class Report:
    """The results so far, in one file.

    Args:
        args: Arguments of the command line.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.end = time.monotonic() + 60 * args.minutes
        self.folder = args.out.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.environment = environment(self.folder, args.device)
        name = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
        self.content: dict[str, Any] = {
            "device": name,
            "torch": torch.__version__,
            "python": sys.version.split()[0],
            "cores": os.cpu_count(),
            "smoke": args.smoke,
            "minutes": args.minutes,
            "parts": {},
        }

    def run(self) -> int:
        """Run all parts, and return the exit status."""
        todo = list(self.args.parts)
        for number, part in enumerate(todo):
            left = self.end - time.monotonic()
            shares = [SHARES[name] for name in todo[number:]]
            seconds = left * shares[0] / sum(shares)
            if self.args.smoke:  # small, whatever its share
                seconds = left
            self._measure(part, seconds)
        print(f"\n{table(self.content)}")
        print(f"\nall results: {self.args.json}")
        failed = [name for name, part in self.content["parts"].items() if not part["passed"]]
        for name in failed:
            print("\n".join(self.content["parts"][name].get("output", ())))
        if failed:
            print(f"FAILED: {', '.join(failed)}; output in {self.folder}")
        return 1 if failed else 0

    def _measure(self, part: str, seconds: float) -> None:
        print(f"{part}: at most {seconds:.0f} s", flush=True)
        folder = self.folder / part
        folder.mkdir(exist_ok=True)
        (folder / "output.txt").unlink(missing_ok=True)
        self._results = folder / "results.json"
        self._results.unlink(missing_ok=True)
        self.content["parts"][part] = {"passed": True, "results": {}}
        start, limit = time.monotonic(), time.monotonic() + seconds
        status: int | None = 0
        if part == "tests":
            status = self._tests(folder, limit)
        else:
            for _ in range(_STARTS):
                status = self._start(part, folder, limit)
                # After a signal or a missing result, the remaining measurements may still work.
                if status is None or status in (0, 1):
                    break
        entry = self.content["parts"][part]
        entry["seconds"] = round(time.monotonic() - start, 1)
        entry["stopped"] = status is None
        # A part that is stopped has failed only if a bound was exceeded in what it measured.
        exceeded = any(value.get("passed") is False for value in entry["results"].values())
        errors = any(value.get("error") for value in entry["results"].values())
        entry["passed"] = not exceeded and not errors and status in (0, None)
        if not entry["passed"] and status not in (0, 1, None):
            lines = (folder / "output.txt").read_text(errors="replace").strip().splitlines()
            entry["output"] = lines[-8:]
        self._write()

    def _start(self, part: str, folder: Path, limit: float) -> int | None:
        command = [
            *(sys.executable, "-m", MODULES[part]),
            *("--device", self.args.device, "--folder", str(folder)),
            *("--seconds", f"{max(1.0, 0.95 * (limit - time.monotonic())):.1f}"),
            *("--results", str(self._results), "--others", str(self.args.json)),
        ]
        if self.args.smoke:
            command.append("--smoke")
        if self.args.videos is not None:
            command += ["--videos", str(self.args.videos)]
        return self._wait(part, command, folder / "output.txt", limit)

    def _tests(self, folder: Path, limit: float) -> int | None:
        """Run the tests marked ``gpu`` of the files that contain some."""
        if importlib.util.find_spec("pytest") is None:
            self.content["parts"]["tests"]["results"]["left_out"] = {
                "left_out": "pytest is not installed"
            }
            return 0
        files = [
            str(path)
            for path in sorted((REPO / "tests").rglob("test_*.py"))
            if "pytest.mark.gpu" in path.read_text(encoding="utf-8")
        ]
        report = folder / "tests.xml"
        report.unlink(missing_ok=True)
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"),
            *("--basetemp", str(folder / "temporary"), "--junitxml", str(report), *files),
        ]
        status = self._wait("tests", command, folder / "output.txt", limit)
        if report.exists():
            self.content["parts"]["tests"]["results"] = {"gpu": _counts(report)}
        return 0 if status == 5 else status  # 5: no tests

    def _wait(self, part: str, command: list[str], output: Path, limit: float) -> int | None:
        """Return the exit status of a command, or None if it was stopped."""
        with output.open("a") as file:
            process = subprocess.Popen(
                command, cwd=REPO, env=self.environment, stdout=file, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            try:
                while process.poll() is None and time.monotonic() < limit:
                    time.sleep(0.2)
                    self._collect(part)
                stopped = process.poll() is None
            finally:
                _end(process)
        self._collect(part)
        return None if stopped else process.returncode

    def _collect(self, part: str) -> None:
        if part != "tests" and self._results.exists():
            results = json.loads(self._results.read_text())
            if results != self.content["parts"][part]["results"]:
                self.content["parts"][part]["results"] = results
                self._write()

    def _write(self) -> None:
        self.args.json.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.args.json, self.content)


def _end(process: subprocess.Popen) -> None:
    """End a process and the processes that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            continue
        time.sleep(0.1)
    process.wait()


def _counts(report: Path) -> dict[str, Any]:
    """Return the numbers of tests in pytest's report, and the names of failed tests."""
    suite = next(ElementTree.parse(report).getroot().iter("testsuite"))
    numbers = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    failed = [
        f"{case.get('classname')}.{case.get('name')}"
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    return {**numbers, "failed": failed, "passed": not failed}


def main(argv: Sequence[str] | None = None) -> int:
    return Report(parse_args(argv)).run()


if __name__ == "__main__":
    sys.exit(main())
