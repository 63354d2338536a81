"""Upload of networks to the Hugging Face hub and download from it, with the hub's own mixin."""

from __future__ import annotations

from pathlib import Path

from sce_video.interop.pretrained import (
    Network,
    load_network,
    model_card,
    pretrained_folder,
    write_network,
)
from sce_video.utils.errors import MissingPackageError

try:
    from huggingface_hub import ModelCard, ModelHubMixin
except ImportError as error:
    raise MissingPackageError(
        "the hub needs huggingface_hub. Run pip install sce-video[hf]"
    ) from error


class HubNetwork(
    ModelHubMixin,
    library_name="sce_video",
    tags=["video", "self-supervised"],
):
    """A network that can be uploaded to the hub and downloaded from it.

    ``HubNetwork(network).push_to_hub("user/name")`` and ``HubNetwork.from_pretrained("user/name")``
    are inherited from the mixin, with its arguments. ``from_pretrained`` raises the same errors as
    :func:`~sce_video.interop.pretrained.from_pretrained`. ``save_pretrained`` writes a local folder
    with a model card.

    Attributes:
        network: Network from :func:`~sce_video.interop.pretrained.load_network` or another loader.
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
        """Load the network in a folder or repository on a device, as in ``load_model``."""
        download = {
            **{"cache_dir": cache_dir, "force_download": force_download, "token": token},
            "local_files_only": local_files_only,
        }
        folder = pretrained_folder(model_id, revision, download)
        return cls(load_network(folder, device=device))

    def generate_model_card(self) -> ModelCard:
        """Return the page of the repository (:func:`~sce_video.interop.pretrained.model_card`)."""
        return ModelCard(model_card(self.network))
