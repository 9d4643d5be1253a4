package natstest

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// Cluster is three child processes that form one JetStream cluster.
type Cluster struct {
	t     TB
	Nodes map[string]*Child // by server name: n0, n1, n2
}

// StartCluster runs three servers and waits until JetStream has a leader.
func StartCluster(t TB) *Cluster {
	t.Helper()
	const nodes = 3
	ports := freePorts(t, 2*nodes)
	routes := make([]string, nodes)
	for i := range nodes {
		routes[i] = fmt.Sprintf("nats://127.0.0.1:%d", ports[nodes+i])
	}
	c := &Cluster{t: t, Nodes: map[string]*Child{}}
	for i := range nodes {
		name := fmt.Sprintf("n%d", i)
		c.Nodes[name] = newChild(t, ports[i], []string{
			"server_name: " + name,
			fmt.Sprintf("cluster { name: C, listen: 127.0.0.1:%d, routes: [%s] }", ports[nodes+i], strings.Join(routes, ", ")),
		})
	}
	JetStream(t, c.URL())
	return c
}

// URL names all nodes, as clients want it.
func (c *Cluster) URL() string { return strings.Join(c.URLs(), ",") }

// URLs are the nodes' addresses.
func (c *Cluster) URLs() []string {
	var urls []string
	for i := range len(c.Nodes) {
		urls = append(urls, c.Nodes[fmt.Sprintf("n%d", i)].URL())
	}
	return urls
}

// Leader is the node that leads a stream; it waits until there is one.
func (c *Cluster) Leader(js jetstream.JetStream, stream string) *Child {
	c.t.Helper()
	var leader *Child
	Eventually(c.t, "find the leader of "+stream, func(ctx context.Context) error {
		s, err := js.Stream(ctx, stream)
		if err != nil {
			return err
		}
		if info := s.CachedInfo(); info.Cluster != nil {
			leader = c.Nodes[info.Cluster.Leader]
		}
		if leader == nil {
			return errors.New("no leader")
		}
		return nil
	})
	return leader
}
