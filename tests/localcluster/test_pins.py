"""Versions, flags and cache keys come from the pinned modules' own files."""

from pathlib import Path

import pytest

from forebay_localcluster.errors import LocalClusterError
from forebay_localcluster.pins import (
    RECIPES,
    Program,
    build_module,
    go_directive,
    linker_flags,
    matches_pin,
    modules_folder,
    parse_numbers,
    parse_version,
    read_modules,
    release_of_module,
    required_version,
)

GO_MOD = """\
module forebay.dev/local/etcd

go 1.26.7

require (
\tgo.etcd.io/etcd/server/v3 v3.6.16 // indirect
\tgo.etcd.io/etcd/api/v3 v3.6.15 // indirect
)
"""


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ("etcd Version: 3.6.16\nGit SHA: Not provided (use ./build instead of go build)\n", "3.6.16"),
        ("Kubernetes v1.37.2\n", "1.37.2"),
        ("Client Version: v1.37.2\nKustomize Version: v5.8.1\n", "1.37.2"),
        ("helm v4.3.1", "4.3.1"),
        ("prometheus, version 0.316.0 (branch: , revision: unknown)\n  go version: go1.26.8\n", "0.316.0"),
        ("Kubernetes v1.36.0-rc.1+abc\n", "1.36.0-rc.1+abc"),
        ("usage: something else 1.2.3", None),
        ("", None),
    ],
)
def test_a_program_s_words_about_itself_are_understood(output: str, version: str | None):
    assert parse_version(output) == version


def test_the_version_is_what_go_mod_requires():
    assert required_version(GO_MOD, "go.etcd.io/etcd/server/v3") == "3.6.16"
    assert required_version("require helm.sh/helm/v4 v4.3.1\n", "helm.sh/helm/v4") == "4.3.1"


def test_a_module_that_is_not_required_is_named():
    with pytest.raises(LocalClusterError, match=r"does not require example\.com/x"):
        required_version(GO_MOD, "example.com/x")


def test_the_oldest_go_is_what_go_mod_says():
    assert go_directive(GO_MOD) == (1, 26, 7)
    assert go_directive("module x\n") == (1,)


@pytest.mark.parametrize(
    ("older", "newer"), [("1.26", "1.26.7"), ("1.9.9", "1.10"), ("1.26.7", "1.27rc1"), ("1.26.10", "1.27.3")]
)
def test_versions_compare_by_number(older: str, newer: str):
    assert parse_numbers(older) < parse_numbers(newer)


def test_prometheus_is_known_by_module_and_by_release():
    assert release_of_module("0.316.0") == "3.16.0"
    assert release_of_module("0.305.1") == "3.5.1"
    assert matches_pin(Program.PROMETHEUS, found="3.16.0", pinned="0.316.0")
    assert matches_pin(Program.PROMETHEUS, found="0.316.0", pinned="0.316.0")
    assert not matches_pin(Program.PROMETHEUS, found="3.17.0", pinned="0.316.0")


def test_other_programs_match_their_pin_only():
    assert matches_pin(Program.ETCD, found="3.6.16", pinned="3.6.16")
    assert not matches_pin(Program.ETCD, found="3.6.15", pinned="3.6.16")


@pytest.mark.parametrize(
    ("go_mod", "go_sum"),
    [(GO_MOD.replace("3.6.15", "3.6.14"), "sum"), (GO_MOD, "other sum"), (GO_MOD.replace("3.6.16", "3.6.17"), "sum")],
)
def test_the_cache_key_changes_with_every_input(go_mod: str, go_sum: str):
    etcd = RECIPES[0]
    before = build_module(etcd, path=Path("etcd"), go_mod=GO_MOD, go_sum="sum")
    assert build_module(etcd, path=Path("etcd"), go_mod=GO_MOD, go_sum="sum").key == before.key
    assert build_module(etcd, path=Path("etcd"), go_mod=go_mod, go_sum=go_sum).key != before.key


def test_kubernetes_is_told_its_whole_version():
    flags = linker_flags(RECIPES[1], "1.37.2")
    assert "k8s.io/component-base/version.gitVersion=v1.37.2" in flags
    assert "version.gitMajor=1 " in flags
    assert "version.gitMinor=37 " in flags


def test_every_program_has_exactly_one_pinned_module():
    modules = read_modules(modules_folder())
    programs = [program for module in modules for program in module.recipe.packages]
    assert sorted(programs) == sorted(Program)
    assert all(module.go_minimum >= (1, 26) for module in modules)
