"""The launch scripts: what they hand to Python and srun, and that torchrun understands it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
SCRIPTS = ["dist_train.sh", "dist_test.sh", "slurm_train.sh", "slurm_sweep.sh"]

# Writes its arguments, one a line, and the variables that matter. Asked for the CPUs that a config
# needs, it says 13.
RECORDER = """#!/bin/bash
[ "$1" != -c ] || { echo cpus 13; exit; }
{
    printf '%s\\n' "$0" "$@"
    env | grep -E '^(NNODES|NODE_RANK|MASTER_ADDR|PORT|PYTHONPATH)=' || true
} >"$RECORD"
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with blanks in its path, the scripts, and a python3 of PATH that records."""
    root = tmp_path / "a repository"
    (root / "tools").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    for name in SCRIPTS:
        shutil.copy(TOOLS / name, root / "tools" / name)
    _executable(tmp_path / "bin/python3", RECORDER)
    return root


def _executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def _run(root: Path, script: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {
        "PATH": f"{root.parent / 'bin'}:/usr/bin:/bin",
        "HOME": str(root.parent),
        "RECORD": str(root.parent / "record"),
    }
    return subprocess.run(
        ["bash", str(root / "tools" / script), *args],
        env={**kept, **env},
        cwd=root.parent,  # not the repository
        capture_output=True,
        text=True,
        timeout=60,
    )


def _recorded(root: Path, script: str, *args: str, **env: str) -> list[str]:
    """What a script that succeeds hands on."""
    done = _run(root, script, *args, **env)
    assert done.returncode == 0, done.stderr
    return (root.parent / "record").read_text().splitlines()


def test_train_by_default_is_one_machine(root):
    words = ["configs/a b.py", "4", "--resume", "--cfg-options", "a.b=[1, 2]", "c=$HOME *"]
    record = _recorded(root, "dist_train.sh", *words)
    assert record[0] == str(root.parent / "bin/python3")
    expected = "-m torch.distributed.run --nnodes=1 --node_rank=0 --master_addr=127.0.0.1 "
    expected += "--master_port=29500 --nproc_per_node=4"
    assert record[1:8] == expected.split()
    assert record[8:12] == [str(root / "tools/train.py"), words[0], "--launcher", "pytorch"]
    assert record[12:16] == words[2:]
    assert f"PYTHONPATH={root}" in record


def test_train_on_several_machines_with_the_repositorys_python(root):
    _executable(root / ".venv/bin/python", RECORDER)
    several = dict(NNODES="2", NODE_RANK="1", MASTER_ADDR="10.0.0.1", PORT="1234")
    record = _recorded(root, "dist_train.sh", "c.py", "8", **several, PYTHONPATH="/elsewhere")
    assert record[0] == str(root / ".venv/bin/python")
    expected = "--nnodes=2 --node_rank=1 --master_addr=10.0.0.1 --master_port=1234"
    assert record[3:8] == [*expected.split(), "--nproc_per_node=8"]
    assert f"PYTHONPATH={root}:/elsewhere" in record


@pytest.mark.parametrize(
    ("script", "words", "env", "complaint"),
    [
        ("dist_train.sh", "c.py --resume", {}, "got '--resume'"),
        ("dist_train.sh", "c.py 0", {}, "got '0'"),
        ("dist_test.sh", "c.py 2 x.pth", {}, "got 'x.pth'"),
        ("slurm_train.sh", "part job c.py", {"GPUS": "many"}, "got 'many'"),
        ("slurm_train.sh", "part job c.py", {"GPUS": "12", "GPUS_PER_NODE": "8"}, "multiple"),
    ],
)
def test_wrong_arguments_get_the_usage(root, script, words, env, complaint):
    _executable(root.parent / "bin/srun", RECORDER)
    done = _run(root, script, *words.split(), **env)
    assert done.returncode == 2 and f"Usage: bash tools/{script}" in done.stderr
    assert complaint in done.stderr and not (root.parent / "record").exists()


def test_slurm_asks_for_machines(root):
    _executable(root.parent / "bin/srun", RECORDER)
    record = _recorded(
        root, "slurm_train.sh", "a part", "a job", "c.py", GPUS="16", CPUS_PER_TASK="5"
    )
    machines = "--nodes=2 --ntasks=2 --ntasks-per-node=1 --gres=gpu:8 --cpus-per-task=40"
    assert record[1 : record.index("bash")] == [
        *("--partition=a part", "--job-name=a job", *machines.split(), "--kill-on-bad-exit=1")
    ]
    record = _recorded(
        root, "slurm_train.sh", "p", "j", "c.py", GPUS="2", SRUN_ARGS="--time=1:00 -x a,b"
    )
    machines = "--nodes=1 --ntasks=1 --ntasks-per-node=1 --gres=gpu:2 --cpus-per-task=26"
    rest = "--kill-on-bad-exit=1 --time=1:00 -x a,b"
    assert record[3 : record.index("bash")] == [*machines.split(), *rest.split()]


@pytest.mark.parametrize(
    ("config", "cpus"),
    [("sce/sce_r3d50_8xb64-8x224-200e_k400.py", 8 * 13), ("sce/sce_r3d18_folder.py", 8 * 5)],
)
def test_slurm_asks_for_the_loader_workers_of_the_recipe(root, config, cpus):
    """And for a core of the training process, for each GPU."""
    _executable(root.parent / "bin/srun", RECORDER)
    _executable(root.parent / "bin/python3", f'#!/bin/bash\nexec "{sys.executable}" "$@"\n')
    words = ("p", "j", str(TOOLS.parent / "configs" / config))
    record = _recorded(root, "slurm_train.sh", *words, PYTHONPATH=str(TOOLS.parent))
    assert f"--cpus-per-task={cpus}" in record
    done = _run(root, "slurm_train.sh", "p", "j", "none.py", PYTHONPATH=str(TOOLS.parent))
    assert done.returncode == 2 and "cannot read none.py here. Set CPUS_PER_TASK" in done.stderr


def test_restarts_use_a_rendezvous_that_can_start_again(root):
    env = dict(MAX_RESTARTS="3", PORT="7", STOP_SECONDS="300")
    record = _recorded(root, "dist_train.sh", "c.py", "8", **env)
    nnodes, backend, endpoint, run, *rest = record[3:11]
    expected = "--nnodes=1 --rdzv_backend=c10d --rdzv_endpoint=127.0.0.1:7"
    assert [nnodes, backend, endpoint] == expected.split()
    assert re.fullmatch(r"--rdzv_id=\S+\.\d+", run)
    options = "--local_addr=127.0.0.1 --max_restarts=3 --shutdown_timeout=300"
    signals = "--signals_to_handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
    assert rest == [*options.split(), signals]
    several = dict(NNODES="2", MAX_RESTARTS="3", MASTER_ADDR="a")
    refused = _run(root, "dist_train.sh", "c.py", "8", **several)
    assert refused.returncode == 2 and "needs RUN_ID" in refused.stderr
    for more, run in (({"RUN_ID": "x"}, "x"), ({"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "1"}, "5.1")):
        record = _recorded(root, "dist_train.sh", "c.py", "8", **several, **more)
        expected = f"--rdzv_endpoint=a:29500 --rdzv_id={run} --max_restarts=3"
        assert record[5:8] == expected.split()


# Like sbatch and srun: the first keeps its arguments and runs the script of its input, as the job
# would; the second keeps its own.
SBATCH = """#!/bin/bash
printf '%s\\n' "$@" >"$RECORD.sbatch"
export SLURM_JOB_ID=7
bash /dev/stdin
"""
SRUN = """#!/bin/bash
printf '%s\\n' "$@" "STOP_SECONDS=$STOP_SECONDS" "MAX_RESTARTS=$MAX_RESTARTS" >"$RECORD"
"""


def test_a_job_that_is_requeued_is_submitted(root):
    _executable(root.parent / "bin/sbatch", SBATCH)
    _executable(root.parent / "bin/srun", SRUN)
    env = dict(GPUS="16", REQUEUE="300", MAX_RESTARTS="2", SBATCH_ARGS="--time=24:00:00 -q x")
    record = _recorded(
        root, "slurm_train.sh", "a part", "a job", "my c.py", "--seed", "1 $2", **env
    )
    machines = "--nodes=2 --ntasks=2 --ntasks-per-node=1 --gres=gpu:8 --cpus-per-task=104".split()
    rest = "--requeue --open-mode=append --signal=USR1@300 --time=24:00:00 -q x".split()
    submitted = (root.parent / "record.sbatch").read_text().splitlines()
    assert submitted == ["--partition=a part", "--job-name=a job", *machines, *rest]
    assert record[:8] == [*machines, "--kill-on-bad-exit=1", "bash", "-c"]
    script = [str(root / "tools/dist_train.sh"), "my c.py", "8", "--seed", "1 $2"]
    assert record[-8:] == ["slurm_train", *script, "STOP_SECONDS=300", "MAX_RESTARTS=2"]
    assert 'mapfile -t hosts < <(scontrol show hostnames "$SLURM_STEP_NODELIST")' in record


@pytest.mark.parametrize(("port", "expected"), [(None, "20042"), ("777", "777")])
def test_slurm_starts_each_machine_with_its_rank(root, port, expected):
    """srun here runs the command at once, as the second machine of the job would."""
    srun = """#!/bin/bash
