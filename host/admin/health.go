package admin

import (
	"fmt"
	"net/http"
	"strings"
)

// livez says that the process answers, and nothing else: to restart a host because a broker is down helps nobody.
func livez(w http.ResponseWriter, _ *http.Request) {
	plain(w, http.StatusOK, "ok\n")
}

// readyz says whether the host has started and is not about to end. The pipelines' states stand below for whoever
// looks; they do not change the answer, and a host that is standing by is ready.
func readyz(src Source) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		status, text := http.StatusOK, "ready"
		switch {
		case src.Draining():
			status, text = http.StatusServiceUnavailable, "draining"
		case !src.Started():
			status, text = http.StatusServiceUnavailable, "starting"
		}
		var b strings.Builder
		b.WriteString(text + "\n")
		for _, p := range src.Pipelines() {
			fmt.Fprintf(&b, "%s %s\n", p.Name, p.State)
		}
		plain(w, status, b.String())
	})
}

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // the client may have gone
}
