"""Holds the examples of docs/deploy.md and docs/routers.md to the schemas of what reads them.

    deploy_examples_test.py SOURCE_DIRECTORY

Kubernetes' manifests, a compose file, a systemd unit (where systemd-analyze is installed) and configuration
files. Needs tests/requirements_operators.txt.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import compose_spec
import kubernetes_validate
import pydantic
import yaml

PAGES = ("docs/deploy.md", "docs/routers.md")
EXPECTED = {"compose file", "configuration", "manifest", "pod", "unit"}


def in_deployment(pod):
    labels = {"app": "outrider"}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "outrider"},
            "spec": {"selector": {"matchLabels": labels},
                     "template": {"metadata": {"labels": labels}, "spec": pod}}}


def check_manifest(manifest):
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def check_yaml(example):
    """What kind of example it is; ValueError, pydantic's or jsonschema's error for one that its reader would refuse."""
    value = yaml.safe_load(example)
    if "kind" in value:
        check_manifest(value)
        return "manifest"
    if "containers" in value:
        check_manifest(in_deployment(value))
        return "pod"
    if "services" in value:
        compose_spec.ComposeSpecification.model_validate(value, extra="forbid")
        return "compose file"
    if not all(re.fullmatch(r"[a-z0-9-]+", name) for name in value):
        raise ValueError("is none of a compose file, a manifest and a configuration file")
    return "configuration"  # pages_test.py holds its names to the options


def check_unit(example):
    if not shutil.which("systemd-analyze"):
        return
    with tempfile.TemporaryDirectory() as folder:
        unit = pathlib.Path(folder) / "outrider.service"
        # The program need not be installed.
        unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", example, flags=re.M))
        said = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
        if said.returncode or "outrider.service" in said.stderr:
            raise ValueError(said.stderr)


def main():
    source = pathlib.Path(sys.argv[1])
    faults = []
    seen = set()
    for page in PAGES:
        text = (source / page).read_text()
        for language, example in re.findall(r"^```(yaml|ini)\n(.*?)^```", text, re.M | re.S):
            try:
                if language == "ini":
                    check_unit(example)
                    seen.add("unit")
                else:
                    seen.add(check_yaml(example))
            except (ValueError, yaml.YAMLError, kubernetes_validate.ValidationError, pydantic.ValidationError) as error:
                faults.append(f"{page}: an example is wrong: {error}\n{example}")
    faults += [f"{PAGES}: there is no {kind}" for kind in sorted(EXPECTED - seen)]
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
