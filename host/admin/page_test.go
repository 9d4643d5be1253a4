package admin

import (
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/host/pipeline"
)

func pageFile(t *testing.T, name string) string {
	t.Helper()
	b, err := pageFiles.ReadFile("page/" + name)
	require.NoError(t, err)
	return string(b)
}

// The page works where nothing but the host can be reached, and under its own content security policy.
func TestThePageLoadsNothingFromElsewhere(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"index.html", "page.js", "page.css"} {
		text := strings.ReplaceAll(pageFile(t, name), "http://www.w3.org/2000/svg", "") // a name, not an address
		require.NotRegexp(t, `https?://|//[a-z]+\.[a-z]|@import|url\(`, text, name)
		require.NotRegexp(t, `innerHTML|insertAdjacentHTML|document\.write|eval\(`, text, name)
	}
	require.NotRegexp(t, `<style|style=|<script>|\son[a-z]+=`, pageFile(t, "index.html"), "the policy refuses inline code")
}

func TestThePageKnowsEveryState(t *testing.T) {
	t.Parallel()
	js := pageFile(t, "page.js")
	for _, state := range pipeline.States {
		require.Regexp(t, regexp.MustCompile(`\b`+string(state)+`: \["(good|calm|warn|bad)", "."\]`), js)
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	h := routes(settings(&stubSource{}, ""))
	for path, contentType := range map[string]string{
		"/": "text/html; charset=utf-8", "/page.js": "text/javascript; charset=utf-8", "/page.css": "text/css; charset=utf-8",
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		require.Equal(t, contentType, w.Header().Get("Content-Type"))
		require.Contains(t, w.Header().Get("Content-Security-Policy"), "default-src 'none'")
		require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
	}
}
