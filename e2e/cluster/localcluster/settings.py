"""Where the cluster keeps its files, and the addresses inside its network namespace."""

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

NODE_NAME = "node"
NODE_IP = "10.89.0.1"
POD_CIDR = "10.244.0.0/16"
NODE_POD_CIDR = "10.244.0.0/22"
SERVICE_CIDR = "10.96.0.0/16"
API_SERVICE_IP = "10.96.0.1"
API_SERVER = f"https://{NODE_IP}:6443"
CLUSTER_DOMAIN = "cluster.local"
MAX_PODS = 500

HERE = Path(__file__).resolve().parent.parent
REPOSITORY = HERE.parent.parent
VERSION = str(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"])

# The names that manifests/ and the API's default use, so that the tests apply them as they are.
OPERATOR_IMAGE = f"docker.io/rlhfjob/operator:{VERSION}"
RUNTIME_IMAGE = f"docker.io/rlhfjob/runtime:{VERSION}"
PAUSE_IMAGE = "docker.io/rlhfjob/pause:e2e"


def cache_folder() -> Path:
    """The one folder that outlives the cluster: binaries, images, containerd's content."""
    chosen = os.environ.get("RLHF_CACHE")
    return Path(chosen).expanduser().resolve() if chosen else Path.home() / ".cache" / "rlhfjob"


@dataclass(frozen=True)
class Layout:
    """Every path and global name of one cluster.

    `state` is thrown away by `down`; everything beside it is cache. `name` is what the cluster is called
    where the machine has only one space of names: network namespaces and cgroups.
    """

    cache: Path
    name: str

    @property
    def state(self) -> Path:
        return self.cache / self.name

    @property
    def binaries(self) -> Path:
        return self.cache / "bin"

    @property
    def build(self) -> Path:
        return self.cache / "build"

    @property
    def crds(self) -> Path:
        return self.cache / "kuberay-crds"

    @property
    def image_store(self) -> Path:
        """buildah's own storage, apart from the machine's."""
        return self.cache / "buildah"

    @property
    def containerd_root(self) -> Path:
        """Images stay imported across `down` and `up`, so this is cache and not state."""
        return self.cache / f"{self.name}-containerd"

    @property
    def containerd_socket(self) -> Path:
        return self.state / "containerd.sock"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def pids(self) -> Path:
        return self.state / "pids"

    @property
    def network_namespace(self) -> Path:
        return Path("/run/netns") / self.name

    @property
    def cgroup(self) -> str:
        """Every pod's cgroup is below this one, so that `down` can find pods without asking the kubelet."""
        return self.name

    @property
    def mark(self) -> dict[str, str]:
        """The variable by which the cluster's own processes are told from all others."""
        return {"RLHFJOB_E2E_DAEMON_OF": str(self.state)}

    def binary(self, program: str) -> Path:
        return self.binaries / program


def default_layout() -> Layout:
    return Layout(cache=cache_folder(), name=os.environ.get("RLHF_CLUSTER", "rlhfjob-e2e"))
