"""Files that people write for the router, YAML or JSON, read strictly: what is wrong is told with its path and the fix."""

from pathlib import Path
from typing import Any, TypeVar

import orjson
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from forebay_api.fields import violations
from forebay_router.followed import BadFileError


class Entry(BaseModel):
    """Base of what stands in such a file: unknown fields are refused, so that a misspelt limit is not an absent one."""

    model_config = ConfigDict(alias_generator=to_camel, frozen=True, extra="forbid")


def _sentence(error: ValidationError) -> str:
    """What is wrong, without any value: somebody may have put a key where its digest belongs."""
    return "; ".join(
        one.replace("Extra inputs are not permitted", "is no field here: remove it or correct its spelling")
        for one in violations(error)
    )


Model = TypeVar("Model", bound=BaseModel)


def read_document(path: Path, model: type[Model]) -> Model:
    """A YAML or JSON file as a model; raises BadFileError. JSON is read a hundred times faster than YAML."""
    try:
        content = path.read_bytes()
        data: Any = orjson.loads(content) if content[:1] == b"{" else yaml.safe_load(content)
    except OSError as error:
        raise BadFileError(f"{path}: cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise BadFileError(f"{path}: is not valid JSON at line {error.lineno}, column {error.colno}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise BadFileError(f"{path}: is not valid YAML{where}") from error
    if data is not None and not isinstance(data, dict):
        begins = " or ".join(f"`{name}:`" for name in model.model_fields)
        raise BadFileError(f"{path}: must begin with {begins}, and hold the entries below it")
    return read_data(data if data is not None else {}, model, str(path))


def read_data(data: Any, model: type[Model], name: str) -> Model:
    """What a file called `name` holds, as a model; raises BadFileError."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise BadFileError(f"{name}: {_sentence(error)}") from None  # the cause holds values, maybe secret ones
