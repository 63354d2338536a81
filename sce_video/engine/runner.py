"""mmengine's Runner with atomic checkpoints that are safe to read and resume exactly."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mmengine
import torch
from mmengine.config import Config, ConfigDict
from mmengine.device import get_device
from mmengine.dist import get_rank, is_distributed, master_only
from mmengine.logging import MMLogger, print_log
from mmengine.model import MMDistributedDataParallel, convert_sync_batchnorm
from mmengine.runner import Runner
from mmengine.runner.checkpoint import weights_to_cpu
from mmengine.utils import apply_to
from torch import nn
from torch.utils.data import DataLoader

from sce_video.engine.batch_layout import layout_of, resumed_iteration
from sce_video.engine.checkpoint import (
    describe_checkpoint_file,
    find_checkpoints,
    first_readable,
    has_own_weights,
    load_checkpoint_file,
    pack_message_hub,
    random_states,
    record_selection,
    record_training,
    save_checkpoint_file,
    set_random_states,
    unpack_message_hub,
    weights_sha256,
)
from sce_video.engine.compile import compile_backbones, fold_backbones, guard_small_convolutions
from sce_video.engine.config.check import DEFAULT_HOOKS
from sce_video.engine.config.snapshot import SNAPSHOT, recorded_training
from sce_video.engine.logs import Visualizer, prepare_handlers
from sce_video.engine.weights import check_weights, checkpoint_weights, load_backbone
from sce_video.models.memory_format import move_to_device
from sce_video.models.modules.lora import add_adapters
from sce_video.models.modules.sync_batch_norm import convert_sync_batch_norm
from sce_video.registry import RUNNERS
from sce_video.utils.cores import cores_of_process
from sce_video.utils.distributed import gather_objects, run_on_main_rank, unwrap_model
from sce_video.utils.files import WriteError, check_regular, write_text
from sce_video.utils.private_parts import set_progress
from sce_video.utils.records import at
from sce_video.utils.run_files import RANDOM

#: Values of ``sync_bn``: this package's layer, torch's and mmcv's.
SYNC_BN = ("functional", "torch", "mmcv")


class _FormattedOnce(Config):
    """A config that keeps its formatted text until it changes. mmengine uses it five times."""

    def __init__(self, config: Config) -> None:
        self.__setstate__(config.__getstate__())

    @property
    def pretty_text(self) -> str:
        # Write to __dict__, because assigning an attribute would add a setting to the config.
        texts = self.__dict__.setdefault("_texts", {})
        content = repr(self._cfg_dict)
        if content not in texts:
            texts.clear()
            texts[content] = super().pretty_text
        return texts[content]


@RUNNERS.register_module()
class VideoRunner(Runner):
    """Runner whose resumed runs equal uninterrupted ones.

    It differs from mmengine 0.10.7 in several ways. Checkpoints are written atomically as plain
    data, with the random states of every rank, and read with ``weights_only=True``. SyncBN and
    device ids depend on the device, so that several processes can run on a CPU. ``compile``
    compiles only the backbones. To resume the latest checkpoint, the newest readable file is used.

    Attributes:
        resumed_from: Path of the checkpoint that the training run continues; None for a new run.
    """

    resumed_from: str | None = None
    optim_wrapper: Any
    _has_loaded: bool
    _pretrained: dict | str | None = None
    _resumed_record: dict | None = None

    @classmethod
    def from_cfg(cls, cfg: dict | Config | ConfigDict) -> Runner:
        """Build a runner like mmengine, but format the config only once."""
        return super().from_cfg(_FormattedOnce(cfg) if isinstance(cfg, Config) else cfg)

    @staticmethod
    def build_dataloader(
        dataloader: DataLoader | dict, seed: int | None = None, diff_rank_seed: bool = False
    ) -> DataLoader:
        """Build a data loader like mmengine, with three settings adapted to the machine.

        Memory is pinned if there is a GPU, unless the config sets ``pin_memory`` to False. The
        number of workers is at most the number of cores of this process, and ``persistent_workers``
        is off without workers. A dataset that reads ahead is informed of the next batches. Every
        loader gets its own random generator.
        """
        if isinstance(dataloader, dict):
            defaults = {"pin_memory": True, "num_workers": 0, "persistent_workers": False}
            given = {**defaults, **dataloader}
            wanted, cores = given["num_workers"], cores_of_process()
            if wanted > cores:
                # More workers would compete for the cores, and each of them holds batches in
                # memory.
                print_log(
                    f"{wanted} loader workers are more than the {cores} cores of this process, so "
                    f"it starts {cores}",
                    "current",
                )
            dataloader = {
                **dataloader,
                "pin_memory": given["pin_memory"] and torch.cuda.is_available(),
                "num_workers": min(wanted, cores),
                "persistent_workers": bool(given["persistent_workers"] and wanted),
            }
        loader = Runner.build_dataloader(dataloader, seed, diff_rank_seed)
        if loader.generator is None:
            # Each iterator draws a seed for its workers. If it were drawn from the global
            # generator, which dropout uses, a resumed training run would differ from an
            # uninterrupted one.
            loader.generator = torch.Generator().manual_seed(seed or 0)
        announce = getattr(loader.sampler, "announce_batches", None)
        if announce is not None and getattr(loader.dataset, "reads_ahead", False):
            announce(loader.batch_size, loader.num_workers)
        return loader

    def set_randomness(
        self, seed: int | None, diff_rank_seed: bool = False, deterministic: bool = False
    ) -> None:
        """Set the seed like mmengine, and use deterministic algorithms if they are requested.

        mmengine ends training at an operation without a deterministic algorithm, such as the
        gradient of 3D max pooling on a GPU. Here, torch logs a warning instead.
        """
        if deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
        super().set_randomness(seed, diff_rank_seed, deterministic)
        if deterministic:
            torch.use_deterministic_algorithms(True, warn_only=True)

    def build_logger(self, log_level: int | str = "INFO", log_file: str | None = None) -> MMLogger:
        """Build mmengine's logger. Environment, config and hook table go only to its file.

        Raises:
            IrregularFileError: If the log folder or the log is a link, as in an unpacked folder.
        """
        for path in (self._log_dir, log_file or Path(self._log_dir, f"{self.timestamp}.log")):
            check_regular(path, written=True)
        logger = super().build_logger(log_level, log_file)
        prepare_handlers(logger)
        return logger

    def build_model(self, model: nn.Module | dict) -> nn.Module:
        """Build the model like mmengine, and convert a classifier's scores to float32.

        ``lora=dict(rank=16, alpha=16)`` in the config adds adapters to the backbone.
        """
        built = super().build_model(model)
        if lora := self.cfg.get("lora"):
            layers = add_adapters(built, **lora)
            trained = sum(p.numel() for p in built.backbone.parameters() if p.requires_grad)
            self.logger.info(
                f"LoRA: {layers} layers have adapters, and {trained:,} parameters of the backbone "
                "are trained"
            )
        head = getattr(built, "cls_head", None)
        if isinstance(head, nn.Module):
            head.register_forward_hook(_in_float32)
        return built

    def register_default_hooks(self, hooks: dict | None = None) -> None:
        """Register the hooks by name. None removes any hook, not only one of mmengine's."""
        given = (hooks or {}).items()
        super().register_default_hooks(
            {name: hook for name, hook in given if hook is not None or name in DEFAULT_HOOKS}
        )

    def build_visualizer(self, visualizer: Visualizer | dict | None = None) -> Visualizer:
        """Build the visualizer. The default is this package's visualizer without backends."""
        return super().build_visualizer(visualizer or {"type": "Visualizer"})

    @master_only
    def dump_config(self) -> None:
        """Write the config to the log folder or, when training starts, to the work folder.

        The training loop calls this again after it has checked the settings.
        """
        # mmengine calls this for every runner, but testing must not overwrite the run's own config.
        path = Path(self.log_dir, "config.py")
        if self._has_loaded:
            path = Path(self.work_dir, Path(self.cfg.filename or f"{self.timestamp}.py").name)
        write_text(path, self.cfg.pretty_text)

    def setup_env(self, env_cfg: dict) -> None:
        """Set up the environment like mmengine, but also start a process group on CPUs (gloo)."""
        if self.distributed and not torch.cuda.is_available() and not is_distributed():
            torch.distributed.init_process_group("gloo")
        super().setup_env(env_cfg)

    def wrap_model(self, model_wrapper_cfg: dict | None, model: nn.Module) -> nn.Module:
        """Wrap the model in DistributedDataParallel, and synchronise batch norm if requested.

        Raises:
            ValueError: If ``sync_bn`` is not the name of an implementation.
        """
        sync_bn, on_gpu = self.cfg.get("sync_bn"), torch.cuda.is_available()
        if sync_bn not in (None, *SYNC_BN):
            raise ValueError(f"sync_bn must be one of {', '.join(SYNC_BN)}, got {sync_bn!r:.60}")
        model = move_to_device(model, torch.device(get_device()))
        if not self.distributed or model_wrapper_cfg is not None:
            return super().wrap_model(model_wrapper_cfg, model)
        if sync_bn == "functional":
            model = convert_sync_batch_norm(model)
        elif sync_bn is not None and on_gpu:
            model = convert_sync_batchnorm(model, sync_bn)
        elif sync_bn is not None:
            self.logger.warning(
                f"sync_bn={sync_bn!r} is not available on a CPU, so each process normalises over "
                "its own samples. Use sync_bn='functional' to synchronise them"
            )
        return MMDistributedDataParallel(
            module=model,
            device_ids=[int(os.environ["LOCAL_RANK"])] if on_gpu else None,
            broadcast_buffers=False,
            find_unused_parameters=self.cfg.get("find_unused_parameters", False),
        )

    def _maybe_compile(self, target: str) -> None:
        """Compile the backbones if ``compile`` is True or a dict of torch.compile's arguments.

        With ``conv_2d``, spatial convolutions are computed in 2-D. In bf16 on a CPU, convolutions
        stay in float32 if their input is smaller than their kernel.

        Raises:
            ValueError: If ``compile`` has another type, or torch.compile refuses the arguments.
        """
        model = unwrap_model(self.model)
        if self.cfg.get("conv_2d"):
            fold_backbones(model)
        device = next(model.parameters()).device.type
        if device == "cpu" and getattr(self.optim_wrapper, "dtype", None) == torch.bfloat16:
            guard_small_convolutions(model)
        if options := self.cfg.get("compile"):
            count = compile_backbones(model, options)
            self.logger.info(f"compiled {count} backbones. The first iterations are slow")

    def save_checkpoint(
        self,
        out_dir: str,
        filename: str,
        file_client_args: dict | None = None,
        save_optimizer: bool = True,
        save_param_scheduler: bool = True,
        meta: dict | None = None,
        by_epoch: bool = True,
        backend_args: dict | None = None,
    ) -> None:
        """Write everything that a resumed run needs. All ranks call this, and rank 0 writes.

        Raises:
            ValueError: If a storage backend other than local files is requested.
            WriteError: If writing fails, on all ranks. The message names the newest checkpoint.
        """
        if file_client_args is not None or backend_args is not None:
            raise ValueError(
                "checkpoints are written to local files. Remove backend_args. To copy checkpoints "
                "to an object store, use --mirror"
            )
        self.call_hook("before_checkpoint")
        meta = dict(meta or {})
        # CheckpointHook calls this before the epoch and iteration counters are increased.
        meta.setdefault("epoch", self.epoch + 1 if by_epoch else self.epoch)
        meta.setdefault("iter", self.iter if by_epoch else self.iter + 1)
        selected = record_selection(self, filename)
        # A selected checkpoint is written after validation, when the epoch has already been
        # counted.
        uncounted = not by_epoch and selected is None and self._ends_epoch(meta)
        meta["trained_epochs"] = meta["epoch"] + uncounted
        layout = layout_of(self)
        config, training = record_training(self, self._resumed_record)
        meta |= {
            "seed": self.seed,
            "experiment_name": self.experiment_name,
            "time": time.strftime("%Y%m%d_%H%M%S", time.localtime()),
            "mmengine_version": mmengine.__version__,
            "random_states": gather_objects(random_states()),
            "pretrained": self._pretrained,
            "training": training,
            "selected": selected,
            "batch_layout": None if layout is None else asdict(layout),
            SNAPSHOT: json.dumps(config),
        }
        if classes := at(getattr(self.train_dataloader.dataset, "metainfo", None), "classes"):
            meta["classes"] = list(classes)  # names for a classifier's outputs
        if self.cfg.get("benchmark") is not None:
            meta["benchmark"] = self.cfg.benchmark.to_dict()

        def write() -> None:
            model = unwrap_model(self.model)
            checkpoint: dict[str, Any] = {
                "meta": meta,
                "state_dict": weights_to_cpu(model.state_dict()),
                "message_hub": pack_message_hub(self.message_hub.state_dict()),
            }
            if save_optimizer:
                state = self.optim_wrapper.state_dict()
                checkpoint["optimizer"] = apply_to(state, torch.is_tensor, torch.Tensor.cpu)
            if save_param_scheduler and self.param_schedulers:
                checkpoint["param_schedulers"] = [s.state_dict() for s in self.param_schedulers]
            self.call_hook("before_save_checkpoint", checkpoint=checkpoint)
            training["weights_sha256"] = weights_sha256(checkpoint["state_dict"])
            path = Path(out_dir, filename)
            try:
                save_checkpoint_file(checkpoint, path)
            except WriteError as error:
                last = "there is no earlier checkpoint"
                if found := find_checkpoints(out_dir):
                    last = f"the last checkpoint is {found[0]}"
                raise WriteError(f"{error}; {last}") from error
            self.call_hook("after_checkpoint", path=path)

        run_on_main_rank(write)  # raises a failure of rank 0 on all ranks

    def _ends_epoch(self, meta: dict) -> bool:
        """Return whether a checkpoint that is written by iterations ends its epoch.

        Such a checkpoint is written before the validation, after which mmengine counts the epoch.
        """
        per_epoch = getattr(self.train_loop, "iters_per_epoch", None)
        if per_epoch is None:  # the loop counts iterations only
            return False
        return meta["iter"] >= min((meta["epoch"] + 1) * per_epoch, self.train_loop.max_iters)

    def load_checkpoint(
        self, filename: str, map_location: Any = "cpu", strict: bool = False
    ) -> dict:
        """Load weights from a file (:func:`sce_video.engine.checkpoint.load_checkpoint_file`).

        Raises:
            ValueError: If no weight in the file fits the model, or a weight has a different shape
                or, with ``strict``, is missing or too many.
        """
        # A resumed training run needs the adapters themselves. All other uses need merged weights.
        checkpoint = load_checkpoint_file(filename, map_location, merge_adapters=not strict)
        self.call_hook("after_load_checkpoint", checkpoint=checkpoint)
        model = unwrap_model(self.model)
        weights = checkpoint_weights(checkpoint)
        own = model.state_dict()
        if not set(weights) & set(own):
            raise ValueError(
                f"no weight in {filename} fits {type(model).__name__}: the file has "
                f"{sorted(weights)[:3]}..., but the model has {sorted(own)[:3]}..."
            )
        check_weights(model, weights, str(filename), strict)
        missing, extra = model.load_state_dict(weights, strict=False)
        if missing:
            self.logger.warning(
                f"{filename} lacks {len(missing)} weights of the model: {missing[:5]}"
            )
        if extra:  # such as the heads of a pretraining run whose backbone is used
            parts = ", ".join(sorted({name.split(".")[0] for name in extra}))
            self.logger.info(
                f"{len(extra)} weights in {filename} are left out, because they are not part of "
                f"{type(model).__name__} ({parts})"
            )
        return checkpoint

    def load_or_resume(self) -> None:
        """Load the weights that ``resume``, ``load_from`` and ``pretrained`` request.

        Without ``load_from``, ``resume`` uses the newest readable checkpoint in the work folder.
        ``pretrained`` names the backbone of a new run, and a resumed run ignores it.
        """
        if self._has_loaded:
            return
        path = self._load_from
        if self._resume and path is None:
            path = run_on_main_rank(self._newest_readable_checkpoint)
            if path is None:
                self.logger.info(
                    f"{self.work_dir} contains nothing to resume, so training starts from scratch"
                )
        if path is None:
            self._load_pretrained()
        elif self._resume:
            self.resume(path)
        else:
            whole = self.load_checkpoint(path)
            if self._train_loop is not None:  # When only testing, the evaluation describes it.
                self._pretrained = describe_checkpoint_file(path, whole)
        self._has_loaded = True

    def _load_pretrained(self) -> None:
        """Load the whole backbone from the checkpoint ``pretrained``, if the config has that key.

        Raises:
            ValueError: If the config needs a checkpoint but none is given, or the checkpoint
                contains a different backbone.
        """
        if "pretrained" not in self.cfg:
            return
        path = self.cfg.pretrained
        if path is None:
            raise ValueError(
                f"{self.cfg.filename or 'this config'} starts from a pretrained backbone. Give "
                f"--pretrained CHECKPOINT, or --pretrained {RANDOM} to start from random weights"
            )
        self._pretrained = RANDOM
        if path == RANDOM:
            self.logger.info("the backbone starts from random weights, as requested")
            return
        checkpoint = load_checkpoint_file(path)
        model = unwrap_model(self.model)
        count = load_backbone(model, checkpoint, str(path), allow_identity=True)
        self._pretrained = describe_checkpoint_file(path, checkpoint)
        self.logger.info(f"loaded {count} tensors of the backbone from {path}")

    def _newest_readable_checkpoint(self) -> str | None:
        """Return the checkpoint to resume from; None if there is none.

        Raises:
            ValueError: If there are checkpoints, but all of them are damaged.
        """
        found = find_checkpoints(self.work_dir)
        readable = first_readable(found, self.logger)
        if found and readable is None:
            raise ValueError(
                f"none of the {len(found)} checkpoints in {self.work_dir} can be read (see the "
                "warnings above). To train from scratch, move them away"
            )
        return None if readable is None else str(readable)

    def resume(self, filename: str) -> None:
        """Restore weights, optimiser, counters and random states of a checkpoint.

        Raises:
            ValueError: If the file has no training state, or the weights of a different model.
        """
        # Load strictly, because a run that lost weights of its queue or target network would not be
        # the same run.
        checkpoint = self.load_checkpoint(filename, get_device(), strict=True)
        meta = at(checkpoint, "meta", dict) or {}
        if not {"epoch", "iter"} <= set(meta) or "optimizer" not in checkpoint:
            raise ValueError(
                f"{filename} contains weights but no training state. To start a new training run "
                f"from them, use --cfg-options load_from={filename}"
            )
        self._pretrained = at(meta, "pretrained")
        record = recorded_training(checkpoint) or {}
        earlier_changes = list(at(record, "changed", list) or ())
        if not has_own_weights(checkpoint):
            text = "the weights were replaced after the training had written them"
            self.logger.warning(f"{filename}: {text}")
            earlier_changes.append(text)
        self._resumed_record = {**record, "changed": earlier_changes}
        set_progress(self.train_loop, meta["epoch"], resumed_iteration(self, meta, filename))
        seed, configured = at(meta, "seed"), at(self._randomness_cfg, "seed")
        if seed is not None:
            if configured not in (None, seed):
                self.logger.warning(f"resuming with the checkpoint's seed {seed}, not {configured}")
            self._randomness_cfg["seed"] = seed
            self.set_randomness(**self._randomness_cfg)
            if hasattr(self.train_dataloader.sampler, "seed"):  # it was built with another seed
                self.train_dataloader.sampler.seed = seed
        hub = unpack_message_hub(checkpoint["message_hub"], self.work_dir)
        self.message_hub.load_state_dict(hub)
        self.optim_wrapper = self.build_optim_wrapper(self.optim_wrapper)
        self.optim_wrapper.load_state_dict(checkpoint["optimizer"])
        if self.param_schedulers:
            states = at(checkpoint, "param_schedulers", list) or []
            for scheduler, state in zip(self.param_schedulers, states, strict=True):
                scheduler.load_state_dict(state)
        # Restore these last, because restoring other states may draw random numbers.
        states = at(meta, "random_states", list) or []
        if len(states) == self.world_size:
            set_random_states(states[get_rank()])
        elif states:
            self.logger.warning(
                f"{filename} was written by {len(states)} ranks, but this run has "
                f"{self.world_size}. The ranks' random states, which dropout uses, are not "
                "restored. Samples and augmentations do not depend on them"
            )
        self._has_loaded = True
        self.resumed_from = str(filename)
        self.logger.info(f"resumed {filename} at epoch {self.epoch}, iteration {self.iter}")
        changed = record_training(self, self._resumed_record)[1]["changed"]
        if changed := changed[len(earlier_changes) :]:
            self.logger.warning(
                "the training continues with different settings (now -> before): "
                f"{'; '.join(changed)}"
            )


def _in_float32(_head: nn.Module, _given: Any, scores: Any) -> Any:
    # mmaction2 computes the accuracy with numpy, which has no bfloat16.
    return scores.float() if isinstance(scores, torch.Tensor) else scores
