"""LoRA adapters: names that requests may use as their model, known from the start or loaded at run time."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forebay_simulator.engine.errors import ApiError, not_found
from forebay_simulator.engine.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class Adapter:
    """One LoRA adapter."""

    name: str
    path: str
    number: int
    """From 1, in order of loading; never used twice."""
    created: int = field(default_factory=lambda: int(time.time()))


class Adapters:
    """The models this engine answers to: its served names and its adapters."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._created = int(time.time())
        self._adapters: dict[str, Adapter] = {}
        self._number = 0
        for name, path in settings.lora_modules:
            self._add(name, path)

    def find(self, model: str | None) -> Adapter | None:
        """Return the adapter of a model name, None for the base model. Raises `ApiError` 404."""
        if model is None or model in self._settings.served_names or model == "":
            return None
        adapter = self._adapters.get(model)
        if adapter is None:
            aliases = ", ".join(self._settings.served_names)
            raise not_found(f"The model `{model}` does not exist. Valid aliases: {aliases}.", "model")
        return adapter

    def load(self, name: str, path: str) -> str:
        """Add an adapter and return the answer's text. Raises `ApiError`."""
        if name in self._adapters:
            message = (
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True."
            )
            raise ApiError(400, message, "InvalidUserInput")
        if not Path(path).exists() and not path.startswith("hf://"):
            raise not_found(f"Loading lora {name} failed: No adapter found for {path}")
        self._add(name, path)
        return f"Success: LoRA adapter '{name}' added successfully."

    def _add(self, name: str, path: str) -> None:
        self._number += 1
        self._adapters[name] = Adapter(name, path, self._number)

    def unload(self, name: str) -> str:
        """Drop an adapter and return the answer's text. Raises `ApiError`."""
        if self._adapters.pop(name, None) is None:
            raise not_found(f"The lora adapter '{name}' cannot be found.")
        return f"Success: LoRA adapter '{name}' removed successfully."

    def cards(self, max_model_len: int) -> list[dict[str, Any]]:
        """Return the entries of /v1/models."""
        settings = self._settings
        base = [_card(name, settings.model, None, max_model_len, self._created) for name in settings.served_names]
        return base + [
            _card(adapter.name, adapter.path, settings.name, None, adapter.created)
            for adapter in self._adapters.values()
        ]


def _card(name: str, root: str, parent: str | None, max_model_len: int | None, created: int) -> dict[str, Any]:
    permission = {
        "id": f"modelperm-{uuid.uuid4().hex[:16]}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
        "permission": [permission],
    }
