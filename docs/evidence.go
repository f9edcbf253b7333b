// Package docs carries the evidence that the claims are held against: what a
// verify showed, on which kernel, when. It holds files, and no code but their
// embedding.
package docs

import "embed"

// Evidence holds evidence/*.json, each a proof.Shown.
//
//go:embed evidence
var Evidence embed.FS
