"""The cluster's certificates and kubeconfigs, one identity for each component."""

import base64
import json
from dataclasses import dataclass
from pathlib import Path

from .settings import API_SERVER, API_SERVICE_IP, CLUSTER_DOMAIN, NODE_IP, NODE_NAME, Layout
from .shell import run

_DAYS = "3650"
_API_NAMES = (
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    f"kubernetes.default.svc.{CLUSTER_DOMAIN}",
)


@dataclass(frozen=True)
class Identity:
    """A client of the API server, named as Kubernetes' built-in roles expect."""

    name: str
    subject: str


ADMIN = Identity("admin", "/O=system:masters/CN=admin")
CONTROLLER_MANAGER = Identity("controller-manager", "/CN=system:kube-controller-manager")
SCHEDULER = Identity("scheduler", "/CN=system:kube-scheduler")
KUBELET = Identity("kubelet", f"/O=system:nodes/CN=system:node:{NODE_NAME}")
PROXY = Identity("proxy", "/CN=system:kube-proxy")
_CLIENTS = (ADMIN, CONTROLLER_MANAGER, SCHEDULER, KUBELET, PROXY)


def create(layout: Layout) -> None:
    """Everything anew: the cluster's state is thrown away as a whole, certificates with it."""
    folder = layout.pki
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    _authority(folder)
    _serving_certificate(folder)
    for identity in _CLIENTS:
        _signed(folder, identity.name, identity.subject)
        _write_kubeconfig(folder, identity, folder / f"{identity.name}.conf")
    _write_kubeconfig(folder, ADMIN, layout.kubeconfig)
    run(["openssl", "genrsa", "-out", folder / "sa.key", "2048"], part="service account keys")
    run(
        ["openssl", "rsa", "-in", folder / "sa.key", "-pubout", "-out", folder / "sa.pub"],
        part="service account keys",
    )


def _new_key(path: Path) -> None:
    run(["openssl", "ecparam", "-genkey", "-noout", "-name", "prime256v1", "-out", path], part="certificates")


def _authority(folder: Path) -> None:
    _new_key(folder / "ca.key")
    files = ["-key", f"{folder}/ca.key", "-out", f"{folder}/ca.crt"]
    run(
        ["openssl", "req", "-x509", "-new", *files, "-days", _DAYS, "-subj", "/CN=rlhfjob-e2e-ca"],
        part="certificates",
    )


def _serving_certificate(folder: Path) -> None:
    names = [f"DNS:{name}" for name in (*_API_NAMES, "localhost")]
    addresses = [f"IP:{address}" for address in ("127.0.0.1", API_SERVICE_IP, NODE_IP)]
    extensions = folder / "api-server.ext"
    extensions.write_text("subjectAltName=" + ",".join(names + addresses))
    _signed(folder, "api-server", "/CN=kube-apiserver", extensions)


def _signed(folder: Path, name: str, subject: str, extensions: Path | None = None) -> None:
    key, request = folder / f"{name}.key", folder / f"{name}.csr"
    _new_key(key)
    run(["openssl", "req", "-new", "-key", key, "-out", request, "-subj", subject], part="certificates")
    sign: list[str | Path] = [
        "openssl",
        "x509",
        "-req",
        "-in",
        request,
        "-out",
        folder / f"{name}.crt",
        "-days",
        _DAYS,
    ]
    sign += ["-CA", folder / "ca.crt", "-CAkey", folder / "ca.key", "-CAcreateserial"]
    run([*sign, "-extfile", extensions] if extensions else sign, part="certificates")
    request.unlink()


def _write_kubeconfig(folder: Path, identity: Identity, path: Path) -> None:
    """JSON is YAML, so no YAML library is needed; certificates are embedded, so the file can be copied."""

    def embedded(file: str) -> str:
        return base64.b64encode((folder / file).read_bytes()).decode()

    cluster = {"server": API_SERVER, "certificate-authority-data": embedded("ca.crt")}
    user = {
        "client-certificate-data": embedded(f"{identity.name}.crt"),
        "client-key-data": embedded(f"{identity.name}.key"),
    }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "e2e", "cluster": cluster}],
        "users": [{"name": identity.name, "user": user}],
        "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": identity.name}}],
        "current-context": "e2e",
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(document, indent=2))
