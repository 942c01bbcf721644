"""What stands beside the chart and must agree with it: the installation page, the images, the local values."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from forebay_localcluster.scraping import render_scraping
from tests.charts.variants import COMPONENTS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/install.md").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "deploy/images/Dockerfile").read_text(encoding="utf-8")
VALUES = yaml.safe_load((ROOT / "charts/forebay/values.yaml").read_text(encoding="utf-8"))


def yaml_blocks() -> list[dict[str, Any]]:
    return [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]


def stage(name: str) -> str:
    """The lines of a stage of the Dockerfile."""
    found = re.search(rf"^FROM \S+ AS {name}\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert found, f"no stage {name}"
    return found.group(1)


def locked(file: Path) -> dict[str, str]:
    """Each package of a requirements file with its version and hashes.

    Markers are left out: what one component needs on some platforms only, another may need on all.
    """
    joined = file.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [" ".join(line.split()) for line in joined.splitlines() if line and not line.startswith("#")]
    return {line.partition("==")[0]: re.sub(r" ; .*?(?= --hash)", "", line) for line in lines}


def direct_dependencies(component: str) -> set[str]:
    """Third-party packages that a component, or one of ours below it, names itself."""
    project = tomllib.loads((ROOT / component / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[><=\[; ]", one)[0] for one in project["dependencies"]}
    ours = {name.removeprefix("forebay-") for name in names if name.startswith("forebay-")}
    return {name for name in names if not name.startswith("forebay-")}.union(*map(direct_dependencies, ours))


def our_packages(component: str) -> set[str]:
    """The folders whose code a component imports, itself included."""
    project = tomllib.loads((ROOT / component / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ours = {one.removeprefix("forebay-") for one in project["dependencies"] if one.startswith("forebay-")}
    return {component}.union(*map(our_packages, ours))


def compiled(component: str) -> set[str]:
    """The component, where its image gets it from the stage that compiles it: the package, and its library beside it."""
    package, source = f"forebay_{component}", f"COPY --from={component}-compiled /opt/compiled/forebay_{component}"
    made = stage(f"{component}-compiled")
    whole = (
        f"{source} /opt/forebay/src/{package}\n" in stage(component)
        and f"{source}*.so /opt/forebay/src/\n" in stage(component)
        and f"COPY {component}/src /build/{component}/src\n" in made
        and f"COPY {component}/compiling.py /build/{component}/\n" in made
    )
    return {component} if whole else set()


def test_the_page_scrapes_as_the_local_cluster_does():
    documented = next(block for block in yaml_blocks() if "scrape_configs" in block)
    rendered = yaml.safe_load(render_scraping(kubeconfig="/kubeconfig", scrape_interval_s=2))
    for job in rendered["scrape_configs"]:
        for discovery in job["kubernetes_sd_configs"]:
            del discovery["kubeconfig_file"]
        if job.get("honor_labels") is False:
            del job["honor_labels"]

    def by_name(jobs: list[dict[str, Any]]) -> dict[str, Any]:
        return {job["job_name"]: {**job, "relabel_configs": sorted(job["relabel_configs"], key=str)} for job in jobs}

    wanted, shown = by_name(rendered["scrape_configs"]), by_name(documented["scrape_configs"])
    own = shown["forebay"]["relabel_configs"]
    assert shown["forebay-workers"] == wanted["forebay-workers"]
    assert {**shown["forebay"], "relabel_configs": []} == {**wanted["forebay"], "relabel_configs": []}
    assert all(one in wanted["forebay"]["relabel_configs"] for one in own)
    assert {one["action"] for one in own if "action" in one} == {"keep", "drop"}


@pytest.mark.parametrize("component", COMPONENTS)
def test_an_image_installs_what_its_component_needs_as_it_is_locked(component: str):
    whole = locked(ROOT / "requirements.lock")
    part = locked(ROOT / f"deploy/images/{component}.txt")
    assert part.items() <= whole.items(), "run `make lock`"
    assert direct_dependencies(component) <= part.keys()
    assert all("--hash=sha256:" in line for line in part.values())
    assert f"install -r /tmp/{component}.txt" in stage(f"{component}-packages")


@pytest.mark.parametrize("component", COMPONENTS)
def test_an_image_holds_the_code_that_its_component_imports(component: str):
    lines = stage(component)
    (copied,) = re.findall(r"^COPY ((?:\S+/src )+)/opt/forebay/src/$", lines, re.MULTILINE)
    held = {one.removesuffix("/src") for one in copied.split()}
    needed = {f"!{one}/src" for one in our_packages(component)}
    if f"--from={component}-compiled" in lines:
        held |= compiled(component)
        needed.add(f"!{component}/compiling.py")
    assert held == our_packages(component)
    assert f'ENTRYPOINT ["python", "-m", "forebay_{component}"]' in lines
    ignore = (ROOT / "deploy/images/Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert needed <= set(ignore)


@pytest.mark.parametrize("component", COMPONENTS)
def test_an_image_runs_as_the_user_that_the_chart_names(component: str):
    security = VALUES["podSecurityContext"]
    assert f"USER {security['runAsUser']}:{security['runAsGroup']}\n" in stage(component)
    assert security["runAsNonRoot"] is True
