"""Locks of output folders."""

from __future__ import annotations

import pytest

from sce_video.data_tools.repack import lock
from sce_video.data_tools.repack.lock import run_lock


def test_locks_of_another_user_are_seen(tmp_path, monkeypatch):
    def may_not_write(path, mode="r"):
        if mode != "r":
            raise PermissionError(path)
        return open(path, mode)

    with run_lock(tmp_path, "", 2):
        pass
    monkeypatch.setattr(lock, "open", may_not_write, raising=False)
    with run_lock(tmp_path, "", 2):
        monkeypatch.undo()
        with pytest.raises(ValueError, match="another run"), run_lock(tmp_path, "list.", 2):
            pass
