package sdk

type registration struct{}

// Main is the whole main function of a plugin. It does not return.
func Main(p Plugin) { panic("TODO") }
