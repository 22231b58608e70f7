"""pull: the local path of a model by its name; downloads it if it isn't there."""

from __future__ import annotations

import re
from pathlib import Path

from checkpoints.gguf_header import part_names
from checkpoints.packaged_models import PACKAGED, fetch
from jaxserve.errors import ModelNotFoundError

_REPO = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
_HUB_NAME = re.compile(_REPO)
_HUB_FILE = re.compile(rf"({_REPO})[:/](.+\.gguf)")
_WANTED = ["*.json", "*.jinja", "*.safetensors", "tokenizer.model"]
# Other copies of the weights, in other layouts.
_UNWANTED = ["original/*", "onnx/*", "consolidated*"]
_OF_TOKENIZER = ["*.json", "*.jinja", "tokenizer.model"]


def pull(model: str, revision: str | None = None, only_tokenizer: bool = False) -> Path:
    """A local folder or GGUF file for a model.

    Args:
        revision: a branch, tag or commit, of a model of the hub.
        only_tokenizer: of a folder of the hub, the files of the tokenizer are enough.
        model: a local folder or GGUF file, a packaged name (`smollm2-135m`), a hub name
            (`owner/name`), or a GGUF file on the hub (`owner/name:file.gguf`). The hub's own
            variables HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE apply.

    Raises:
        ModelNotFoundError: says what to change.
        CheckpointError: the download of a packaged model is damaged.
    """
    check_name(model)
    path = Path(model).expanduser()
    if revision is not None and (path.exists() or model in PACKAGED):
        raise ModelNotFoundError(f"{model}: only a model of the hub has revisions; leave it out")
    if path.exists():
        return path
    if model in PACKAGED:
        return fetch(PACKAGED[model])
    if match := _HUB_FILE.fullmatch(model):
        return _from_hub(match[1], match[2], revision)
    return _from_hub(model, None, revision, only_tokenizer)


def check_name(model: str) -> None:
    """Raises ModelNotFoundError for a name that pull() can't find: checks its form and local files,
    not the network."""
    hub = _HUB_FILE.fullmatch(model) or (_HUB_NAME.fullmatch(model) and not model.endswith(".gguf"))
    if not (hub or model in PACKAGED or Path(model).expanduser().exists()):
        raise ModelNotFoundError(
            f"{model}: no such folder or file, and not a name to download; packaged models: "
            f"{', '.join(PACKAGED)}; hub models: owner/name or owner/name:file.gguf"
        )


def _from_hub(
    repo: str, file: str | None, revision: str | None, only_tokenizer: bool = False
) -> Path:
    # Takes half a second to import, and a local model doesn't need it.
    from huggingface_hub import constants, errors, hf_hub_download, snapshot_download

    try:
        if file is not None:
            parts = [hf_hub_download(repo, part, revision=revision) for part in part_names(file)]
            return Path(parts[0])
        wanted = _OF_TOKENIZER if only_tokenizer else _WANTED
        folder = Path(
            snapshot_download(
                repo, revision=revision, allow_patterns=wanted, ignore_patterns=_UNWANTED
            )
        )
    except errors.GatedRepoError:
        problem = "the repository is gated: accept its terms on the hub, then set HF_TOKEN"
    except errors.RevisionNotFoundError:
        problem = f"the repository has no revision {revision}"
    except errors.RepositoryNotFoundError:
        problem = (
            "the hub has no such repository, or it is private: check the name, or set HF_TOKEN"
        )
    except errors.LocalEntryNotFoundError:
        problem = (
            "not in the local cache, and HF_HUB_OFFLINE is set: unset it to download"
            if constants.HF_HUB_OFFLINE
            else f"not in the local cache, and the hub at {constants.ENDPOINT} can't be reached: "
            "check the network or HF_ENDPOINT"
        )
    except errors.EntryNotFoundError:
        problem = f"the repository has no file {file}"
    except (errors.HfHubHTTPError, errors.HFValidationError, OSError) as error:
        problem = f"the hub at {constants.ENDPOINT} answered: {error}"
    else:
        if only_tokenizer or (folder / "config.json").exists():
            return folder
        problem = (
            "the repository has no config.json; name a GGUF file of it as owner/name:file.gguf"
        )
    raise ModelNotFoundError(f"{repo}: {problem}")
