package redirect

// poll(2) of Darwin reports POLLHUP when the peer has closed; it knows no
// POLLRDHUP.
const (
	goneEvents = 0
	deadEvents = 0
)
