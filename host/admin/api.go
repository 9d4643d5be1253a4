package admin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"

	"github.com/relevo-io/relevo/host/pipeline"
)

// apiError is the body of every answer of the API that is not what was asked for, as {"error": …}.
type apiError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

func listPipelines(src Source) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		all := src.Pipelines()
		shown := make([]pipeline.Status, 0, len(all)) // [] and not null
		for _, s := range all {
			shown = append(shown, printable(s))
		}
		writeJSON(w, http.StatusOK, shown)
	})
}

func onePipeline(src Source) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		all := src.Pipelines()
		i := slices.IndexFunc(all, func(s pipeline.Status) bool { return s.Name == r.PathValue("name") })
		if i < 0 {
			writeError(w, http.StatusNotFound, apiError{
				Code:    "no_such_pipeline",
				Message: fmt.Sprintf("there is no pipeline %q", r.PathValue("name")),
				Hint:    "GET /api/v1/pipelines lists them",
			})
			return
		}
		writeJSON(w, http.StatusOK, printable(all[i]))
	})
}

func noSuchPath(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		writeError(w, http.StatusMethodNotAllowed, apiError{Code: "method_not_allowed", Message: "the API only reads"})
		return
	}
	writeError(w, http.StatusNotFound, apiError{
		Code:    "no_such_path",
		Message: "the API has no such path",
		Hint:    "it has /api/v1/pipelines and /api/v1/pipelines/NAME",
	})
}

// printable returns a copy that JSON can express: lists are never null, and numbers that are not finite, which a
// plugin may report (I10), are left out.
func printable(s pipeline.Status) pipeline.Status {
	if s.Held == nil {
		s.Held = []pipeline.HeldKey{}
	}
	s.Source.ReadRate = finite(s.Source.ReadRate)
	if o := s.Source.OldestUnpublishedSecond; o != nil && finite(*o) != *o {
		s.Source.OldestUnpublishedSecond = nil
	}
	s.Source.Metrics = finiteOnes(s.Source.Metrics)
	s.Sinks = append([]pipeline.SinkStatus{}, s.Sinks...)
	for i := range s.Sinks {
		s.Sinks[i].SettleRate = finite(s.Sinks[i].SettleRate)
		s.Sinks[i].Metrics = finiteOnes(s.Sinks[i].Metrics)
	}
	return s
}

func finite(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	return v
}

func finiteOnes(m map[string]float64) map[string]float64 {
	m = maps.Clone(m)
	maps.DeleteFunc(m, func(_ string, v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
	return m
}

func writeError(w http.ResponseWriter, status int, e apiError) {
	writeJSON(w, status, map[string]apiError{"error": e})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(v); err != nil {
		panic(fmt.Sprintf("BUG: encode %T: %v", v, err)) // net/http logs it and ends this request alone
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // the client may have gone
}
