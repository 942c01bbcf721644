"""Repairs are counted, updates are not."""

import pytest

from forebay_operator.drift import (
    APPLIED_ANNOTATION,
    REPLICAS_ANNOTATION,
    content_digest,
    is_changed,
    is_repair,
    is_scaled_by_others,
    with_digest,
)
from forebay_operator.resources import Manifest


def manifest(image: str = "a", **metadata) -> Manifest:
    return with_digest({"metadata": {"name": "x", "labels": {"l": "1"}, **metadata}, "spec": {"image": image}})


def stored(made: Manifest, **spec) -> Manifest:
    return {**made, "spec": {**made["spec"], "defaulted": True, **spec}, "status": {"replicas": 1}}


def test_a_first_write_is_no_repair():
    assert not is_repair(None, manifest(), stored(manifest()))
    assert is_changed(None, stored(manifest()))


def test_putting_a_foreign_edit_right_is_a_repair():
    edited = stored(manifest(), image="foreign")
    assert is_repair(edited, manifest(), stored(manifest()))


def test_an_update_of_ours_is_no_repair():
    assert not is_repair(stored(manifest("a")), manifest("b"), stored(manifest("b")))


def test_nothing_changed_is_no_repair():
    assert not is_repair(stored(manifest()), manifest(), stored(manifest()))


def test_status_and_the_deployment_controllers_annotation_are_no_content():
    before = stored(manifest())
    annotations = {**before["metadata"]["annotations"], "deployment.kubernetes.io/revision": "7"}
    metadata = {**before["metadata"], "annotations": annotations, "resourceVersion": "9"}
    after = {**before, "metadata": metadata, "status": {"replicas": 9}}
    assert not is_changed(before, after)
    assert content_digest(before) == content_digest(after)


def test_a_removed_owner_or_label_is_drift():
    bare = {**stored(manifest()), "metadata": {**stored(manifest())["metadata"], "labels": {}}}
    assert is_repair(bare, manifest(), stored(manifest()))


def test_the_digest_depends_on_the_whole_manifest():
    digests = {one["metadata"]["annotations"][APPLIED_ANNOTATION] for one in (manifest("a"), manifest("b"))}
    assert len(digests) == 2


def deployment(applied: str | None, replicas: int) -> Manifest:
    annotations = {} if applied is None else {REPLICAS_ANNOTATION: applied}
    return {"metadata": {"annotations": annotations}, "spec": {"replicas": replicas}}


@pytest.mark.parametrize(
    ("applied", "stored_replicas", "next_step", "expected"),
    [
        ("2", 5, 4, True),  # on the way back, through a drain
        ("2", 5, 2, False),  # back at once: the manifest applied last, which is_repair sees
        ("5", 5, 4, False),  # a step of our own drain
        (None, 5, 4, False),
    ],
)
def test_foreign_scaling_is_told_from_our_own_steps(applied, stored_replicas, next_step, expected):
    before, step = deployment(applied, stored_replicas), deployment(str(next_step), next_step)
    assert is_scaled_by_others(before, step) == expected


def test_a_new_deployment_was_scaled_by_nobody():
    assert not is_scaled_by_others(None, deployment("1", 1))
