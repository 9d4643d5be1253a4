// Command receiver is something to try a webhook with: it prints every event that is posted to it, and answers 200.
//
//	receiver -listen 127.0.0.1:8080
//
// An event whose body is "refuse me" it answers 422. For relevo plugins test it does what conformance.yaml asks of it, over
// the same port: `receiver ids` prints the ids that it has accepted, in order, `receiver away` has it hang up on everybody
// until `receiver back`.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
)

func main() {
	addr := flag.String("listen", "127.0.0.1:8080", "address to listen on, or to talk to")
	quiet := flag.Bool("quiet", false, "print no events")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r := &receiver{out: os.Stdout}
	if *quiet {
		r.out = io.Discard
	}
	var err error
	if command := flag.Arg(0); command != "" {
		err = ask(ctx, *addr, command)
	} else {
		err = serve(ctx, *addr, r)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "receiver:", err)
		os.Exit(1)
	}
}

// serve serves until the context ends. The first line on stdout says where.
func serve(ctx context.Context, addr string, r *receiver) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	fmt.Println("listening on", l.Addr())
	mux := http.NewServeMux()
	mux.HandleFunc("POST /", r.event)
	mux.HandleFunc("GET /-/ids", r.printIDs)
	mux.HandleFunc("GET /-/away", r.setAway(true))
	mux.HandleFunc("GET /-/back", r.setAway(false))
	s := &http.Server{Handler: mux}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// ask has a running receiver do something.
func ask(ctx context.Context, addr, command string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/-/"+command, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", command, res.Status)
	}
	_, err = io.Copy(os.Stdout, res.Body)
	return err
}

// receiver takes events.
type receiver struct {
	mu   sync.Mutex
	out  io.Writer
	ids  []string // accepted, in order, repeats included
	away bool
}

func (r *receiver) event(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // the sender has gone
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.away {
		panic(http.ErrAbortHandler)
	}
	if bytes.Equal(body, []byte("refuse me")) {
		http.Error(w, "it asks to be refused", http.StatusUnprocessableEntity)
		return
	}
	id := attribute(req, "ce-id")
	r.ids = append(r.ids, id)
	_, _ = fmt.Fprintf(r.out, "%s %s key=%s type=%s %.200q\n", req.URL.Path, id, attribute(req, "ce-subject"), attribute(req, "ce-type"), body)
}

// attribute is what is known of an event: what a header cannot carry is %XX in it (CloudEvents, HTTP binding 3.1.3.2).
func attribute(req *http.Request, name string) string {
	value, err := url.PathUnescape(req.Header.Get(name))
	if err != nil {
		return req.Header.Get(name)
	}
	return value
}

func (r *receiver) printIDs(w http.ResponseWriter, _ *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = io.WriteString(w, strings.Join(r.ids, "\n")+"\n")
}

func (r *receiver) setAway(away bool) http.HandlerFunc {
	return func(http.ResponseWriter, *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.away = away
	}
}
