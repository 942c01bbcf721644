"""Whether a pool's workers can hold the model at all, asked of the capacity model before any pod starts."""

from collections.abc import Mapping

from forebay_api.acceleratorclass import AcceleratorClassSpec
from forebay_api.conditions import Condition, ConditionStatus
from forebay_api.modelservice import ModelServiceSpec
from forebay_api.names import FITS


def judge_fit(spec: ModelServiceSpec, accelerators: Mapping[str, AcceleratorClassSpec]) -> Condition:
    """The Fits condition: True, False with what would fit, or Unknown where the model or the hardware is not known."""
    del spec, accelerators
    return Condition(FITS, ConditionStatus.UNKNOWN, "NotJudged", "the capacity model was not asked")
