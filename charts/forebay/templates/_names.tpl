{{/* What everything is called and labelled. */}}

{{- define "forebay.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains "forebay" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-forebay" (.Release.Name | trunc 32 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{/* Name of a component: (list $ "router"). */}}
{{- define "forebay.name" -}}
{{- printf "%s-%s" (include "forebay.fullname" (index . 0)) (index . 1) -}}
{{- end -}}

{{/* Name of a cluster-scoped object of a component; two releases never share one. */}}
{{- define "forebay.clusterName" -}}
{{- printf "%s:%s" (index . 0).Release.Namespace (include "forebay.name" .) -}}
{{- end -}}

{{/* What a component's pods are selected by. It never changes: no version, no chart. */}}
{{- define "forebay.selector" -}}
app.kubernetes.io/name: forebay
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* The same as one label selector in text. */}}
{{- define "forebay.selectorText" -}}
{{- $parts := list -}}
{{- range $label, $value := include "forebay.selector" . | fromYaml -}}
{{- $parts = append $parts (printf "%s=%s" $label $value) -}}
{{- end -}}
{{- join "," $parts -}}
{{- end -}}

{{- define "forebay.labels" -}}
{{ include "forebay.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "forebay.serviceAccount" -}}
{{- $account := (index (index . 0).Values (index . 1)).serviceAccount -}}
{{- $account.name | default (include "forebay.name" .) -}}
{{- end -}}

{{- define "forebay.image" -}}
{{- $values := (index . 0).Values -}}
{{- $image := (index $values (index . 1)).image -}}
{{- $registry := $values.image.registry | trimSuffix "/" -}}
{{- $repository := empty $registry | ternary $image.repository (printf "%s/%s" $registry $image.repository) -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository ($image.tag | default $values.image.tag | default (index . 0).Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* The components of this release, separated by spaces. */}}
{{- define "forebay.components" -}}
operator router {{- if .Values.autoscaler.enabled }} autoscaler {{- end }}
{{- end -}}

{{/* Whether objects of the Prometheus operator are made, which are asked for and of a kind that the cluster knows:
(list $ "podMonitors" "PodMonitor"). */}}
{{- define "forebay.monitoring" -}}
{{- $known := (index . 0).Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" (index . 2)) -}}
{{- $values := index (index . 0).Values (index . 1) -}}
{{- if and $values.enabled (or $known $values.assumeKinds) }}yes{{ end -}}
{{- end -}}
