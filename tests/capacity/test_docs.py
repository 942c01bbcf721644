"""docs/capacity-model.md says what the code does."""

from pathlib import Path

import pytest

from forebay_capacity.accelerators import ACCELERATORS, GIB, Accelerator
from forebay_capacity.config import SUPPORTED
from forebay_capacity.dtypes import Dtype
from forebay_capacity.shapes import PRESETS
from forebay_capacity.steptime import CALIBRATED
from forebay_capacity.worker import RESERVE_BYTES

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "capacity-model.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("accelerator", ACCELERATORS.values(), ids=list(ACCELERATORS))
def test_each_accelerator_has_its_line_with_a_source(accelerator: Accelerator):
    (line,) = (line for line in TEXT.splitlines() if line.startswith(f"| {accelerator.name} |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert float(cells[1]) == pytest.approx(accelerator.memory_bytes / GIB)
    assert float(cells[2]) == pytest.approx(accelerator.bandwidth_bytes_per_s / 1e12)
    assert cells[3].split(", ")[0].replace(",", "") == f"{accelerator.bf16_flops_per_s / 1e12:.0f}"
    assert cells[5] == f"${accelerator.price_usd_per_hour:.2f}"
    assert len(cells[6]) > 10


def test_every_model_type_and_preset_is_listed():
    assert not [name for name in SUPPORTED if f"`{name}`" not in TEXT]
    assert not [name for name in PRESETS if name not in TEXT]


def test_the_constants_are_the_ones_in_use():
    matrices, gib = CALIBRATED.matrices, RESERVE_BYTES / GIB
    assert f"BF16 {matrices[Dtype.BF16].bandwidth:.2f}, FP8 {matrices[Dtype.FP8].bandwidth:.2f}" in TEXT
    assert f"BF16 {matrices[Dtype.BF16].compute:.3f}, FP8 {matrices[Dtype.FP8].compute:.2f}" in TEXT
    assert f"{CALIBRATED.matrix_launch_s * 1e6:.4g} µs, {CALIBRATED.attention_launch_s * 1e6:.1f} µs" in TEXT
    assert f"{CALIBRATED.attention_sequence_s * 1e6:.3f} µs" in TEXT
    assert f"{CALIBRATED.all_reduce_s * 1e6:.0f} µs, {CALIBRATED.link_share:.2f} of the link" in TEXT
    assert f"| {CALIBRATED.overhead_s * 1e3:.1f} ms |" in TEXT
    assert f"| K, slowdown | {CALIBRATED.slowdown:.2f} |" in TEXT
    assert f"The {gib:.1f} GiB" in TEXT
