"""The real Kubernetes programs as child processes on loopback.

Three parts, each usable alone: the programs (`pins`, `locate`, `golang`, `build`), the plan of a cluster (`control_plane`,
`certificates`, `ports`, `plan`), and the process that keeps one (`supervisor`, `children`, `control`, `launch`).
`cluster.Cluster` joins them. Nothing here knows Forebay: what it runs beside the control plane comes as `plan.ExtraProgram`s from the
caller.

Import from the modules: this one imports nothing, so that the supervisor starts with what it needs only.
"""
