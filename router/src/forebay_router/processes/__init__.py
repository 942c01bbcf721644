"""Several processes on one port, for several cores: a parent that serves no client, and children that are whole routers.

    clients --> one port, opened by every child (SO_REUSEPORT: the kernel spreads connections over them)
    children <-> parent's hub <-> other replicas      the mesh, so that a child's choice knows what the others do
    Prometheus, kubelet, people --> parent's control port --> each child's own, on a socket file

Nothing is shared but the port: each child has its own table, index and connections to workers.
"""
