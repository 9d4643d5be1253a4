// Package failpoint names the moments at which a crash is tested: one for each row of the crash table in
// docs/guarantees.md. Built with -tags failpoint, a process kills itself with SIGKILL when it passes the one that
// RELEVO_FAILPOINT names ("name", or "name:3" for the third time). Otherwise the calls compile to nothing.
//
// A plugin is started again by its host, with the same environment. RELEVO_FAILPOINT_ONCE names a file that is made at the
// kill and prevents another one for as long as it is there.
package failpoint

// Names of the failpoints.
const (
	SourceRead      = "source-read"      // the source has read rows, and not sent them
	SinkConfirmed   = "sink-confirmed"   // the broker has accepted, and the sink has not acked
	HostAcked       = "host-acked"       // the sink's ack has reached the host; nothing is stored, the source not acked
	PositionDurable = "position-durable" // the position is durable, the source not acked
	DiscardDurable  = "discard-durable"  // the note of a discard is durable, the key not released
	BeforeDelete    = "before-delete"    // the source has been acked, and nothing is deleted
	AfterDelete     = "after-delete"     // the delete is committed
)
