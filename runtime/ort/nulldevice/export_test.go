//go:build linux && amd64

package nulldevice

// StandsIn reports whether a library exports that function.
func StandsIn(name string) bool {
	for _, l := range libraries() {
		if lookUp(l.soname, name, l.version) != 0 {
			return true
		}
	}
	return false
}
