"""The cluster's programs, built from Go modules whose versions and hashes are committed in `go/`.

Nothing is downloaded prebuilt: a machine that reaches only package registries can build all of it. A
binary is kept with a key made of its module and flags, and built again only when that changes.
"""

import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from .settings import HERE, Layout
from .shell import ClusterError, run, run_logged, say


@dataclass(frozen=True)
class Component:
    """One Go module of `go/` and the programs that come out of it. Its go.mod alone says which version."""

    name: str
    requires: str
    packages: tuple[str, ...]
    # What the linker names the result, where that is not what the program is called.
    renamed: tuple[str, str] | None = None

    @property
    def module(self) -> Path:
        return HERE / "go" / self.name

    @property
    def programs(self) -> tuple[str, ...]:
        if self.renamed:
            return (self.renamed[1],)
        return tuple(package.rsplit("/", 1)[-1] for package in self.packages)

    @property
    def version(self) -> str:
        found = re.search(rf"^require {re.escape(self.requires)} (v\S+)$", self._go_mod(), re.MULTILINE)
        if not found:
            raise ClusterError(f"{self.name}: go.mod has no line `require {self.requires} vX.Y.Z`")
        return found.group(1)

    def _go_mod(self) -> str:
        return (self.module / "go.mod").read_text()

    def key(self) -> str:
        digest = hashlib.sha256(repr((self, _flags(self))).encode())
        for source in sorted(self.module.iterdir()):
            digest.update(source.name.encode() + b"\0" + source.read_bytes())
        return digest.hexdigest()[:16]


KUBERNETES_PROGRAMS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
)
KUBERNETES = Component(
    "kubernetes", "k8s.io/kubernetes", tuple(f"k8s.io/kubernetes/cmd/{name}" for name in KUBERNETES_PROGRAMS)
)
ETCD = Component("etcd", "go.etcd.io/etcd/server/v3", ("go.etcd.io/etcd/server/v3",), ("server", "etcd"))
COREDNS = Component("coredns", "github.com/coredns/coredns", (".",), ("coredns", "coredns"))
_RAY_OPERATOR = "github.com/ray-project/kuberay/ray-operator"
KUBERAY = Component("kuberay", _RAY_OPERATOR, (_RAY_OPERATOR,), ("ray-operator", "kuberay-operator"))
COMPONENTS = (KUBERNETES, ETCD, COREDNS, KUBERAY)


def ensure(layout: Layout) -> None:
    """Builds what is missing or out of date. The Go caches, gigabytes of them, live only for the build."""
    stale = [component for component in COMPONENTS if not _current(layout, component)]
    if not stale:
        return
    if shutil.which("go") is None:
        raise ClusterError("binaries: the Go toolchain is missing (`go` is not on PATH)")
    for component in stale:
        _build(layout, component)
    shutil.rmtree(layout.build / "gocache", ignore_errors=True)
    shutil.rmtree(layout.build / "gomodcache", ignore_errors=True)


def _stamp(layout: Layout, component: Component) -> Path:
    return layout.binaries / f".{component.name}.key"


def _current(layout: Layout, component: Component) -> bool:
    wanted = [layout.binary(program) for program in component.programs]
    if component is KUBERAY:
        wanted.append(layout.crds)
    stamp = _stamp(layout, component)
    return all(map(Path.exists, wanted)) and stamp.exists() and stamp.read_text() == component.key()


def _environment(layout: Layout) -> dict[str, str]:
    return {
        **os.environ,
        "GOCACHE": str(layout.build / "gocache"),
        "GOMODCACHE": str(layout.build / "gomodcache"),
        # The module cache is read-only by default, which keeps it from being deleted.
        "GOFLAGS": "-modcacherw -buildvcs=false",
        "CGO_ENABLED": "0",
        # The compiler is short-lived: memory is cheaper here than its garbage collector's time.
        "GOGC": os.environ.get("GOGC", "400"),
    }


def _build(layout: Layout, component: Component) -> None:
    say(f"building {component.name} {component.version} (minutes, once)")
    layout.binaries.mkdir(parents=True, exist_ok=True)
    output = layout.build / component.name
    output.mkdir(parents=True, exist_ok=True)
    run_logged(
        ["go", "build", *_flags(component), "-o", f"{output}/", *component.packages],
        part=f"build of {component.name}",
        log=layout.build / f"{component.name}.log",
        timeout=2400,
        env=_environment(layout),
        cwd=component.module,
    )
    for program in component.programs:
        built = component.renamed[0] if component.renamed else program
        os.replace(output / built, layout.binary(program))
    if component is KUBERAY:
        _keep_crds(layout, component)
    _stamp(layout, component).write_text(component.key())


def _flags(component: Component) -> list[str]:
    """Without debug information, which saves a tenth of the time and a quarter of the caches' disk.

    Kubernetes must be told its version, or clients see v0.0.0.
    """
    link = ["-s", "-w"]
    if component is KUBERNETES:
        version = "k8s.io/component-base/version"
        major, minor, _ = component.version.removeprefix("v").split(".", 2)
        link += [f"-X {version}.gitVersion={component.version}"]
        link += [f"-X {version}.gitMajor={major}", f"-X {version}.gitMinor={minor}"]
    return ["-trimpath", "-gcflags=all=-dwarf=false", "-ldflags", " ".join(link)]


def _keep_crds(layout: Layout, component: Component) -> None:
    """KubeRay's CRDs are plain files of its Go module; they must outlive the module cache."""
    folder = run(
        ["go", "list", "-m", "-f", "{{.Dir}}", component.requires],
        part="KubeRay's CRDs",
        env=_environment(layout),
        cwd=component.module,
    ).strip()
    shutil.rmtree(layout.crds, ignore_errors=True)
    shutil.copytree(Path(folder) / "config" / "crd" / "bases", layout.crds)
