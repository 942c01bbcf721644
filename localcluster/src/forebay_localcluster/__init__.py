"""The real Kubernetes programs as child processes on loopback."""
