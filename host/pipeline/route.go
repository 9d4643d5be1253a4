package pipeline

import (
	"errors"
	"fmt"

	"github.com/relevo-io/relevo/host/config"
	"github.com/relevo-io/relevo/host/destination"
	"github.com/relevo-io/relevo/internal/wire"
)

// messageOverhead is what a message to a sink has beside one event: numbers, tags, and its destination.
const messageOverhead = 8 << 10

// rules are the ledger's settings for this configuration.
func (p *Pipeline) rules() (Rules, error) {
	c := p.set.Config
	r := Rules{
		WindowEvents: c.Delivery.MaxInFlightEvents, WindowBytes: c.Delivery.MaxInFlightBytes,
		DownAfter: downAfter, GiveUpAfter: c.Errors.GiveUpAfter,
	}
	for i := range c.Sinks {
		k := &c.Sinks[i]
		limit := int(k.Describe.GetMaxMessageBytes())
		if limit == 0 {
			limit = wire.DefaultMaxMessage
		}
		s := SinkRules{DiscardPermanent: c.Errors.Permanent == config.Discard, MaxEventBytes: limit - messageOverhead}
		if k.To != nil {
			if text, ok := k.To.Constant(); ok {
				s.Constant = text
			} else {
				d := k.Describe.GetDestination()
				rules, err := destination.NewRules(d.GetNoun(), d.GetForbidden(), int(d.GetMaxBytes()))
				if err != nil {
					return Rules{}, fmt.Errorf("plugin %s describes its destinations: %w", k.Plugin.Plugin, err)
				}
				s.Route = route(k.To, rules)
			}
		}
		r.Sinks = append(r.Sinks, s)
	}
	return r, nil
}

// maxRoutes bounds the destinations that are remembered as strings.
const maxRoutes = 4096

// route fills the template from an event. Destinations repeat, so each is made into a string once.
func route(to *destination.Template, rules *destination.Rules) func(raw []byte) (string, *RouteError) {
	var (
		e     wire.Event
		buf   []byte
		known = map[string]string{}
	)
	return func(raw []byte) (string, *RouteError) {
		if err := e.Parse(raw); err != nil {
			return "", &RouteError{"event_malformed", err.Error()}
		}
		var err error
		if buf, err = to.Append(buf[:0], &e, rules); err != nil {
			if x, ok := errors.AsType[*destination.EventError](err); ok {
				return "", &RouteError{x.Code, x.Message}
			}
			return "", &RouteError{"destination_invalid", err.Error()}
		}
		if s, ok := known[string(buf)]; ok {
			return s, nil
		}
		if len(known) >= maxRoutes {
			clear(known)
		}
		s := string(buf)
		known[s] = s
		return s, nil
	}
}
