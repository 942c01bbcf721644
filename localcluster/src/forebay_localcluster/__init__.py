"""The real Kubernetes programs as child processes on loopback.

Three parts, each usable alone: the programs (`pins`, `locate`, `golang`, `build`), the plan of a cluster (`control_plane`,
`certificates`, `ports`, `plan`), and the process that keeps one (`supervisor`, `children`, `control`, `launch`). On top stands
`cluster.Cluster`. Nothing here knows Forebay: what it runs beside the control plane comes from the caller, as
`plan.ExtraProgram`s.

Import from the modules: this one imports nothing, so that the supervisor starts with what it needs only.
"""
