package sdk

import (
	"fmt"
	"io"
	"os"
)

// Main is the whole main function of a plugin. It does not return.
//
// Started by a host it serves until the host goes. Started by hand it says what it is: describe prints the
// DescribeResponse as JSON, version the name and the version; anything else prints help and exits with 2.
func Main(p Plugin) {
	r := p.registration()
	if len(os.Args) > 1 {
		os.Exit(command(r, os.Args[1:], os.Stdout, os.Stderr))
	}
	if os.Getenv(cookieKey) != cookieValue {
		_, _ = io.WriteString(os.Stderr, r.help())
		os.Exit(exitUsage)
	}
	os.Exit(serve(r))
}

// Exit codes of a plugin process. The host only tells 0 from the rest; they are for people who read its log.
const (
	exitOK     = 0
	exitFailed = 1  // it could not serve, or no host came
	exitUsage  = 2  // started by hand
	exitPanic  = 70 // a panic in the plugin (EX_SOFTWARE)
)

// command runs a sub-command and returns the exit code.
func command(r *registration, args []string, stdout, stderr io.Writer) int {
	if len(args) == 1 {
		switch args[0] {
		case "describe":
			b, err := r.describeJSON()
			if err != nil {
				_, _ = fmt.Fprintf(stderr, "describe: %v\n", err)
				return exitFailed
			}
			if _, err := stdout.Write(b); err != nil {
				_, _ = fmt.Fprintf(stderr, "describe: %v\n", err)
				return exitFailed
			}
			return exitOK
		case "version", "--version":
			_, _ = fmt.Fprintf(stdout, "%s %s\n", r.executable(), r.describe.GetVersion())
			return exitOK
		case "help", "--help", "-h":
			_, _ = io.WriteString(stdout, r.help())
			return exitOK
		}
	}
	_, _ = fmt.Fprintf(stderr, "%s: unknown arguments %q\n\n%s", r.executable(), args, r.help())
	return exitUsage
}

// help is what a person sees who starts the executable by hand.
func (r *registration) help() string {
	noun := "a source"
	if r.isSink() {
		noun = "a sink"
	}
	s := fmt.Sprintf("%s is %s plugin of Relevo. It is not started by hand: `relevo run` starts it for a pipeline that names it.\n",
		r.executable(), noun)
	if sum := r.describe.GetSummary(); sum != "" {
		s += "\n  " + sum + "\n"
	}
	return s + fmt.Sprintf(`
Usage:
  %[1]s describe   print what it is and the schema of its configuration, as JSON
  %[1]s version    print name and version
  %[1]s --help     print this
`, r.executable())
}
