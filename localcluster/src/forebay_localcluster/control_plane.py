"""The command lines of the Kubernetes programs, etcd and Prometheus. Pure: settings and paths in, a plan out.

What differs from a cluster in production, and why:

- etcd does not wait for the disk (`--unsafe-no-fsync`): its data outlives a killed process, not a power cut, and a start
  is not held up by a slow disk.
- Nothing elects a leader: there is one of each. A controller manager that leads keeps running while the API server is down,
  one that lost an election would end.
- The API server writes no Endpoints of itself: Endpoints refuse loopback addresses.
- Clients of the API server are hardly throttled, so that tests are not slowed by a courtesy to others.

Everything else is as in production: TLS everywhere, Node and RBAC authorisation, a service account for each controller.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from forebay_localcluster.errors import LocalClusterError
from forebay_localcluster.layout import Layout
from forebay_localcluster.locate import Programs
from forebay_localcluster.pins import Program
from forebay_localcluster.plan import Check, HttpCheck, ProgramPlan
from forebay_localcluster.ports import LOOPBACK

SERVICE_RANGE = "10.96.0.0/16"
FIRST_SERVICE = "10.96.0.1"
"""The address of the Service `kubernetes`; certified, though nothing on a local cluster routes to it."""
BOOTSTRAP = "bootstrap"
PROMETHEUS_USER = "forebay-localcluster:prometheus"
API_HOSTS = (
    LOOPBACK,
    FIRST_SERVICE,
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
PORT_USERS = (
    Program.ETCD,
    Program.API_SERVER,
    Program.CONTROLLER_MANAGER,
    Program.SCHEDULER,
    Program.PROMETHEUS,
)
"""The programs that listen, in the order in which they are given ports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a caller may choose about a cluster."""

    prometheus: bool = True
    scrape_interval_s: float = 2.0
    scraping: str | None = None
    """A prometheus.yml to use instead of the default; `Cluster.prometheus_kubeconfig` reaches the API server."""
    node_grace_s: int = 40
    """How long a silent node stays Ready. It must outlast an API server that is away for some seconds: clients come back
    with growing pauses, and a node must not be blamed for that."""
    pod_grace_s: int = 60
    """How long pods stay bound to a node that is not Ready or not reachable (production: 300)."""
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Further flags by program, put last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where a cluster is: its files, programs and ports."""

    layout: Layout
    programs: Programs
    ports: Mapping[Program, int]

    @property
    def server(self) -> str:
        """The API server's URL."""
        return f"https://{LOOPBACK}:{self.ports[Program.API_SERVER]}"

    def pem(self, name: str) -> str:
        """Return the path of a certificate or key."""
        return str(self.layout.pem(name))

    def kubeconfig(self, user: str) -> str:
        """Return the path of a user's kubeconfig."""
        return str(self.layout.kubeconfigs / f"{user}.yaml")

    def plan(
        self, program: Program, flags: tuple[str, ...], *, after: tuple[str, ...], ready: tuple[Check, ...]
    ) -> ProgramPlan:
        """Return how a program of the control plane is run."""
        return ProgramPlan(
            name=program,
            argv=(str(self.programs[program].path), *flags),
            log=str(self.layout.log(program)),
            after=after,
            ready=ready,
            version=self.programs[program].version,
            port=self.ports[program],
        )


def plan_control_plane(site: Site, settings: Settings) -> tuple[ProgramPlan, ...]:
    """Return every program of the cluster but the caller's own."""
    programs = [_etcd(site), _api_server(site, settings), _controller_manager(site, settings), _scheduler(site)]
    if settings.prometheus:
        programs += [_bootstrap(site), _prometheus(site)]
    unknown = set(settings.flags) - {program.name for program in programs}
    if unknown:
        raise LocalClusterError(f"settings.flags: this cluster runs no {', '.join(sorted(unknown))}")
    return tuple(replace(program, argv=program.argv + settings.flags.get(program.name, ())) for program in programs)


def bootstrap_objects() -> str:
    """Return the objects that the cluster itself needs, as YAML: Prometheus may find pods, and nothing else."""
    return f"""\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {PROMETHEUS_USER}
rules:
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {PROMETHEUS_USER}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {PROMETHEUS_USER}
subjects:
- apiGroup: rbac.authorization.k8s.io
  kind: User
  name: {PROMETHEUS_USER}
"""


def _etcd(site: Site) -> ProgramPlan:
    client = f"https://{LOOPBACK}:{site.ports[Program.ETCD]}"
    flags = (
        "--name=local",
        f"--data-dir={site.layout.etcd}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--cert-file={site.pem('etcd-server')}",
        f"--key-file={site.pem('etcd-server-key')}",
        f"--trusted-ca-file={site.pem('etcd-authority')}",
        "--client-cert-auth",
        # A cluster of one never dials its peers: any port will do, and the kernel picks a free one.
        f"--listen-peer-urls=https://{LOOPBACK}:0",
        f"--initial-advertise-peer-urls=https://{LOOPBACK}:2380",
        f"--initial-cluster=local=https://{LOOPBACK}:2380",
        f"--peer-cert-file={site.pem('etcd-server')}",
        f"--peer-key-file={site.pem('etcd-server-key')}",
        f"--peer-trusted-ca-file={site.pem('etcd-authority')}",
        "--peer-client-cert-auth",
        "--unsafe-no-fsync",
        # Alone it elects itself, and need not wait a second first.
        "--heartbeat-interval=10",
        "--election-timeout=100",
        "--logger=zap",
        "--log-level=warn",
    )
    ready = HttpCheck(
        url=f"{client}/health",
        authority=site.pem("etcd-authority"),
        certificate=site.pem("etcd-client"),
        key=site.pem("etcd-client-key"),
    )
    return site.plan(Program.ETCD, flags, after=(), ready=(ready,))


