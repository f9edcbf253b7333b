//go:build !linux

package vmprobe

import (
	"context"
	"io"
)

// nested is for Linux, which every machine runs.
func nested(context.Context, io.Reader, io.Writer) int { return 3 }
