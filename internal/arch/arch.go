// Package arch holds the tests about the whole tree: who may import whom, which
// calls have one home, how long a file may be, which words are retired. It
// holds no code of the product, and nothing may import it.
//
// Open deps_test.go first: the arrows are one text, to be reviewed as such.
// Loosening it is a decision, not a fix.
package arch
