//go:build !linux

package probe

import (
	"context"
	"errors"
)

func tryAll(context.Context, Plan) ([]Finding, error) {
	return nil, errors.New("the namespace battery runs on Linux only")
}
