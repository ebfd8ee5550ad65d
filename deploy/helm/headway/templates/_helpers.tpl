{{- define "headway.name" -}}
{{- printf "%s-%s" .root.Release.Name .part | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "headway.labels" -}}
app.kubernetes.io/name: headway
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{- define "headway.image" -}}
{{- $repository := required "image.repository is required: an image built FROM headway, with your tasks" .Values.image.repository -}}
{{- $tag := required "image.tag is required: a tag, or a digest that begins with sha256:" .Values.image.tag | toString -}}
{{- if hasPrefix "sha256:" $tag -}}{{ $repository }}@{{ $tag }}{{- else -}}{{ $repository }}:{{ $tag }}{{- end -}}
{{- end -}}

{{- define "headway.pod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "headway.container" -}}
image: {{ include "headway.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
{{- end -}}

{{- define "headway.env" -}}
- name: HEADWAY_STORE
  valueFrom:
    secretKeyRef:
      name: {{ .Values.store.secretName | quote }}
      key: {{ .Values.store.secretKey | quote }}
{{- if .Values.history.secretName }}
- name: HEADWAY_HISTORY
  valueFrom:
    secretKeyRef:
      name: {{ .Values.history.secretName | quote }}
      key: {{ .Values.history.secretKey | quote }}
{{- end }}
- name: HEADWAY_GRACE
  value: {{ .Values.grace | quote }}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}
