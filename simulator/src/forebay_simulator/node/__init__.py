"""The simulated node: runs the pods that a real scheduler binds to it as local processes, as a kubelet would."""
