{{/*
What each component may do. "rules" hold in the served namespaces (or everywhere), "clusterRules" are for cluster-scoped
kinds, "leaseRules" hold in the release's namespace. Each right is one that the component uses; tests/charts checks both ways.
*/}}

{{- define "forebay.operator.rules" -}}
- apiGroups: [forebay.dev]
  resources: [modelservices]
  verbs: [get, list, watch]
- apiGroups: [forebay.dev]
  resources: [workerpools]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [forebay.dev]
  resources: [modelservices/status, workerpools/status, workerpools/scale]
  verbs: [patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [get, create, patch]
{{- end -}}

{{- define "forebay.operator.clusterRules" -}}
- apiGroups: [forebay.dev]
  resources: [acceleratorclasses]
  verbs: [get, list, watch]
{{- end -}}

{{- define "forebay.router.rules" -}}
- apiGroups: [forebay.dev]
  resources: [modelservices]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
{{- end -}}

{{/* Without them the router assumes a speed of workers until it has learnt theirs. */}}
{{- define "forebay.router.clusterRules" -}}
- apiGroups: [forebay.dev]
  resources: [acceleratorclasses]
  verbs: [list, watch]
{{- end -}}

{{/* To find the other replicas, in the release's namespace. */}}
{{- define "forebay.router.peerRules" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
{{- end -}}

{{- define "forebay.autoscaler.rules" -}}
- apiGroups: [forebay.dev]
  resources: [modelservices, workerpools]
  verbs: [list]
- apiGroups: [forebay.dev]
  resources: [modelservices/status, workerpools/scale]
  verbs: [patch]
# To name the autoscaler that fights over a pool.
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [list]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}

{{- define "forebay.autoscaler.clusterRules" -}}
- apiGroups: [forebay.dev]
  resources: [acceleratorclasses]
  verbs: [list]
{{- end -}}

{{/* The Lease by which one of the replicas acts. `create` cannot be bound to a name. */}}
{{- define "forebay.leaseRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "forebay.name" . }}]
  verbs: [get, update]
{{- end -}}

{{/* To see whether the autoscaler is there. */}}
{{- define "forebay.attendanceRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "forebay.name" (list . "autoscaler") }}]
  verbs: [get]
{{- end -}}

{{/* To ask routers for workers that they leave alone and, while a pool sleeps, for requests that they hold; in the release's namespace. */}}
{{- define "forebay.wakeRules" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [list]
{{- end -}}

{{/* Where what was learnt outlives the replicas. `create` cannot be bound to a name. */}}
{{- define "forebay.stateRules" -}}
{{- if .Values.autoscaler.stateMaps -}}
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create]
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [{{ include "forebay.stateMaps" . | trim | replace " " ", " }}]
  verbs: [get, patch]
{{- end -}}
{{- end -}}

{{/* Names of the ConfigMaps, with blanks between. */}}
{{- define "forebay.stateMaps" -}}
{{- range $number := until (int .Values.autoscaler.stateMaps) -}}
{{- include "forebay.name" (list $ "autoscaler") }}-state-{{ $number }} {{ end -}}
{{- end -}}

{{/* The subject of a binding. */}}
{{- define "forebay.subjects" -}}
- kind: ServiceAccount
  name: {{ include "forebay.serviceAccount" . }}
  namespace: {{ (index . 0).Release.Namespace }}
{{- end -}}
