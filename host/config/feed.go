package config

import (
	"encoding/json"
	"net"
	"net/url"
	"regexp"
	"strings"
)

// feed is what a source consumes and two pipelines must not share: rows of a table, or a replication slot. Each would
// take the other's events.
type feed struct {
	code   string
	family string // of the plugin: postgres
	server string // host, port and database
	name   string // table and pending, or slot
}

func (f feed) what() string {
	if f.code == CodeSameSlot {
		return "the source reads the same replication slot"
	}
	return "the source reads the same rows (table and pending)"
}

func (f feed) hint() string {
	if f.code == CodeSameSlot {
		return "give each pipeline a slot of its own"
	}
	return `one pipeline may have several sinks; to split the rows, give each a "pending" of its own`
}

// feedsOf compares by the words that all plugins share (dsn, table, preset, pending, slot). A source that has no such
// words has no feeds.
func feedsOf(p Plugin) []feed {
	var c struct {
		DSN, Table, Preset, Pending, Slot, Messages any
	}
	if p.Config == nil || json.Unmarshal(p.Config, &c) != nil {
		return nil
	}
	server := serverOf(text(c.DSN))
	if server == "" {
		return nil
	}
	family, _, _ := strings.Cut(p.Plugin, "-")
	if slot := text(c.Slot); slot != "" {
		return []feed{{CodeSameSlot, family, server, slot}}
	}
	if text(c.Messages) != "" {
		return nil
	}
	table := tableName(text(c.Table))
	if table == "" {
		// The default, which a preset may change.
		if table = "outbox"; text(c.Preset) != "" {
			table = "preset " + text(c.Preset)
		}
	}
	return []feed{{CodeSameTable, family, server, table + "\x00" + strings.Join(strings.Fields(text(c.Pending)), " ")}}
}

func text(x any) string {
	s, _ := x.(string)
	return s
}

// tableName makes spellings of one table equal: "public"."outbox", public.outbox, outbox. Names are taken as written,
// case and all, as the plugins take them.
func tableName(s string) string {
	return strings.TrimPrefix(strings.ReplaceAll(strings.TrimSpace(s), `"`, ""), "public.")
}

var keywordValue = regexp.MustCompile(`(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|\S*)`)

// serverOf is host, port and database of a PostgreSQL DSN in either form, "" if it is none.
func serverOf(dsn string) string {
	host, port, database, user := "", "", "", ""
	set := func(key, value string) {
		switch key {
		case "host":
			host = value
		case "port":
			port = value
		case "dbname":
			database = value
		case "user":
			user = value
		}
	}
	if strings.Contains(dsn, "://") {
		u, err := url.Parse(dsn)
		if err != nil {
			return ""
		}
		host, port, database, user = u.Hostname(), u.Port(), strings.TrimPrefix(u.Path, "/"), u.User.Username()
		for k, v := range u.Query() {
			set(k, v[0])
		}
	} else {
		for _, m := range keywordValue.FindAllStringSubmatch(dsn, -1) {
			set(m[1], strings.Trim(m[2], "'"))
		}
	}
	if host == "" && port == "" && database == "" && user == "" {
		return ""
	}
	if host == "" {
		host = "localhost"
	}
	if port == "" {
		port = "5432"
	}
	if database == "" {
		database = user
	}
	return net.JoinHostPort(strings.ToLower(host), port) + "/" + database
}
