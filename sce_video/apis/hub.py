"""Networks in the Hugging Face hub, by huggingface_hub's own mixin.

Only this module needs ``pip install sce-video[hf]``: folders, and names of the hub in
:func:`~sce_video.apis.pretrained.from_pretrained`, do without the mixin.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sce_video.apis.pretrained import (
    Network,
    load_network,
    network_config,
    pretrained_folder,
    write_network,
)
from sce_video.utils.errors import MissingPackageError

try:
    from huggingface_hub import ModelCard, ModelHubMixin
except ImportError as error:
    raise MissingPackageError("the hub needs huggingface_hub: pip install sce-video[hf]") from error

_CARD = """---
{{ card_data }}
---

# A video network of sce_video

{{ facts }}

```python
from sce_video.apis import embed
from sce_video.apis.pretrained import from_pretrained

network = from_pretrained("user/name")  # of this repository
features = embed(network, "video.mp4")
```
"""


class HubNetwork(
    ModelHubMixin,
    library_name="sce_video",
    tags=["video", "self-supervised"],
    model_card_template=_CARD,
):
    """A network that goes to the hub and comes from there.

    ``HubNetwork(network).push_to_hub("user/name")`` and ``HubNetwork.from_pretrained("user/name")``
    are the mixin's, with its arguments; errors as of
    :func:`~sce_video.apis.pretrained.from_pretrained`; ``save_pretrained`` writes a local folder as
    :func:`~sce_video.apis.pretrained.save_pretrained`, and a model card beside it.

    Args:
        network: From :func:`~sce_video.apis.pretrained.load_network`, or any other loader.

    Attributes:
        network: The network.
    """

    def __init__(self, network: Network) -> None:
        self.network = network

    def _save_pretrained(self, save_directory: Path) -> None:
        write_network(self.network, save_directory)

    @classmethod
    def _from_pretrained(  # type: ignore[override]  # no sink for unknown arguments
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        device: str | None = None,
    ) -> HubNetwork:
        """The network of a folder or a repository, on a device as ``load_model`` takes it."""
        download = {
            "cache_dir": cache_dir,
            "force_download": force_download,
            "local_files_only": local_files_only,
            "token": token,
        }
        folder = pretrained_folder(model_id, revision, download)
        return cls(load_network(folder, device=device))

    def generate_model_card(self) -> ModelCard:
        """The page of the repository: input, size of the features, provenance."""
        return ModelCard.from_template(
            card_data=self._hub_mixin_info.model_card_data,
            template_str=self._hub_mixin_info.model_card_template,
            facts=_facts(network_config(self.network)),
        )


def _facts(config: dict[str, Any]) -> str:
    """What ``config.json`` says, as a Markdown list."""
    model, provenance, classifier = config["model"], config["provenance"], config["classifier"]
    crop = model["crop_size"]
    facts = {
        "backbone": model["backbone"]["type"],
        "clip": f"{model['num_frames']} frames of {model['clip_duration']:g} s, {crop} x {crop}",
        "features": config["feature_size"],
        "classes": None if classifier is None else classifier["num_classes"],
        "checkpoint": provenance.get("checkpoint"),
        "sha256": provenance.get("sha256"),
        "sce_video": provenance["software"]["sce_video"],
    }
    return "\n".join(f"- {name}: {value}" for name, value in facts.items() if value is not None)
