"""The check of a config: unknown keys, unknown types and values of the wrong type are refused."""

from __future__ import annotations

import ast
import difflib
import logging
import re
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.logging import print_log

from sce_video.engine.config_keys import (
    explain_unknown,
    known_keys,
    registered,
    top_level_keys,
    walk_dicts,
)
from sce_video.engine.config_steps import config_files, named_path
from sce_video.engine.config_values import unknown_type, wrong_values

# Unused top-level keys at least this similar to one that is read are taken for misspellings.
_MISSPELLED = 0.75
_FORMATS = (".py", ".json", ".yaml", ".yml")


def check_config(cfg: Config) -> None:
    """Refuse keys that nothing reads, types that nothing registers and values of a wrong type.

    A dict with ``type`` may have the arguments of that class or function, with values of the
    annotated types. A top-level key may be one that the runner or a tool reads, or a helper
    variable: a name that begins with ``_`` or is read in one of the config's files. Others that
    resemble a known key, or have the name of a setting further down, are refused; what remains is
    warned of.

    Not checked: dicts without ``type``, except the runner's (data loaders, ``randomness``,
    ``env_cfg``, ``compile``); unknown types where a method of one's own may give them a meaning;
    classes with ``**kwargs``, which take any key; dicts called ``*_cfg`` inside a model
    (``norm_cfg``), whose builders take further keys.

    Raises:
        ValueError: lists every unknown key with its path and the near ones, every unknown type and
            every value of a wrong type.
    """
    faults, wrong = _unknown_top_level_keys(cfg), []
    for path, node in walk_dicts(cfg._cfg_dict, ()):
        known = known_keys(node, path)
        if known is None and node and all(map(_is_step_change, node.keys(), node.values())):
            faults.append(
                f"{'.'.join(path)}: a dict of changes to steps ({', '.join(node)}), but no base "
                "config has a list there"
            )
        if path and (message := unknown_type(node, path)):
            wrong.append(f"{named_path(cfg, (*path, 'type'))}: {message}")
        wrong += [f"{named_path(cfg, (*path, key))}: {m}" for key, m in wrong_values(node)]
        if known is None or known.any_key:
            continue
        for key in node:
            if key not in known.keys:
                name = named_path(cfg, (*path, str(key)))
                faults.append(f"{name}: {explain_unknown(known, key, path, cfg)}")
    if faults:
        raise ValueError("unknown keys in the config:\n  " + "\n  ".join(faults + wrong))
    if wrong:
        raise ValueError("wrong values in the config:\n  " + "\n  ".join(wrong))


def _unknown_top_level_keys(cfg: Config) -> list[str]:
    """A message for each misspelled or misplaced top-level key; warns of others without effect."""
    known = top_level_keys()
    own_file = Path(cfg.filename or "")  # of a stored config the checkpoint, which is no text
    files = config_files(own_file) if own_file.suffix in _FORMATS and own_file.is_file() else []
    texts = [Path(file).read_text(encoding="utf-8") for file in files]
    used = set().union(*map(_names_read, texts))
    own = _names_assigned(texts[0]) - _names_read(texts[0]) if texts else set()
    faults = []
    for key in map(str, cfg.keys()):
        if key in known or key.startswith("_"):
            continue
        near = difflib.get_close_matches(key, sorted(known), 1, _MISSPELLED)
        elsewhere = [
            named_path(cfg, (*path, key))
            for path, node in walk_dicts(cfg._cfg_dict, ())
            if path and key in node
        ]
        if key not in used and (near or elsewhere):
            suggestion = " or ".join(near or elsewhere[:3])
            faults.append(f"{key}: no setting has this name; did you mean {suggestion}?")
        elif key in own:
            print_log(
                f"{cfg.filename}: {key!r} has no effect: no setting has this name and the file "
                "does not use it (settings of a base config made from a variable of the same name "
                "do not change with it; a leading underscore silences this)",
                logger="current",
                level=logging.WARNING,
            )
    return faults


def _names_read(text: str) -> set[str]:
    """Variables that a config file reads: by name, as ``_base_.name`` or ``{{_base_.name}}``."""
    names = set(re.findall(r"\b_base_\.(\w+)", text))
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except SyntaxError:  # JSON, YAML, or mmengine's {{...}} outside of text
        return names
    return names | {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


def _names_assigned(text: str) -> set[str]:
    """Variables that a Python config file sets at its top level."""
    try:
        statements = ast.parse(text).body
    except SyntaxError:
        return set()
    targets = [t for s in statements if isinstance(s, ast.Assign) for t in s.targets]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _is_step_change(key: Any, value: Any) -> bool:
    """Whether an entry of a dict looks like ``RandomClips=dict(num_frames=16)``."""
    is_change = isinstance(value, dict) and "type" not in value
    return is_change and str(key)[:1].isupper() and bool(registered(key))
