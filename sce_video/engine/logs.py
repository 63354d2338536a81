"""Logs of a run on a terminal, in files and in trackers.

If a log cannot be written, one warning is printed and the run continues, because its result is the
checkpoints. If a checkpoint cannot be written, the run ends.
"""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mmengine.visualization
from mmengine.config import Config
from mmengine.dist import is_main_process, master_only
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import LogProcessor
from mmengine.visualization.vis_backend import BaseVisBackend, force_init_env

from sce_video.options.training import TRACKERS
from sce_video.registry import HOOKS, LOG_PROCESSORS, VISBACKENDS, VISUALIZERS
from sce_video.utils.errors import UserError
from sce_video.utils.files import check_sqlite_file, write_error
from sce_video.utils.records import at

#: Prefixes of mmengine messages that do not help users and therefore go only to the log file.
_FILE_ONLY = (
    "Exp name:",
    "Distributed training is not used",
    "Checkpoints will be saved to",
    "Hooks will be executed",
    '"FileClient" will be deprecated',
    '"HardDiskBackend" is the alias',
    "Config:",
    "\n------------------------------------------------------------\nSystem environment:",
)


def prepare_handlers(logger: logging.Logger) -> None:
    """Keep details off the screen, and report only once that a handler cannot write.

    The details are the environment, the config, the hook table and similar messages. If the disk is
    full, ``logging`` itself would print a traceback for every message.
    """
    reported: set[logging.Handler] = set()

    def report(handler: logging.Handler, other: Callable, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            other(record)
        elif handler not in reported:
            reported.add(handler)
            text = write_error(getattr(handler, "baseFilename", "the log to the terminal"), error)
            with suppress(OSError):  # stderr may be redirected to the same disk
                print(f"warning: {text}. The run goes on", file=sys.stderr)

    for handler in logger.handlers:
        handler.handleError = partial(report, handler, handler.handleError)  # type: ignore
        if type(handler) is logging.StreamHandler:
            handler.addFilter(_for_the_screen)  # adding it again has no effect


def _for_the_screen(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_FILE_ONLY)


def _no_train_line(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Epoch(train)")


#: Seconds between two redraws. Each redraw blocks training for two milliseconds.
_EVERY = 0.5


@HOOKS.register_module()
class ScreenProgressHook(Hook):
    """Hook that shows two lines at the bottom of a terminal: epoch, time left, loss, kNN and speed.

    All other messages appear above these lines, and the lines of the training log go only to the
    log file. If stdout is not a terminal, nothing changes. The hook shows the numbers that were
    logged last, so it does not read from the device.
    """

    priority = "LOWEST"

    def __init__(self) -> None:
        self._screen: _Screen | None = None

    def before_train(self, runner) -> None:
        plain = os.environ.get("TERM") in (None, "dumb", "unknown")
        if is_main_process() and sys.stdout.isatty() and not plain:
            self._screen = _Screen(runner.logger)
            self._screen.draw(runner, runner.iter)

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        if self._screen is not None and time.monotonic() - self._screen.drawn >= _EVERY:
            self._screen.draw(runner, runner.iter + 1)

    def after_row(self, runner, row: Mapping[str, Any]) -> None:
        if self._screen is not None:
            self._screen.numbers |= dict(row)

    def after_stop(self, runner) -> None:
        """Restore the terminal. This is called however the training ends."""
        if self._screen is not None:
            self._screen.draw(runner, runner.iter)
            self._screen.close()
            self._screen = None


class _Screen:
    """Lines at the bottom of a terminal, above which all handlers of a logger write."""

    def __init__(self, logger: logging.Logger) -> None:
        # Import these here, because a run without a terminal does not need them.
        from rich.console import Console, Group
        from rich.live import Live
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.text import Text

        handlers = (h for h in logger.handlers if type(h) is logging.StreamHandler)
        self._streams = {handler: handler.stream for handler in handlers}
        self._output = sys.stdout, sys.stderr
        columns = TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.fields[left]}")
        self._bar = Progress(*columns)
        self._task = self._bar.add_task("", left="")
        self._text = Text(no_wrap=True, overflow="ellipsis")
        # Do not refresh automatically, because that needs a thread, and a forked loader worker
        # would inherit the thread's locks.
        shown, console = Group(self._bar, self._text), Console(file=sys.stdout)
        self._live = Live(shown, console=console, auto_refresh=False)
        self.numbers: dict[str, Any] = {}
        self._owner = os.getpid()
        self._live.start()
        for handler in self._streams:
            handler.addFilter(_no_train_line)
            handler.setStream(sys.stdout)  # rich's stream, which writes above these lines
        _open_screens.add(self)
        atexit.register(self.close)  # shows the cursor again

    def draw(self, runner: Any, done: int) -> None:
        self.drawn = time.monotonic()
        epoch = f"epoch {min(runner.epoch + 1, runner.max_epochs)}/{runner.max_epochs}"
        total, eta = runner.train_loop.max_iters, runner.message_hub.runtime_info.get("eta")
        left = f"{done}/{total}" + ("" if eta is None else f", {timedelta(seconds=int(eta))} left")
        self._bar.update(self._task, completed=done, total=total, description=epoch, left=left)
        self._text.plain = describe_numbers(self.numbers)
        self._live.refresh()

    def close(self) -> None:
        if self._live.is_started and os.getpid() == self._owner:
            self._live.stop()
            self.restore()

    def restore(self) -> None:
        """Make the logger and Python write directly to the terminal again."""
        _open_screens.discard(self)
        atexit.unregister(self.close)
        sys.stdout, sys.stderr = self._output
        for handler, stream in self._streams.items():
            handler.stream = stream
            handler.removeFilter(_no_train_line)


_open_screens: set[_Screen] = set()


def _leave_in_child() -> None:
    for screen in list(_open_screens):  # a loader worker must not draw
        screen.restore()


os.register_at_fork(after_in_child=_leave_in_child)


def describe_numbers(numbers: Mapping[str, Any]) -> str:
    """Format the numbers that exist: ``loss 3.46, kNN 45.2 %, 24 videos/s, data wait 10 %``."""
    shown = (
        ("loss", "loss {:.3f}", 1),
        ("knn_top1", "kNN {:.1f} %", 100),
        ("videos_per_s", "{:.0f} videos/s", 1),
        ("data_wait", "data wait {:.0f} %", 100),
        ("h_rank", "rank of h {:.1f}", 1),
    )
    return ", ".join(
        text.format(factor * numbers[name]) for name, text, factor in shown if name in numbers
    )


@VISBACKENDS.register_module()
class TensorboardVisBackend(mmengine.visualization.TensorboardVisBackend):
    """Writer of mmengine's event files. The next call raises the error of a failed write."""

    # TensorBoard writes in a thread. Python would print a traceback for an error in that thread.

    def _init_env(self) -> None:
        self._other_hook = threading.excepthook
        threading.excepthook = self._excepthook
        super()._init_env()

    def _excepthook(self, raised: threading.ExceptHookArgs) -> None:
        of_writer = type(raised.thread).__module__.startswith("tensorboard.")
        if not (of_writer and isinstance(raised.exc_value, OSError)):
            self._other_hook(raised)

    def close(self) -> None:
        try:
            super().close()
        finally:
            if threading.excepthook == self._excepthook:
                threading.excepthook = self._other_hook


@VISUALIZERS.register_module()
class Visualizer(mmengine.visualization.Visualizer):
    """Variant of mmengine's visualizer that warns about a backend that cannot write, and drops it.

    An error in the first write, which contains the config, is raised, because nothing has been
    computed yet. No images are drawn, because importing Matplotlib takes half a second.
    """

    def _initialize_fig(self, fig_cfg: dict) -> tuple:
        return None, SimpleNamespace(get_dpi=int), None

    @master_only
    def add_scalar(self, name: str, value: float, step: int = 0) -> None:
        self._call_all(lambda backend: backend.add_scalar(name, value, step))

    @master_only
    def add_scalars(
        self, scalar_dict: dict[str, float], step: int = 0, file_path: str | None = None
    ) -> None:
        self._call_all(lambda backend: backend.add_scalars(scalar_dict, step, file_path))

    def close(self) -> None:
        self._call_all(lambda backend: backend.close())

    def _call_all(self, call: Callable[[BaseVisBackend], None]) -> None:
        for name, backend in list(self._vis_backends.items()):
            try:
                call(backend)
            except OSError as error:
                # Remove the backend before closing it, because closing may write and fail again.
                del self._vis_backends[name]
                with suppress(OSError):
                    backend.close()
                print_log(
                    f"{name} writes nothing more in this run: {error}", "current", logging.WARNING
                )


@LOG_PROCESSORS.register_module()
class MeanLogProcessor(LogProcessor):
    """Log processor that shows the mean of every value over a window of iterations.

    mmengine averages only values whose names match a pattern, so that a method's values would have
    to be listed. Values that are *set* instead of measured are shown as they are: the learning
    rate, and the values that a hook declares with :meth:`show_current`. The logs of validations and
    tests are mmengine's.

    Args:
        window_size: Iterations in the window.
        by_epoch: Same as in mmengine.
        custom_cfg: Same as in mmengine.
        num_digits: Same as in mmengine.
    """

    def __init__(
        self,
        window_size: int = 10,
        by_epoch: bool = True,
        custom_cfg: list[dict] | None = None,
        num_digits: int = 4,
    ) -> None:
        if window_size < 1:
            raise ValueError(f"window_size must be at least 1, got {window_size}")
        super().__init__(window_size, by_epoch, custom_cfg, num_digits)
        self._set_values = {"lr", "base_lr", "memory"}

    def show_current(self, names: Iterable[str]) -> None:
        """Declare values that are set, so that their current value is logged."""
        self._set_values |= set(names)

    def _collect_scalars(
        self, custom_cfg: list[dict], runner, mode: str, reserve_prefix: bool = False
    ) -> dict:
        tag = super()._collect_scalars(custom_cfg, runner, mode, reserve_prefix)
        if mode != "train":
            return tag
        customised = {entry.get("log_name", entry["data_src"]) for entry in custom_cfg}
        for key in tag:
            name = key.removeprefix("train/")
            if name not in customised:
                history = runner.message_hub.get_scalar(f"train/{name}")
                is_set = name in self._set_values
                tag[key] = history.current() if is_set else history.mean(self.window_size)
        return tag


#: Project name in Weights & Biases, and experiment name in MLflow.
PROJECT = "sce_video"


def add_trackers(cfg: Config, names: Sequence[str]) -> None:
    """Change a config so that its run also logs to trackers, with local files in its ``work_dir``.

    Args:
        cfg: Config of the training run, with its ``work_dir``.
        names: Names in :data:`~sce_video.options.training.TRACKERS`.

    Raises:
        ValueError: If a name is unknown, or its package is not installed.
    """
    for name in dict.fromkeys(names):
        if name not in TRACKERS:
            raise ValueError(f"--track must be {' or '.join(TRACKERS)}, got {name!r}")
        backend, package = TRACKERS[name].backend, TRACKERS[name].package
        if importlib.util.find_spec(package) is None:
            raise ValueError(f"--track {name} needs a package. Run pip install {package}")
        visualizer = at(cfg, "visualizer") or {"type": "Visualizer"}
        backends = [b for b in at(visualizer, "vis_backends") or () if b["type"] != backend]
        added = {"type": backend, "run_dir": str(Path(cfg.work_dir).resolve())}
        cfg.visualizer = {**visualizer, "vis_backends": [*backends, added]}


@VISBACKENDS.register_module()
class WandbVisBackend(mmengine.visualization.WandbVisBackend):
    """Variant of mmengine's backend that uses the iteration as axis and does not copy the code.

    With ``WANDB_MODE=offline``, it writes only to the folder, which ``wandb sync`` uploads later.

    Args:
        save_dir: Folder of the log, set by the visualizer.
        run_dir: Work folder. It is named after the run, and its sub-folder ``wandb`` contains local
            files.
    """

    def __init__(self, save_dir: str, run_dir: str) -> None:
        run = {"name": Path(run_dir).name, "group": Path(run_dir).name, "dir": run_dir}
        super().__init__(save_dir, {"project": PROJECT, **run})

    def _init_env(self) -> None:
        import wandb

        # With its default settings, wandb would wrap stdout and stderr.
        self._init_kwargs["settings"] = wandb.Settings(console="off", silent=True)
        try:
            super()._init_env()
        except wandb.errors.Error as error:
            raise UserError(
                f"Weights & Biases does not start: {error} You can also set WANDB_MODE=offline"
            ) from error
        wandb.define_metric("*", step_metric="iter")

    @force_init_env
    def add_config(self, config: Config) -> None:
        self._wandb.config.update(config.to_dict())

    @force_init_env
    def add_scalars(
        self, scalar_dict: dict[str, float], step: int = 0, file_path: str | None = None
    ) -> None:
        self._wandb.log({**scalar_dict, "iter": step})

    def add_scalar(self, name: str, value: float, step: int = 0) -> None:
        self.add_scalars({name: value}, step)

    def close(self) -> None:
        if hasattr(self, "_wandb"):
            self._wandb.finish()


@VISBACKENDS.register_module()
class MLflowVisBackend(mmengine.visualization.MLflowVisBackend):
    """Variant of mmengine's backend with a store in the work folder, which it does not copy.

    ``MLFLOW_TRACKING_URI`` can point to a server instead. The store is ``mlflow.db`` (``mlflow ui
    --backend-store-uri sqlite:///RUN/mlflow.db``). If only mlflow-skinny is installed, which has no
    database, the store is ``mlruns/``.

    Args:
        save_dir: Folder of the log, set by the visualizer.
        run_dir: Work folder, whose name is the name of the run.
    """

    def __init__(self, save_dir: str, run_dir: str) -> None:
        server = os.environ.get("MLFLOW_TRACKING_URI")
        super().__init__(
            save_dir,
            exp_name=PROJECT,
            run_name=Path(run_dir).name,
            tracking_uri=server or local_store(run_dir),
            artifact_location=None if server else Path(run_dir, "mlflow_files").as_uri(),
        )

    def _init_env(self) -> None:
        import mlflow

        self._mlflow = mlflow
        try:
            mlflow.set_tracking_uri(self._tracking_uri)
            if mlflow.get_experiment_by_name(self._exp_name) is None:
                mlflow.create_experiment(self._exp_name, self._artifact_location)
            mlflow.set_experiment(self._exp_name)
            mlflow.start_run(run_name=self._run_name)
        except mlflow.exceptions.MlflowException as error:
            raise UserError(f"MLflow does not start at {self._tracking_uri}: {error}") from error

    @force_init_env
    def add_config(self, config: Config) -> None:
        # Log a file, because some settings exceed the maximum length of MLflow parameters.
        self._mlflow.log_text(config.pretty_text, "config.py")

    @force_init_env
    def add_scalars(
        self, scalar_dict: dict[str, float], step: int = 0, file_path: str | None = None
    ) -> None:
        self._mlflow.log_metrics(scalar_dict, step)

    def close(self) -> None:
        if hasattr(self, "_mlflow"):
            self._mlflow.end_run()


def local_store(run_dir: str) -> str:
    """Return the address of MLflow's store in a work folder, which may be untrusted.

    Raises:
        ValueError: If ``mlflow.db`` is not a database, or its journal names another file.
    """
    if importlib.util.find_spec("sqlalchemy") is not None:
        database = Path(run_dir, "mlflow.db")
        try:
            check_sqlite_file(database)
        except ValueError as error:
            raise ValueError(f"MLflow cannot use {database}: {error}") from error
        return f"sqlite:///{database}"
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return Path(run_dir, "mlruns").as_uri()
