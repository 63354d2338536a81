# The commands of sce_video, as a user without rights.
#   docker build -t sce-video .
#   docker run --rm --ipc=host -v "$PWD/videos:/videos:ro" -v "$PWD/runs:/runs" \
#       sce-video pretrain /videos --out /runs/first
# Loader workers hand over batches in shared memory, of which a container has 64 MiB by default:
# --ipc=host gives it the machine's, and --shm-size=28g is enough for 8 GPUs with 12 workers each.
# GPUs: add --gpus all. The torch of PyPI for Linux is a CUDA build that runs on CPUs, too; another
# build (smaller, for CPUs only, or for another CUDA) by the address of its index:
#   docker build --build-arg TORCH_INDEX=ADDRESS -t sce-video .
# Not built by the project's tests; its steps are those of an installation into an empty environment.
FROM python:3.11-slim

ARG TORCH_INDEX=
ARG EXTRAS=hf,lance,export,teacher,transfer

# OpenCV loads both at import.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgl1 libglib2.0-0 \
    && rm -rf /var/lib/apt/lists/*

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
WORKDIR /opt/sce_video
COPY requirements/constraints.txt requirements/constraints.txt
RUN pip install -c requirements/constraints.txt setuptools wheel \
    && pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch==' requirements/constraints.txt)"
COPY . .
RUN pip install -c requirements/constraints.txt --no-build-isolation ".[${EXTRAS}]"

# Caches of libraries and relative outputs go where the user may write.
RUN useradd --create-home --uid 1000 user && mkdir /runs && chown user /runs
USER user
WORKDIR /runs
VOLUME /runs
ENTRYPOINT ["sce-video"]
CMD ["--help"]
