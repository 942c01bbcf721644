{{/* The parts of a Deployment that the components share. Each takes (list $ "component"). */}}

{{/* Who a pod is and where it may run: everything of a pod's spec but its containers. */}}
{{- define "forebay.pod" -}}
{{- $root := index . 0 -}}
{{- $component := index $root.Values (index . 1) -}}
serviceAccountName: {{ include "forebay.serviceAccount" . }}
automountServiceAccountToken: true
enableServiceLinks: false
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $root.Values.podSecurityContext }}
securityContext: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $component.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $component.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $component.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $component.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
{{- if $component.topologySpreadConstraints }}
  {{- toYaml $component.topologySpreadConstraints | nindent 2 }}
{{- else }}
  {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - topologyKey: {{ $key }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "forebay.selector" $ | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- end }}
volumes:
  - name: tmp
    emptyDir: {sizeLimit: 64Mi}
{{- end -}}

{{/* Labels and annotations of a pod. */}}
{{- define "forebay.podMetadata" -}}
{{- $component := index (index . 0).Values (index . 1) -}}
{{- range $label, $_ := $component.podLabels }}
{{- if or (hasPrefix "forebay.dev/" $label) (hasKey (include "forebay.selector" $ | fromYaml) $label) }}
{{- fail (printf "%s.podLabels must not set %s: the pods are told apart by it; remove it" (index $ 1) $label) }}
{{- end }}
{{- end }}
labels:
  {{- include "forebay.selector" . | nindent 2 }}
  {{- with $component.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $component.podAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The parts of a container that do not depend on its command: image, rights, probes, resources, mounts. */}}
{{- define "forebay.container" -}}
{{- $root := index . 0 -}}
{{- $component := index $root.Values (index . 1) -}}
name: {{ index . 1 }}
image: {{ include "forebay.image" . }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
{{- with $root.Values.securityContext }}
securityContext: {{- toYaml . | nindent 2 }}
{{- end }}
startupProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 1
  timeoutSeconds: 2
  failureThreshold: 60
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
resources: {{- toYaml $component.resources | nindent 2 }}
volumeMounts:
  - name: tmp
    mountPath: /tmp
{{- end -}}

{{/* Environment of every component. */}}
{{- define "forebay.environment" -}}
{{- $component := index (index . 0).Values (index . 1) -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- with $component.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}
