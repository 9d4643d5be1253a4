// Package deploy is what an operator takes along: alerts for Prometheus and a dashboard for Grafana. Its tests hold both, and
// docs/operating.md, to the code: what they name exists, and what the code can say is explained.
package deploy
