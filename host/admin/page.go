package admin

import (
	"embed"
	"net/http"
)

//go:embed page
var pageFiles embed.FS

// page serves one file of the page. It shows nothing by itself: what it reads, the API guards.
func page(name, contentType string) http.Handler {
	body, err := pageFiles.ReadFile("page/" + name)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(body) // the client may have gone
	})
}
