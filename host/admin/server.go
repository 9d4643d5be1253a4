// Package admin is the host's HTTP server: health for probes, metrics for scrapers, and the API and the page that show
// a person the pipelines.
//
// Health and metrics answer everybody who can reach the port. The API, which the page reads, shows keys, event ids and
// the words of brokers: it answers this machine, and others only with the token.
package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/relevo-io/relevo/host/pipeline"
)

// ErrListen means that the address cannot be listened on; the cause, often syscall.EADDRINUSE, is wrapped beside it.
var ErrListen = errors.New("listen")

const (
	headerTimeout   = 5 * time.Second
	readTimeout     = 10 * time.Second
	writeTimeout    = 30 * time.Second
	idleTimeout     = 2 * time.Minute
	maxHeaderBytes  = 64 << 10
	shutdownTimeout = 5 * time.Second
)

// Source is where the server gets what it shows. Its methods are called from several goroutines and return at once.
type Source interface {
	// Pipelines returns the status of every pipeline, in the order in which they are to be shown. The caller changes
	// nothing in it.
	Pipelines() []pipeline.Status
	// Started reports that the configuration, the state and the listener are up and every pipeline had its first start
	// attempt, successful or not.
	Started() bool
	// Draining reports that the host has been told to stop.
	Draining() bool
}

// Settings say what to serve, and where.
type Settings struct {
	Addr    string       // host:port; an empty host is every interface
	Token   string       // lets others than this machine read the API; empty: nobody
	Source  Source       // required
	Metrics http.Handler // serves /metrics; required
	Logger  *slog.Logger // required
}

// Server is the admin server, listening but not yet answering. Run or Close ends it.
type Server struct {
	listener net.Listener
	http     *http.Server
}

// Listen takes the address, so that a port that is taken is known before anything is started. Connections wait until
// Run. Its error is ErrListen.
func Listen(ctx context.Context, s Settings) (*Server, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%w on %q: %w: another program, perhaps another relevo, has it; set listen to another address",
			ErrListen, s.Addr, syscall.EADDRINUSE)
	}
	if err != nil {
		return nil, fmt.Errorf("%w on %q: %w", ErrListen, s.Addr, err)
	}
	return &Server{
		listener: l,
		http: &http.Server{
			Handler:           routes(s),
			ReadHeaderTimeout: headerTimeout,
			ReadTimeout:       readTimeout,
			WriteTimeout:      writeTimeout,
			IdleTimeout:       idleTimeout,
			MaxHeaderBytes:    maxHeaderBytes,
			ErrorLog:          slog.NewLogLogger(s.Logger.Handler(), slog.LevelWarn),
		},
	}, nil
}

// Addr is where the server listens, for an address whose port was 0.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Run answers requests until ctx is done, and then returns nil once those under way have ended, or after five seconds.
// It may be called once.
func (s *Server) Run(ctx context.Context) error {
	served := make(chan error, 1) // capacity 1: the goroutine ends whether or not we still read
	go func() { served <- s.http.Serve(s.listener) }()

	select {
	case err := <-served:
		return fmt.Errorf("serve %s: %w", s.Addr(), err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := s.http.Shutdown(grace); err != nil {
		_ = s.http.Close() // a client that does not read its answer does not keep the host from ending
	}
	<-served
	return nil
}

// Close gives the address back, for a server that is not to run after all.
func (s *Server) Close() error {
	return errors.Join(s.http.Close(), s.listener.Close())
}

func routes(s Settings) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", livez)
	mux.Handle("GET /readyz", readyz(s.Source))
	mux.Handle("GET /metrics", s.Metrics)

	api := http.NewServeMux()
	api.Handle("GET /api/v1/pipelines", listPipelines(s.Source))
	api.Handle("GET /api/v1/pipelines/{name}", onePipeline(s.Source))
	api.HandleFunc("/", noSuchPath)
	mux.Handle("/api/", guard(s.Token, api))

	mux.Handle("GET /{$}", page("index.html", "text/html; charset=utf-8"))
	mux.Handle("GET /page.js", page("page.js", "text/javascript; charset=utf-8"))
	mux.Handle("GET /page.css", page("page.css", "text/css; charset=utf-8"))
	return secureHeaders(mux)
}
