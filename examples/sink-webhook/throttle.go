package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/relevo-io/relevo/sdk"
)

const (
	// maxRetryAfter caps what one answer can ask for: a receiver that wants no requests for years may change its mind.
	maxRetryAfter = time.Hour
	// patience is how long an event waits here. One that would wait longer fails, so that the host shows why nothing
	// moves, and comes again.
	patience = 10 * time.Second
)

// throttle keeps requests back for as long as the receiver asks. The host has the retry policy, but it does not know of
// Retry-After: it may try earlier, and then nothing is sent.
type throttle struct {
	mu    sync.Mutex
	until time.Time
}

// hold keeps requests back until then.
func (t *throttle) hold(until time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if until.After(t.until) {
		t.until = until
	}
}

// wait returns nil when a request may be made.
func (t *throttle) wait(ctx context.Context) error {
	for {
		t.mu.Lock()
		until := t.until
		t.mu.Unlock()
		left := time.Until(until)
		switch {
		case left <= 0:
			return nil
		case left > patience:
			return sdk.Transient(fmt.Errorf("the receiver has asked for no requests until %s", until.Format(time.RFC3339))).
				WithCode(codeThrottled)
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}

// retryAfter reads the header of that name (RFC 9110, 10.2.3): seconds, or a date. Zero: it is not there, or says neither.
func retryAfter(h http.Header, now time.Time) time.Time {
	text := h.Get("Retry-After")
	until, err := http.ParseTime(text)
	if err != nil {
		seconds, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			return time.Time{}
		}
		until = now.Add(time.Duration(seconds) * time.Second)
	}
	if latest := now.Add(maxRetryAfter); until.After(latest) {
		return latest
	}
	return until
}
