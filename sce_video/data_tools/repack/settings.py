"""Settings that determine the content of a repacked file, and options of a run that do not."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from sce_video.datasets.decode_limits import MAX_PIXELS
from sce_video.utils.shard import Shard

PRESETS = (
    "ultrafast", "superfast", "veryfast", "faster", "fast", "medium", "slow", "slower", "veryslow",
)  # fmt: skip
#: Tunings of x264. psnr (no psychovisual optimisation, no adaptive quantisation) saves a seventh of
#: the bytes at the same PSNR; fastdecode (no CABAC, no deblocking) halves the decoding time.
TUNES = ("psnr", "ssim", "film", "animation", "grain", "stillimage", "fastdecode")
#: Range that ``crf=None`` searches. Below 18 no gain is visible in a training crop.
CRF_RANGE = (18.0, 34.0)
#: x264 accepts one of these; of several it drops all but one with a warning only.
_ONE_TUNE = frozenset(TUNES) - {"fastdecode"}
_MAX_TIMEOUT = 1e6  # seconds, which timers of all systems accept
_VERSION = 1  # of the way files are encoded; a new version repacks all files again


@dataclass(frozen=True)
class Settings:
    """Settings that, together with the source, determine an output.

    Attributes:
        short_side: Pixels of the shorter side; None keeps the size. Even.
        enlarge: Also scale up smaller videos.
        keyint: Every ``keyint``-th frame is a key frame, beginning with the first.
        crf: x264's quality from 0 (best) to 51. None: for each file the highest in
            :data:`CRF_RANGE`, in steps of a quarter, that reaches ``psnr``.
        psnr: dB that luma and all planes should reach if ``crf`` is None.
        preset: x264's preset: encoding speed against file size.
        tune: x264's tunings, separated by commas; empty for none.
    """

    short_side: int | None = 256
    enlarge: bool = False
    keyint: int = 1
    crf: float | None = None
    psnr: float = 36.0
    preset: str = "medium"
    tune: str = "psnr,fastdecode"

    def __post_init__(self) -> None:
        if self.short_side is not None and (self.short_side < 16 or self.short_side % 2):
            raise ValueError(f"short_side must be an even number from 16 on, got {self.short_side}")
        if self.enlarge and self.short_side is None:
            raise ValueError("enlarge needs a short_side to enlarge to")
        if self.keyint < 1:
            raise ValueError(f"keyint must be at least 1, got {self.keyint}")
        if self.crf is not None and not 0 <= self.crf <= 51:
            raise ValueError(f"crf must lie in [0, 51], got {self.crf:g}")
        if not 10 <= self.psnr <= 60:
            raise ValueError(f"psnr must lie in [10, 60] dB, got {self.psnr:g}")
        if self.preset not in PRESETS:
            raise ValueError(f"unknown preset {self.preset!r}: choose {', '.join(PRESETS)}")
        unknown = [name for name in self.tune.split(",") if name and name not in TUNES]
        if unknown:
            raise ValueError(f"unknown tune {unknown[0]!r}: choose {', '.join(TUNES)}")
        alone = [name for name in dict.fromkeys(self.tune.split(",")) if name in _ONE_TUNE]
        if len(alone) > 1:
            raise ValueError(
                f"tune {alone[0]!r} and {alone[1]!r} exclude each other: choose one of them"
            )

    def as_dict(self) -> dict[str, Any]:
        """The settings as JSON values; outputs with equal ones need not be repacked again."""
        values = asdict(self)
        if self.crf is not None:
            del values["psnr"]  # has no effect then
        return {"version": _VERSION, **values}

    def target_size(self, height: int, width: int) -> tuple[int, int]:
        """(H, W) of the output for an upright source of H x W; both even, at least 2.

        A side that is odd and not scaled loses its last row or column of pixels.
        """
        short = min(height, width)
        if self.short_side is None or short == self.short_side:
            scaled = False
        else:
            scaled = short > self.short_side or self.enlarge
        if not scaled:
            return max(2, height // 2 * 2), max(2, width // 2 * 2)
        assert self.short_side is not None
        factor = self.short_side / short
        # The shorter side exactly, the longer one to the nearest even number.
        sides = (
            self.short_side if side == short else max(2, 2 * round(side * factor / 2))
            for side in (height, width)
        )
        return next(sides), next(sides)


@dataclass(frozen=True)
class Options:
    """How a run works; none of this changes the content of a good output.

    Attributes:
        workers: Number of processes; None for all cores, of the cluster with ``ray``.
        threads: Threads of the encoder in each process.
        timeout: Seconds a file may take.
        min_psnr: An output with fewer dB fails.
        max_pixels: A file with larger frames (height x width) fails.
        shard: Part of the files to repack.
        force: Repack all files again and replace other files at their paths.
        ray: Address of a Ray cluster to run on; None for this machine.
    """

    workers: int | None = 1
    threads: int = 1
    timeout: float = 1800.0
    min_psnr: float = 30.0
    max_pixels: int = MAX_PIXELS
    shard: Shard = field(default_factory=Shard)
    force: bool = False
    ray: str | None = None

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ValueError(f"threads must be at least 1, got {self.threads}")
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")
        if not 0 < self.timeout <= _MAX_TIMEOUT:
            raise ValueError(
                f"timeout must be seconds above 0, at most {_MAX_TIMEOUT:,.0f}, got {self.timeout}"
            )
        if not 0 <= self.min_psnr <= 100:
            raise ValueError(f"min_psnr must lie in [0, 100] dB, got {self.min_psnr}")
        if self.max_pixels < 1:
            raise ValueError(f"max_pixels must be at least 1, got {self.max_pixels}")
