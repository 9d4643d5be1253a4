package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/relevo-io/relevo/sdk"
)

// exitCrash is the status of a crash that was asked for.
const exitCrash = 3

// pollInterval is how often the sink looks whether a file has appeared.
const pollInterval = 20 * time.Millisecond

type sink struct {
	c        config
	s        *sdk.SinkStream
	refused  map[string]int // by key or id, over all streams of the process; one is open at a time
	record   *os.File
	accepted int
	line     []byte
	seqs     []uint64
}

func run(ctx context.Context, o sdk.SinkOpen[config], s *sdk.SinkStream, refused map[string]int) error {
	c := o.Config
	if c.OpenFault != "" {
		return fault(c.OpenFault)
	}
	k := &sink{c: c, s: s, refused: refused}
	if c.Record != "" {
		f, err := os.OpenFile(c.Record, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return sdk.Config(err).WithCode("record")
		}
		defer func() { _ = f.Close() }()
		k.record = f
	}
	if err := s.Opened(sdk.SinkOpened{KeepsOrder: c.KeepsOrder}); err != nil {
		return err
	}
	if c.DownUntil != "" {
		if err := s.Status(sdk.SinkStatus{State: sdk.SinkDown, Text: "told to be down", OldestUnconfirmed: -1}); err != nil {
			return err
		}
		if !await(ctx, c.DownUntil) {
			return context.Cause(ctx)
		}
	}
	if err := s.Status(sdk.SinkStatus{State: sdk.SinkOK}); err != nil {
		return err
	}
	for r := range s.Requests() {
		switch r := r.(type) {
		case *sdk.Events:
			if err := k.accept(r.Items); err != nil {
				return err
			}
		case sdk.Stop:
			if c.HangOnStop {
				<-ctx.Done()
				return context.Cause(ctx)
			}
			return nil
		}
	}
	return context.Cause(ctx)
}

// accept acks, refuses or returns each event. Nothing is acked before it is recorded.
func (k *sink) accept(items []sdk.Item) error {
	k.line, k.seqs = k.line[:0], k.seqs[:0]
	crash := false
	for i := range items {
		it := &items[i]
		switch {
		case k.c.CrashOnID != "" && it.ID == k.c.CrashOnID:
			os.Exit(exitCrash)
		case k.s.Failed(it):
			k.s.Return(it.Seq)
			continue
		case k.refuses(it):
			k.s.Fail(it, fault(k.c.FailClass))
			continue
		}
		k.accepted++
		if k.record != nil {
			k.line = fmt.Appendf(k.line, "%d %s %s %s\n", it.Seq, it.ID, orDash(string(it.Key)), orDash(it.Destination))
		}
		if crash = k.accepted == k.c.CrashAfter; crash {
			break
		}
		if k.c.HangAfter == 0 || k.accepted <= k.c.HangAfter {
			k.seqs = append(k.seqs, it.Seq)
		}
	}
	if len(k.line) > 0 {
		if _, err := k.record.Write(k.line); err != nil {
			return err
		}
	}
	if crash {
		os.Exit(exitCrash)
	}
	k.s.Ack(k.seqs...)
	return nil
}

func (k *sink) refuses(it *sdk.Item) bool {
	var name string
	switch {
	case len(k.c.FailKeys) == 0 && len(k.c.FailIDs) == 0:
		return false
	case slices.Contains(k.c.FailKeys, string(it.Key)):
		name = "key " + string(it.Key)
	case slices.Contains(k.c.FailIDs, it.ID):
		name = "id " + it.ID
	default:
		return false
	}
	if k.c.FailUntil != "" && exists(k.c.FailUntil) {
		return false
	}
	if k.c.FailTimes > 0 && k.refused[name] >= k.c.FailTimes {
		return false
	}
	k.refused[name]++
	return true
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// await waits until the file exists; false: the host has gone.
func await(ctx context.Context, path string) bool {
	t := time.NewTicker(pollInterval)
	defer t.Stop()
	for !exists(path) {
		select {
		case <-t.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}
