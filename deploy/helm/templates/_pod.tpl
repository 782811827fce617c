{{/* What every container of the chart has in common. */}}
{{- define "clog.container" -}}
image: {{ .Values.image }}
{{- with .Values.storageOptionsSecret }}
env:
  - name: CLOG_STORAGE_OPTIONS
    valueFrom: {secretKeyRef: {name: {{ . }}, key: storage-options}}
{{- end }}
resources: {{- toYaml .Values.resources | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "clog.pod" -}}
serviceAccountName: clog-cleaner
securityContext:
  runAsNonRoot: true
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "clog.discover" -}}
{{- range .Values.discover }}
- --discover
- {{ . | quote }}
{{- end }}
{{- end }}