while [ "$1" != bash ]; do shift; done
export SLURM_STEP_NODELIST='node[3-4]' SLURM_STEP_NUM_NODES=2 SLURM_PROCID=1 SLURM_JOB_ID=40042
exec "$@"
"""
    scontrol = """#!/bin/bash
[ "$*" = 'show hostnames node[3-4]' ] && printf 'node3\\nnode4\\n'
"""
    _executable(root.parent / "bin/srun", srun)
    _executable(root.parent / "bin/scontrol", scontrol)
    env = {"GPUS": "16"} | ({"PORT": port} if port else {})
    words = ["part", "job", "my config.py", "--seed", "1 2"]
    machine = "--nnodes=2 --node_rank=1 --master_addr=node3".split()
    assert _recorded(root, "slurm_train.sh", *words, **env)[3:14] == [
        *(*machine, f"--master_port={expected}", "--nproc_per_node=8"),
        *(str(root / "tools/train.py"), "my config.py"),
        *("--launcher", "pytorch", "--seed", "1 2"),
    ]


SWEEP = ["configs/a sweep.py", "--out", "work dirs", "--nproc", "8"]


def _array(task: int, least: int, most: int, count: int) -> dict[str, str]:
    """The variables that Slurm gives to a task of an array."""
    values = {"ID": task, "MIN": least, "MAX": most, "COUNT": count}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in values.items()}


@pytest.mark.parametrize(
    ("env", "shard"),
    [
        (_array(1, 1, 24, 24), "1/24"),
        (_array(24, 1, 24, 24), "24/24"),  # --array=1-24%4 has the same variables
        (_array(7, 3, 7, 2) | {"SWEEP_SHARDS": "24"}, "7/24"),  # --array=3,7
    ],
)
def test_a_task_of_an_array_does_its_shard(root, tmp_path, env, shard):
    """Slurm runs a copy of the script; the repository is where the job was submitted."""
    spool = tmp_path / "spool/tools"
    spool.mkdir(parents=True)
    shutil.copy(root / "tools/slurm_sweep.sh", spool)
    env = {**env, "SLURM_SUBMIT_DIR": str(root)}
    done = _run(spool.parent, "slurm_sweep.sh", *SWEEP, **env, PATH=f"{tmp_path}/bin:/usr/bin:/bin",
                RECORD=str(tmp_path / "record"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    *words, path = (tmp_path / "record").read_text().splitlines()
    python = str(tmp_path / "bin/python3")
    assert words == [python, "-m", "sce_video", "sweep", *SWEEP, "--shard", shard]
    assert path == f"PYTHONPATH={root}"


@pytest.mark.parametrize(
    ("env", "complaint"),
    [
        ({}, "not a task of a job array"),
        (_array(3, 1, 23, 12), "got 12 tasks from 1 to 23"),  # --array=1-23:2
        (_array(7, 1, 7, 7) | {"SWEEP_SHARDS": "6"}, "task 7 of SWEEP_SHARDS=6"),
        (_array(0, 0, 7, 8) | {"SWEEP_SHARDS": "8"}, "TASK_ID must be a number above 0"),
    ],
)
def test_other_arrays_are_refused(root, env, complaint):
    done = _run(root, "slurm_sweep.sh", *SWEEP, **env, SLURM_SUBMIT_DIR=str(root))
    assert done.returncode == 2
    assert "Usage: sbatch --array=1-N" in done.stderr and complaint in done.stderr
    assert not (root.parent / "record").exists()