def _api_server(site: Site, settings: Settings) -> ProgramPlan:
    flags = (
        f"--etcd-servers=https://{LOOPBACK}:{site.ports[Program.ETCD]}",
        f"--etcd-cafile={site.pem('etcd-authority')}",
        f"--etcd-certfile={site.pem('etcd-client')}",
        f"--etcd-keyfile={site.pem('etcd-client-key')}",
        f"--bind-address={LOOPBACK}",
        f"--advertise-address={LOOPBACK}",
        f"--secure-port={site.ports[Program.API_SERVER]}",
        f"--tls-cert-file={site.pem('server')}",
        f"--tls-private-key-file={site.pem('server-key')}",
        f"--client-ca-file={site.pem('authority')}",
        f"--requestheader-client-ca-file={site.pem('proxy-authority')}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={site.pem('proxy-client')}",
        f"--proxy-client-key-file={site.pem('proxy-client-key')}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={site.pem('tokens-public')}",
        f"--service-account-signing-key-file={site.pem('tokens')}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--allow-privileged=true",
        "--endpoint-reconciler-type=none",
        f"--default-not-ready-toleration-seconds={settings.pod_grace_s}",
        f"--default-unreachable-toleration-seconds={settings.pod_grace_s}",
        "--profiling=false",
    )
    ready = _check(site, f"{site.server}/readyz")
    return site.plan(Program.API_SERVER, flags, after=(Program.ETCD,), ready=(ready,))


def _controller_manager(site: Site, settings: Settings) -> ProgramPlan:
    kubeconfig = site.kubeconfig("controller-manager")
    flags = (
        *_delegating(site, Program.CONTROLLER_MANAGER, kubeconfig),
        f"--service-account-private-key-file={site.pem('tokens')}",
        f"--root-ca-file={site.pem('authority')}",
        f"--cluster-signing-cert-file={site.pem('authority')}",
        f"--cluster-signing-key-file={site.pem('authority-key')}",
        "--use-service-account-credentials=true",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        f"--node-monitor-grace-period={settings.node_grace_s}s",
        "--node-monitor-period=2s",
    )
    ready = (
        _check(site, f"https://{LOOPBACK}:{site.ports[Program.CONTROLLER_MANAGER]}/healthz"),
        # A pod is refused while its namespace has no service account: without this one the cluster is of no use yet.
        _check(site, f"{site.server}/api/v1/namespaces/default/serviceaccounts/default"),
    )
    return site.plan(Program.CONTROLLER_MANAGER, flags, after=(Program.API_SERVER,), ready=ready)


def _scheduler(site: Site) -> ProgramPlan:
    flags = (
        *_delegating(site, Program.SCHEDULER, site.kubeconfig("scheduler")),
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    )
    ready = _check(site, f"https://{LOOPBACK}:{site.ports[Program.SCHEDULER]}/readyz")
    return site.plan(Program.SCHEDULER, flags, after=(Program.API_SERVER,), ready=(ready,))


def _delegating(site: Site, program: Program, kubeconfig: str) -> tuple[str, ...]:
    """Return the flags of a component that asks the API server who its own callers are."""
    return (
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--bind-address={LOOPBACK}",
        f"--secure-port={site.ports[program]}",
        f"--tls-cert-file={site.pem('server')}",
        f"--tls-private-key-file={site.pem('server-key')}",
        "--leader-elect=false",
        "--profiling=false",
    )


def _bootstrap(site: Site) -> ProgramPlan:
    kubectl = site.programs[Program.KUBECTL]
    return ProgramPlan(
        name=BOOTSTRAP,
        argv=(
            *(str(kubectl.path), f"--kubeconfig={site.layout.kubeconfig}", f"--cache-dir={site.layout.data / 'cache'}"),
            *("apply", "--server-side", f"--filename={site.layout.bootstrap}"),
        ),
        log=str(site.layout.log(BOOTSTRAP)),
        after=(Program.API_SERVER,),
        runs_once=True,
        version=kubectl.version,
    )


def _prometheus(site: Site) -> ProgramPlan:
    address = f"{LOOPBACK}:{site.ports[Program.PROMETHEUS]}"
    flags = (
        f"--config.file={site.layout.scraping}",
        f"--storage.tsdb.path={site.layout.prometheus}",
        "--storage.tsdb.retention.time=2d",
        f"--web.listen-address={address}",
        "--web.enable-lifecycle",
        "--log.level=warn",
    )
    ready = HttpCheck(url=f"http://{address}/-/ready")
    return site.plan(Program.PROMETHEUS, flags, after=(BOOTSTRAP,), ready=(ready,))


def _check(site: Site, url: str) -> HttpCheck:
    return HttpCheck(
        url=url,
        authority=site.pem("authority"),
        certificate=site.pem("admin"),
        key=site.pem("admin-key"),
    )
