"""Which program is used when there are several, and which never is."""

import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest

from forebay_localcluster.errors import LocalClusterError, ProgramsMissingError, VersionSkewError
from forebay_localcluster.locate import (
    Located,
    Source,
    ask_version,
    cache_folder,
    cached_path,
    find_programs,
    locate_programs,
    refuse_skew,
)
from forebay_localcluster.pins import KUBERNETES, Module, Program, modules_folder, read_modules

MODULES = read_modules(modules_folder())
PINNED: Mapping[Program, Module] = {program: module for module in MODULES for program in module.recipe.packages}
WORDS = {
    Program.ETCD: "etcd Version: {}",
    Program.KUBECTL: "Client Version: v{}",
    Program.HELM: "helm v{}",
    Program.PROMETHEUS: "prometheus, version {} (branch: )",
}


def program_that_says(folder: Path, program: Program, version: str) -> Path:
    """Write an executable that says its version as the real one does."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / program
    path.write_text(f"#!/bin/sh\necho {shlex.quote(WORDS.get(program, 'Kubernetes v{}').format(version))}\n")
    path.chmod(0o755)
    return path


def cached(folder: Path, program: Program) -> Path:
    path = cached_path(folder / "forebay", program, PINNED[program])
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\nexit 1\n")  # never asked: its folder says the version
    path.chmod(0o755)
    return path


def find(program: Program, **environment: Path) -> Located | None:
    return find_programs(MODULES, {name: str(value) for name, value in environment.items()}).get(program)


@pytest.mark.parametrize("program", Program)
def test_the_pinned_version_on_path_is_used(program: Program, tmp_path: Path):
    path = program_that_says(tmp_path / "bin", program, PINNED[program].version)
    found = find(program, PATH=path.parent, XDG_CACHE_HOME=tmp_path)
    assert found == Located(program=program, path=path, version=PINNED[program].version, source=Source.PATH)


@pytest.mark.parametrize("place", ["PATH", "KUBEBUILDER_ASSETS"])
def test_another_version_found_by_chance_is_not_used(place: str, tmp_path: Path):
    folder = program_that_says(tmp_path / "bin", Program.ETCD, "3.5.0").parent
    assert find(Program.ETCD, **{place: folder, "XDG_CACHE_HOME": tmp_path}) is None


def test_another_version_in_the_folder_the_user_named_is_used(tmp_path: Path):
    folder = program_that_says(tmp_path / "bin", Program.ETCD, "3.5.0").parent
    found = find(Program.ETCD, FOREBAY_BIN_DIR=folder, XDG_CACHE_HOME=tmp_path)
    assert found
    assert (found.version, found.source) == ("3.5.0", Source.BIN_DIR)


def test_a_program_that_does_not_say_its_version_is_refused_by_name(tmp_path: Path):
    path = program_that_says(tmp_path / "bin", Program.ETCD, "3.5.0")
    path.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(LocalClusterError, match=r"FOREBAY_BIN_DIR: .*etcd does not say its version"):
        find(Program.ETCD, FOREBAY_BIN_DIR=path.parent, XDG_CACHE_HOME=tmp_path)


def test_places_are_asked_in_their_order(tmp_path: Path):
    """Each place is emptied in turn; the next one takes over."""
    version = PINNED[Program.ETCD].version
    places = {
        "FOREBAY_BIN_DIR": program_that_says(tmp_path / "own", Program.ETCD, version),
        "KUBEBUILDER_ASSETS": program_that_says(tmp_path / "assets", Program.ETCD, version),
        "PATH": program_that_says(tmp_path / "path", Program.ETCD, version),
    }
    kept = cached(tmp_path, Program.ETCD)
    folders = {name: path.parent for name, path in places.items()} | {"XDG_CACHE_HOME": tmp_path}
    for source, path in places.items():
        found = find(Program.ETCD, **folders)
        assert found
        assert (found.source, found.path) == (Source(source), path)
        path.unlink()
    found = find(Program.ETCD, **folders)
    assert found
    assert (found.source, found.path) == (Source.CACHE, kept)


def test_what_is_missing_is_named_with_the_way_to_get_it(tmp_path: Path):
    present = [program for program in Program if program not in {Program.HELM, Program.ETCD}]
    for program in present:
        cached(tmp_path, program)
    with pytest.raises(ProgramsMissingError, match=r"etcd, helm\. Build them once: forebay cluster build"):
        locate_programs({"XDG_CACHE_HOME": str(tmp_path)})


def test_a_complete_cache_is_all_that_is_needed(tmp_path: Path):
    for program in Program:
        cached(tmp_path, program)
    assert set(locate_programs({"XDG_CACHE_HOME": str(tmp_path)})) == set(Program)


def test_kubernetes_programs_of_different_releases_are_refused(tmp_path: Path):
    found = {name: Located(program=name, path=tmp_path, version="1.37.2", source=Source.BIN_DIR) for name in KUBERNETES}
    refuse_skew(found)
    old = Located(program=Program.API_SERVER, path=tmp_path, version="1.34.4", source=Source.BIN_DIR)
    with pytest.raises(VersionSkewError, match=r"kube-apiserver 1\.34\.4"):
        refuse_skew(found | {Program.API_SERVER: old})


def test_a_file_that_cannot_be_run_has_no_version(tmp_path: Path):
    path = tmp_path / "etcd"
    path.write_text("not a program")
    path.chmod(0o755)
    assert ask_version(Program.ETCD, path) is None


def test_the_cache_follows_the_desktop_s_rules(tmp_path: Path):
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "forebay"
    assert cache_folder({}) == Path.home() / ".cache" / "forebay"
