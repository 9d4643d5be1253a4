package plugin

import "golang.org/x/sys/unix"

// solLocal is SOL_LOCAL of <sys/un.h>, which package unix lacks.
const solLocal = 0

// peerPID is the process that the socket belongs to.
func peerPID(fd int) (int, error) { return unix.GetsockoptInt(fd, solLocal, unix.LOCAL_PEERPID) }
