"""Checks the files of contrib against the schemas of their kinds, and prints as JSON what of them is ours:
command lines, configurations, and what the container of the daemon may do.

Kubernetes by the schemas of the project, strictly: a field that is not known is an error. Compose by the
Compose specification. The Dockerfile by hadolint.
"""

import json
import pathlib
import subprocess
import sys

import compose_spec
import kubernetes_validate
import yaml
from dockerfile_parse import DockerfileParser

CONTRIB = pathlib.Path(__file__).parents[2] / "contrib"
# The first in which sidecars need no feature gate, and the newest that is known here.
KUBERNETES = ["1.29", kubernetes_validate.latest_version()]

commands, configs, errors = [], [], []


def command(file, words):
    if words[0] == "mount-skills":
        commands.append({"file": file.name, "words": words})


def dockerfile(file):
    hadolint = pathlib.Path(sys.executable).parent / "hadolint"
    found = subprocess.run([hadolint, "--no-color", file], capture_output=True, text=True)
    if found.returncode:
        errors.append(found.stdout + found.stderr)
    said = {}
    with file.open("rb") as text:
        for line in DockerfileParser(fileobj=text, cache_content=True).structure:
            value = line["value"]
            said[line["instruction"]] = json.loads(value[value.index("["):]) if value.endswith("]") else value
    # tini's own words end with --.
    entry = said["ENTRYPOINT"][said["ENTRYPOINT"].index("--") + 1:]
    command(file, entry + said["CMD"])
    command(file, said["HEALTHCHECK"])
    return {"entry": entry, "command": said["CMD"], "user": said["USER"]}


def compose(file):
    text = file.read_text()
    compose_spec.PyCompose.from_yaml(text).to_spec()
    services = yaml.safe_load(text)["services"]
    propagation = {n: [v["bind"]["propagation"] for v in s["volumes"] if isinstance(v, dict)] for n, s in services.items()}
    return {"capabilities": services["skills"]["cap_add"], "dropped": services["skills"]["cap_drop"], "propagation": propagation}


def containers(spec):
    return spec.get("initContainers", []) + spec["containers"]


def kubernetes(file, image):
    found = []
    for document in yaml.safe_load_all(file.read_text()):
        for version in KUBERNETES:
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                errors.append(f"{file.name}: {document['kind']} of {version}: {error}")
        for text in document.get("data", {}).values() if document["kind"] == "ConfigMap" else ():
            configs.append({"file": file.name, "text": text})
        spec = document.get("spec", {})
        spec = spec.get("template", {}).get("spec", spec)
        if "containers" not in spec:
            continue
        volumes = {volume["name"] for volume in spec["volumes"]}
        for container in containers(spec):
            mounts = container["volumeMounts"]
            errors.extend(f"{file.name}: no volume {m['name']}" for m in mounts if m["name"] not in volumes)
            if "args" in container:
                command(file, image["entry"] + container["args"])
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                if probe in container:
                    command(file, container[probe]["exec"]["command"])
            security = container["securityContext"]
            found.append({
                "name": container["name"],
                "restart": container.get("restartPolicy"),
                "privileged": security.get("privileged", False),
                "user": f"{security['runAsUser']}:{security['runAsGroup']}",
                "propagation": [m["mountPropagation"] for m in mounts if "mountPropagation" in m],
            })
    return found


image = dockerfile(CONTRIB / "docker/Dockerfile")
answer = {
    "image": image,
    "compose": compose(CONTRIB / "docker/compose.yaml"),
    "sidecar": kubernetes(CONTRIB / "kubernetes/sidecar.yaml", image),
    "daemonset": kubernetes(CONTRIB / "kubernetes/daemonset.yaml", image),
}
configs.append({"file": "config.toml", "text": (CONTRIB / "docker/config.toml").read_text()})
if errors:
    sys.exit("\n".join(errors))
json.dump(answer | {"commands": commands, "configs": configs}, sys.stdout)
