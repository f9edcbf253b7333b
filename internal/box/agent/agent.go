// Package agent is pid 1 of a box: it starts commands with their terminals, passes signals on, and reaps what is orphaned. It ends, and
// with it everything in the box, when the keeper's socket closes.
//
// It runs inside: it may not hold a secret, reach the network, or be believed by the host. It treats the keeper as a stranger too, and
// obeys only the few messages below.
package agent

// descriptor is the number of the keeper's socket in a new agent.
const descriptor = 3
